//! Samples of a source while calls go wrong, compared with its sample from before.

use anyhow::{Context as _, Result, ensure};
use genv_core::gpu::reader::{Pace, ReaderSource};
use genv_core::gpu::{GpuSample, GpuSource as _};
use genv_core::model::{DeviceIndex, Withheld};
use genv_tests::patience::until;
use genv_tests::process::children;

use crate::nvml_source::stage::Stage;
use crate::nvml_source::values::without_energy;
use crate::reader::faulty_driver::{DEVICES, FaultyDriver, ONCE, gpu_of};

/// A source whose samples are compared with its sample from before all faults.
pub(super) struct Watched {
    pub(super) driver: FaultyDriver,
    pace: Pace,
    pub(super) source: ReaderSource,
    healthy: GpuSample,
}

impl Watched {
    pub(super) fn new(stage: &Stage, pace: Pace) -> Result<Self> {
        let driver = FaultyDriver::beside(&stage.0);
        let source = driver.source(pace);
        let mut watched = Self { driver, pace, source, healthy: GpuSample::default() };
        let healthy = watched.sample()?;
        ensure!(healthy.devices.len() == DEVICES && healthy.withheld.is_empty(), "{healthy:#?}");
        Ok(Self { healthy, ..watched })
    }

    pub(super) fn sample(&mut self) -> Result<GpuSample> {
        let sample = self.source.sample()?;
        Ok(GpuSample { withheld: sample.withheld.clone(), ..without_energy(sample) })
    }

    /// Replaces the source by one that has made no call.
    pub(super) fn start_again(&mut self) {
        self.source = self.driver.source(self.pace);
    }

    /// Makes a call go wrong, also for a source that has made it before.
    pub(super) fn fails(&mut self, call: &str, kind: &str) {
        self.driver.fails(call, gpu_of(call), kind);
        if ONCE.split(' ').any(|once| once == call) {
            self.start_again();
        }
    }

    /// Samples until the sample is as wanted. All these samples show the other GPUs as they were before all faults.
    pub(super) fn until(&mut self, gpu: u32, what: &str, wanted: impl Fn(&GpuSample) -> bool) -> Result<()> {
        until(what, || {
            let sample = self.sample()?;
            let others = |of: &GpuSample| {
                let devices = of.devices.iter().filter(|it| it.index.gpu != gpu);
                devices.cloned().collect::<Vec<_>>()
            };
            let is_of_others = |it: &Withheld| it.device.is_some_and(|device| device.gpu != gpu);
            let is_as_before = others(&sample) == others(&self.healthy) && !sample.withheld.iter().any(is_of_others);
            ensure!(is_as_before, "other GPUs are not as before: {sample:#?}");
            Ok(wanted(&sample))
        })
    }

    /// Takes the fault away, and samples until all is as before.
    pub(super) fn until_healthy(&mut self, gpu: u32) -> Result<()> {
        self.driver.works();
        let devices = self.healthy.devices.clone();
        self.until(gpu, "all GPUs are as before", |sample| sample.devices == devices && sample.withheld.is_empty())
    }

    /// Samples until one reader works, and none is tried beside it.
    pub(super) fn until_one_reader(&mut self) -> Result<()> {
        until("one reader is left", || {
            self.sample()?;
            Ok(children(std::process::id()).len() == 1)
        })
    }

    /// One by one, these calls go wrong in this way: their GPU is lost, and is back when they work.
    pub(super) fn loses_the_gpu_of(
        &mut self,
        calls: impl Iterator<Item = &'static str>,
        kind: &str,
        what: &str,
    ) -> Result<()> {
        for call in calls {
            self.fails(call, kind);
            let gpu = gpu_of(call);
            let lost = self.until(gpu, "the GPU is lost", |sample| is_lost(sample, gpu, call, what));
            lost.and_then(|()| self.until_healthy(gpu)).with_context(|| format!("{call} {kind}"))?;
        }
        Ok(())
    }
}

/// Whether the GPU is lost, by this call and what became of its process.
fn is_lost(sample: &GpuSample, gpu: u32, call: &str, what: &str) -> bool {
    let index = DeviceIndex::gpu(gpu);
    let all = |it: &&Withheld| it.device == Some(index) && it.value == Withheld::ALL && it.error.contains(what);
    sample.devices.iter().any(|it| it.index == index && it.lost)
        && sample.withheld.iter().filter(all).any(|it| is_named(it, call))
}

/// Whether the call is named as the cause.
pub(super) fn is_named(withheld: &Withheld, call: &str) -> bool {
    // The ids of both instances are noted as one call.
    let call = call.replace("ComputeInstanceId", "GpuInstanceId");
    withheld.value == call || withheld.error.contains(&call)
}
