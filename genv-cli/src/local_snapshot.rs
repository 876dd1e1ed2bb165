//! A snapshot of this machine for one command.

use std::time::Duration;

use anyhow::Context as _;
use genv_core::collect::once;
use genv_core::gpu::{GpuError, GpuSample, GpuSource};
use genv_core::model::Snapshot;
use genv_simulator::SourceOptions;

use crate::machine::NoSample;

/// Time limit for the sources other than the GPUs.
const PATIENCE: Duration = Duration::from_secs(4);

/// Takes a snapshot with this sample of the GPUs. Without a sample the collector `gpu` has the reason.
pub(crate) fn take(sample: Result<GpuSample, NoSample>) -> anyhow::Result<Snapshot> {
    let options = SourceOptions::default().or_from_environment()?;
    // The first host of a scenario stands for this machine.
    let host = options.open()?.into_iter().next();
    let mut host = host.context("cannot take a snapshot of this machine: it has no host")?;
    host.gpu = Box::new(Asked {
        sample: sample.map_err(|error| GpuError::Unanswered(error.to_string())),
        is_simulated: host.gpu.is_simulated(),
    });
    let publication = once(vec![host], PATIENCE).context("cannot take a snapshot of this machine")?;
    let snapshot = publication.hosts.first().and_then(|host| host.snapshot.clone());
    let snapshot = snapshot.context("cannot take a snapshot of this machine: it has no host")?;
    Ok(Snapshot::clone(&snapshot))
}

/// GPUs that were queried before.
struct Asked {
    sample: Result<GpuSample, GpuError>,
    is_simulated: bool,
}

impl GpuSource for Asked {
    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        self.sample.clone()
    }

    fn is_simulated(&self) -> bool {
        self.is_simulated
    }
}

/// The reason for the failure of a collector; absent if it has succeeded.
pub(crate) fn silence(snapshot: &Snapshot, collector: &str) -> Option<String> {
    let status = snapshot.collectors.get(collector)?;
    if status.success {
        return None;
    }
    let unknown = || "it gives no reason".to_owned();
    Some(status.error.clone().unwrap_or_else(unknown))
}
