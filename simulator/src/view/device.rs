//! A GPU at one moment.

use std::time::SystemTime;

use genv_core::model::{DeviceIndex, DeviceMemory, ProcessType};

use super::measured::Measured;
use super::{HostAt, in_force};
use crate::definition::{Device, DeviceFault, MigDevice, Process, Use, WrongAnswer};
use crate::nvml::Measurement;

/// One process on one device at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceProcess {
    /// Process id.
    pub pid: u32,
    /// The device; a MIG device rather than its GPU.
    pub index: DeviceIndex,
    /// In which of NVML's lists it is.
    pub process_type: ProcessType,
    /// Used memory of the device.
    pub memory_used_bytes: u64,
    /// 0–1; all processes of a GPU together at most 1.
    pub utilization_ratio: f64,
}

/// A whole GPU at a moment.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAt<'a> {
    at: HostAt<'a>,
    device: &'a Device,
}

impl<'a> DeviceAt<'a> {
    pub(super) const fn new(at: HostAt<'a>, device: &'a Device) -> Self {
        Self { at, device }
    }

    /// What does not change.
    pub const fn device(&self) -> &'a Device {
        self.device
    }

    /// Scenario time.
    pub(super) const fn seconds(&self) -> f64 {
        self.at.seconds
    }

    pub(super) fn faults(&self) -> impl Iterator<Item = &'a DeviceFault> {
        in_force(&self.device.faults, self.at.seconds)
    }

    /// Whether it does not answer any more (`NVML_ERROR_GPU_IS_LOST`).
    pub fn lost(&self) -> bool {
        self.faults().any(|fault| matches!(fault, DeviceFault::Lost))
    }

    /// Whether an NVML call about it does not return now.
    pub fn hangs(&self, call: &str) -> bool {
        self.faults().any(|fault| matches!(fault, DeviceFault::Hang(calls) if calls.contain(call)))
            || self.at.hangs(call)
    }

    /// What an NVML call about it answers wrongly now.
    pub fn wrong(&self, call: &str) -> Option<WrongAnswer> {
        let own = self.faults().find_map(|fault| match fault {
            DeviceFault::Wrong(calls, answer) if calls.contain(call) => Some(*answer),
            _ => None,
        });
        own.or_else(|| self.at.wrong(call))
    }

    /// Whether it can answer a question about itself, or with `mig` about one of its MIG devices; otherwise
    /// the answer is `NVML_ERROR_NOT_SUPPORTED`.
    pub fn supports(&self, measurement: Measurement, mig: bool) -> bool {
        let possible = if mig {
            measurement.of_mig_devices()
        } else {
            (self.device.mig.is_empty() || measurement.of_mig_parents())
                && (measurement != Measurement::Ecc || self.device.ecc_errors.is_some())
        };
        let refused = |fault: &DeviceFault| {
            matches!(fault, DeviceFault::NotSupported(refused)
                if refused.contains(&measurement)
                    || (measurement == Measurement::MemoryReserved
                        && refused.contains(&Measurement::Memory)))
        };
        possible && !self.faults().any(refused)
    }

    pub(super) fn uses(&self) -> impl Iterator<Item = (&'a Process, &'a Use)> + use<'a> {
        let host = self.at.host;
        self.device.users.iter().map(move |(process, at)| {
            let process = &host.processes[*process];
            (process, &process.uses[*at])
        })
    }

    /// Processes on it and on its MIG devices, in the scenario's order.
    pub fn processes(&self) -> impl Iterator<Item = DeviceProcess> + use<'a> {
        let seconds = self.at.seconds;
        self.uses().filter_map(move |(process, used)| {
            let since = process.window.since(seconds)?;
            Some(DeviceProcess {
                pid: process.pid,
                index: used.index,
                process_type: used.process_type,
                memory_used_bytes: used.memory_bytes,
                utilization_ratio: used.utilization.at(seconds - since) * used.scale,
            })
        })
    }

    /// What it measures now; computed each time.
    pub fn measured(&self) -> Measured {
        Measured::new(*self)
    }

    /// One of its MIG devices, by position.
    fn mig(&self, position: u8) -> Option<&'a MigDevice> {
        self.device.mig.get(usize::from(position))
    }

    /// Memory of one of its MIG devices, by position: that of its GPU instance.
    pub fn mig_memory(&self, position: u8) -> Option<(&'a MigDevice, DeviceMemory)> {
        let mig = self.mig(position)?;
        let shares = |process: &DeviceProcess| {
            let on = process.index.mig.and_then(|it| self.mig(it));
            on.is_some_and(|on| on.gpu_instance == mig.gpu_instance)
        };
        let held = self.processes().filter(shares).map(|process| process.memory_used_bytes).sum::<u64>();
        let used = held.saturating_add(mig.empty_bytes()).min(mig.memory_bytes);
        let memory = DeviceMemory {
            total_bytes: mig.memory_bytes,
            used_bytes: used,
            free_bytes: mig.memory_bytes - used,
            reserved_bytes: Some(0),
        };
        Some((mig, memory))
    }

    /// XID errors after one moment and until (with) this one: code and Unix time, in order of time. At most the
    /// last 1,000 of each kind.
    pub fn xid_events_since(&self, after: SystemTime) -> Vec<(u64, f64)> {
        let after = self.at.host.at(after).seconds;
        let mut events = Vec::new();
        for xid in &self.device.xid {
            match xid.every_seconds {
                None if after < xid.first_seconds && xid.first_seconds <= self.at.seconds => {
                    events.push((xid.xid, self.at.unix(xid.first_seconds)));
                }
                None => {}
                Some(every) => {
                    let until = ((self.at.seconds - xid.first_seconds) / every).floor();
                    let mut n = ((after - xid.first_seconds) / every).floor() + 1.0;
                    n = n.max(0.0).max(until - 999.0);
                    while n <= until {
                        events.push((xid.xid, self.at.unix(xid.first_seconds + n * every)));
                        n += 1.0;
                    }
                }
            }
        }
        events.sort_by(|a, b| a.1.total_cmp(&b.1));
        events
    }
}
