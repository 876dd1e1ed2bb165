//! Devices of a scenario.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use genv_core::gpu::{DeviceSample, GpuError, GpuProcess, GpuSample, GpuSource, XidEvent};
use genv_core::model::{DeviceIndex, DeviceMeasurements, DeviceMemory, EccErrors};

use super::Stage;
use crate::definition::Device;
use crate::nvml::{Measurement, NvmlError, ThrottleReason};
use crate::view::{DeviceAt, DeviceProcess, HostAt, Measured, percent};

/// A source of simulated devices.
pub(super) struct SimulatedGpus {
    stage: Stage,
    /// Generation of the driver that is open; absent when none is.
    driver_generation: Option<u64>,
    /// The time up to which XID errors were reported.
    xid_events_until: Option<SystemTime>,
}

/// How often a hanging call looks whether it is over.
const HANG_POLL: Duration = Duration::from_millis(20);

impl GpuSource for SimulatedGpus {
    fn is_simulated(&self) -> bool {
        true
    }

    fn sample(&mut self) -> Result<GpuSample, GpuError> {
        loop {
            let scenario = self.stage.scenario();
            let (host, now) = self.stage.now(&scenario).map_err(GpuError::Simulated)?;
            if !host.sweep_hangs() {
                return self.sweep(host, now);
            }
            std::thread::sleep(HANG_POLL);
        }
    }
}

impl SimulatedGpus {
    pub(super) fn new(stage: Stage) -> Self {
        Self { stage, driver_generation: None, xid_events_until: None }
    }

    fn sweep(&mut self, host: HostAt<'_>, now: SystemTime) -> Result<GpuSample, GpuError> {
        let failed = |call, error: NvmlError| GpuError::Driver { call, reason: error.text().to_owned() };
        if let Some(error) = host.init_error() {
            self.driver_generation = None;
            return Err(failed("nvmlInit_v2", error));
        }
        let current = host.driver_generation();
        let opened = *self.driver_generation.get_or_insert(current);
        if opened != current {
            self.driver_generation = None;
            return Err(failed("nvmlDeviceGetCount_v2", NvmlError::Uninitialized));
        }
        let after = *self.xid_events_until.get_or_insert(now);
        self.xid_events_until = Some(now);
        let mut sample = GpuSample {
            driver_version: Some(host.host().driver_version.clone()),
            session: opened,
            serves_one_machine: true,
            ..GpuSample::default()
        };
        for device in host.devices() {
            sample.devices.push(whole_gpu(device));
            sample.devices.extend((0..=u8::MAX).map_while(|position| mig_device(device, position)));
            if device.supports(Measurement::XidEvents, false) {
                let events = device.xid_events_since(after).into_iter();
                sample.xid_events.extend(events.map(|(xid, timestamp_seconds)| XidEvent {
                    index: DeviceIndex::gpu(device.device().index),
                    xid,
                    timestamp_seconds,
                }));
            }
        }
        Ok(sample)
    }
}

fn whole_gpu(at: DeviceAt<'_>) -> DeviceSample {
    let device = at.device();
    let index = DeviceIndex::gpu(device.index);
    if at.lost() {
        return DeviceSample::lost(index, device.uuid.clone());
    }
    let supports = |measurement| at.supports(measurement, false);
    let split = !device.mig.is_empty();
    let measured = at.measured();
    // The processes of a split GPU are listed with its MIG devices.
    let processes = (split || supports(Measurement::Processes)).then(|| {
        let processes = measured.processes.iter();
        processes.filter(|process| process.index == index).map(|process| gpu_process(at, *process, false)).collect()
    });
    DeviceSample {
        index,
        uuid: device.uuid.clone(),
        lost: false,
        name: supports(Measurement::Name).then(|| device.name.clone()),
        minor: supports(Measurement::Minor).then_some(device.minor),
        profile: None,
        gpu_instance: None,
        mig_parent: split,
        mig_unsplit: false,
        measurements: measurements(at, device, &measured),
        processes,
        processes_incomplete: false,
        lists_answered: supports(Measurement::Processes),
    }
}

fn mig_device(at: DeviceAt<'_>, position: u8) -> Option<DeviceSample> {
    let (mig, memory) = at.mig_memory(position)?;
    let index = DeviceIndex::mig(at.device().index, position);
    if at.lost() {
        return Some(DeviceSample::lost(index, mig.uuid.clone()));
    }
    let supports = |measurement| at.supports(measurement, true);
    let processes = supports(Measurement::Processes).then(|| {
        at.processes().filter(|process| process.index == index).map(|process| gpu_process(at, process, true)).collect()
    });
    Some(DeviceSample {
        index,
        uuid: mig.uuid.clone(),
        lost: false,
        name: supports(Measurement::Name).then(|| format!("{} MIG {}", at.device().name, mig.profile)),
        minor: None,
        profile: Some(mig.profile.clone()),
        gpu_instance: Some(mig.gpu_instance),
        mig_parent: false,
        mig_unsplit: false,
        measurements: DeviceMeasurements { memory: told_memory(at, memory, true), ..DeviceMeasurements::default() },
        processes,
        processes_incomplete: false,
        lists_answered: supports(Measurement::Processes),
    })
}

fn gpu_process(at: DeviceAt<'_>, process: DeviceProcess, mig: bool) -> GpuProcess {
    GpuProcess {
        pid: process.pid,
        process_type: process.process_type,
        memory_used_bytes: at.supports(Measurement::ProcessMemory, mig).then_some(process.memory_used_bytes),
        utilization_ratio: at
            .supports(Measurement::ProcessUtilization, mig)
            .then(|| in_percent(process.utilization_ratio)),
    }
}

fn told_memory(at: DeviceAt<'_>, memory: DeviceMemory, mig: bool) -> Option<DeviceMemory> {
    if !at.supports(Measurement::Memory, mig) {
        return None;
    }
    if at.supports(Measurement::MemoryReserved, mig) {
        return Some(memory);
    }
    // The first version of the call counts the driver's memory as used.
    Some(DeviceMemory {
        used_bytes: memory.used_bytes + memory.reserved_bytes.unwrap_or(0),
        reserved_bytes: None,
        ..memory
    })
}

/// With the resolution of NVML.
fn in_percent(ratio: f64) -> f64 {
    f64::from(percent(ratio)) / 100.0
}

fn measurements(at: DeviceAt<'_>, device: &Device, measured: &Measured) -> DeviceMeasurements {
    let supports = |measurement| at.supports(measurement, false);
    let ecc = device.ecc_errors.filter(|_| supports(Measurement::Ecc));
    let utilization = supports(Measurement::Utilization);
    DeviceMeasurements {
        utilization_ratio: utilization.then(|| in_percent(measured.utilization_ratio)),
        memory_controller_busy_ratio: utilization.then(|| in_percent(measured.memory_controller_busy_ratio)),
        encoder_utilization_ratio: supports(Measurement::Encoder)
            .then(|| in_percent(measured.encoder_utilization_ratio)),
        decoder_utilization_ratio: supports(Measurement::Decoder)
            .then(|| in_percent(measured.decoder_utilization_ratio)),
        memory: told_memory(at, measured.memory, false),
        temperature_celsius: supports(Measurement::Temperature).then_some(measured.temperature_celsius),
        temperature_limits_celsius: if supports(Measurement::TemperatureLimits) {
            let limits = device.temperature_limits_celsius.iter();
            Arc::new(limits.map(|(limit, celsius)| ((*limit).to_owned(), f64::from(*celsius))).collect())
        } else {
            Arc::default()
        },
        power_watts: supports(Measurement::Power).then(|| thousandths(measured.power_milliwatts)),
        power_limit_watts: supports(Measurement::PowerLimit).then_some(device.power_limit_watts),
        energy_joules: supports(Measurement::Energy).then(|| thousandths(measured.energy_millijoules)),
        clocks_hertz: if supports(Measurement::Clocks) {
            let clocks = device.clocks_megahertz.iter();
            Arc::new(clocks.map(|(clock, megahertz)| ((*clock).to_owned(), f64::from(*megahertz) * 1e6)).collect())
        } else {
            Arc::default()
        },
        fan_speed_ratios: if supports(Measurement::Fans) {
            (0..).zip(measured.fan_speed_ratios.iter().copied().map(in_percent)).collect()
        } else {
            BTreeMap::new()
        },
        throttled: supports(Measurement::Throttled).then(|| {
            let bits = measured.throttle_reasons;
            let reasons = ThrottleReason::ALL.into_iter();
            Arc::new(reasons.map(|reason| (reason.name().to_owned(), bits & reason.bit() != 0)).collect())
        }),
        ecc_errors: EccErrors {
            corrected: ecc.map(|(corrected, _)| corrected),
            uncorrected: ecc.map(|(_, uncorrected)| uncorrected),
        },
        pcie_replays: supports(Measurement::PcieReplays).then(|| device.pcie_replays.into()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "53 bits hold the energy of a megawatt-year in mJ")]
fn thousandths(number: u64) -> f64 {
    number as f64 / 1000.0
}
