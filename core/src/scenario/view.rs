//! A scenario at one moment: plain numbers, computed when asked for.

use std::time::{SystemTime, UNIX_EPOCH};

use super::definition::{
    Device, DeviceFault, Environment, Host, HostFault, MigDevice, Process, Use,
};
use super::nvml::{Measurement, NvmlError};
use super::pattern::{Pattern, Window};
use crate::model::{DeviceIndex, DeviceMemory, ProcessType};

/// Over how many seconds temperature and fans average the load that they follow.
const WARMTH_SECONDS: f64 = 60.0;

/// Milliseconds of Unix time, negative before 1970.
pub(super) fn unix_milliseconds(time: SystemTime) -> i64 {
    let whole =
        |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => whole(since),
        Err(before) => -whole(before.duration()),
    }
}

impl Host {
    /// This host at a moment. Moments are whole milliseconds; what is before the epoch is the epoch.
    #[must_use]
    pub fn at(&self, now: SystemTime) -> HostAt<'_> {
        let since = unix_milliseconds(now).saturating_sub(self.epoch_milliseconds);
        HostAt {
            host: self,
            #[expect(
                clippy::cast_precision_loss,
                reason = "milliseconds are exact in 53 bits for 285,000 years"
            )]
            seconds: since.max(0) as f64 / 1000.0,
        }
    }

    /// The process with this pid, there or not.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.by_pid.get(&pid).map(|at| &self.processes[*at])
    }
}

/// A host at a moment.
#[derive(Clone, Copy, Debug)]
pub struct HostAt<'a> {
    host: &'a Host,
    seconds: f64,
}

impl<'a> HostAt<'a> {
    /// What does not change.
    #[must_use]
    pub const fn host(&self) -> &'a Host {
        self.host
    }

    /// Scenario time.
    #[must_use]
    pub const fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The moment, Unix time.
    #[must_use]
    pub fn timestamp_seconds(&self) -> f64 {
        self.unix(self.seconds)
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds are exact in 53 bits"
    )]
    fn unix(&self, seconds: f64) -> f64 {
        self.host.epoch_milliseconds as f64 / 1000.0 + seconds
    }

    fn faults(&self) -> impl Iterator<Item = &'a HostFault> {
        in_force(&self.host.faults, self.seconds)
    }

    /// What `nvmlInit` answers instead of success.
    #[must_use]
    pub fn init_error(&self) -> Option<NvmlError> {
        self.faults().find_map(|fault| match fault {
            HostFault::Init(error) => Some(*error),
            _ => None,
        })
    }

    /// Whether an NVML call does not return now, because of the whole host.
    #[must_use]
    pub fn hangs(&self, call: &str) -> bool {
        self.faults()
            .any(|fault| matches!(fault, HostFault::Hang(calls) if calls.contain(call)))
    }

    /// Whether some NVML call does not return now, of the host or of any device: a sweep over all of them hangs.
    #[must_use]
    pub fn sweep_hangs(&self) -> bool {
        self.faults()
            .any(|fault| matches!(fault, HostFault::Hang(_)))
            || self.devices().any(|device| {
                device
                    .faults()
                    .any(|fault| matches!(fault, DeviceFault::Hang(_)))
            })
    }

    /// The driver's generation: when it changes the driver was reloaded, and everything that was opened
    /// before is uninitialized.
    #[must_use]
    pub fn driver_generation(&self) -> u64 {
        self.faults()
            .map(|fault| match fault {
                HostFault::Reload(generation) => *generation,
                _ => 0,
            })
            .sum()
    }

    /// How many processes more appear between asking for a list's size and for the list.
    #[must_use]
    pub fn more_processes_between_calls(&self) -> u32 {
        self.faults()
            .map(|fault| match fault {
                HostFault::InsufficientSize(more) => *more,
                _ => 0,
            })
            .sum()
    }

    /// Whole GPUs, by index.
    pub fn devices(&self) -> impl Iterator<Item = DeviceAt<'a>> + use<'a> {
        let at = *self;
        self.host
            .devices
            .iter()
            .map(move |device| DeviceAt { at, device })
    }

    /// One whole GPU.
    #[must_use]
    pub fn device(&self, index: u32) -> Option<DeviceAt<'a>> {
        let device = self.host.devices.get(usize::try_from(index).ok()?)?;
        Some(DeviceAt { at: *self, device })
    }

    /// Processes that are there now, real ones included.
    pub fn processes(&self) -> impl Iterator<Item = ProcessAt<'a>> + use<'a> {
        let at = *self;
        self.host
            .processes
            .iter()
            .filter_map(move |process| at.present(process))
    }

    /// The process with this pid, if it is there now.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<ProcessAt<'a>> {
        self.present(self.host.process(pid)?)
    }

    fn present(&self, process: &'a Process) -> Option<ProcessAt<'a>> {
        let since = process.window.since(self.seconds)?;
        Some(ProcessAt {
            process,
            began_timestamp_seconds: self.unix(since),
        })
    }

    /// Environments that are there now, each with the Unix time of its activation; absent when the machine's
    /// real state tells.
    #[must_use]
    pub fn environments(&self) -> Option<Vec<(&'a Environment, f64)>> {
        let environments = self.host.environments.as_ref()?;
        Some(
            environments
                .iter()
                .filter_map(|environment| {
                    let since = environment.window.since(self.seconds)?;
                    let created = started(environment.created_milliseconds, self.unix(since));
                    Some((environment, created))
                })
                .collect(),
        )
    }
}

/// A given Unix time in milliseconds, or when a window began.
#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds are exact in 53 bits"
)]
fn started(given: Option<i64>, began: f64) -> f64 {
    given.map_or(began, |milliseconds| milliseconds as f64 / 1000.0)
}

fn in_force<T>(faults: &[(Window, T)], seconds: f64) -> impl Iterator<Item = &T> {
    faults
        .iter()
        .filter(move |(window, _)| window.since(seconds).is_some())
        .map(|(_, fault)| fault)
}

/// A process at a moment at which it is there.
#[derive(Clone, Copy, Debug)]
pub struct ProcessAt<'a> {
    /// What does not change.
    pub process: &'a Process,
    began_timestamp_seconds: f64,
}

impl ProcessAt<'_> {
    /// When it was started, Unix time; meaningless for a real process.
    #[must_use]
    pub fn started_timestamp_seconds(&self) -> f64 {
        let given = self.process.facts.as_ref();
        started(
            given.and_then(|facts| facts.started_milliseconds),
            self.began_timestamp_seconds,
        )
    }
}

/// One process on one device at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceProcess {
    /// Process id.
    pub pid: u32,
    /// The device; a MIG device rather than its GPU.
    pub index: DeviceIndex,
    /// In which of NVML's lists it is.
    pub process_type: ProcessType,
    /// Device memory that it holds.
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
    /// What does not change.
    #[must_use]
    pub const fn device(&self) -> &'a Device {
        self.device
    }

    fn faults(&self) -> impl Iterator<Item = &'a DeviceFault> {
        in_force(&self.device.faults, self.at.seconds)
    }

    /// Whether it does not answer any more (`NVML_ERROR_GPU_IS_LOST`).
    #[must_use]
    pub fn lost(&self) -> bool {
        self.faults()
            .any(|fault| matches!(fault, DeviceFault::Lost))
    }

    /// Whether an NVML call about it does not return now.
    #[must_use]
    pub fn hangs(&self, call: &str) -> bool {
        self.faults()
            .any(|fault| matches!(fault, DeviceFault::Hang(calls) if calls.contain(call)))
            || self.at.hangs(call)
    }

    /// Whether it can answer a question about itself, or with `mig` about one of its MIG devices; otherwise
    /// the answer is `NVML_ERROR_NOT_SUPPORTED`.
    #[must_use]
    pub fn supports(&self, measurement: Measurement, mig: bool) -> bool {
        let possible = if mig {
            measurement.of_mig_devices()
        } else {
            (self.device.mig.is_empty() || measurement.of_mig_parents())
                && match measurement {
                    Measurement::Fans => !self.device.fan_speed_ratios.is_empty(),
                    Measurement::Ecc => self.device.ecc_errors.is_some(),
                    _ => true,
                }
        };
        let refused = |fault: &DeviceFault| {
            matches!(fault, DeviceFault::NotSupported(refused)
                if refused.contains(&measurement)
                    || (measurement == Measurement::MemoryReserved
                        && refused.contains(&Measurement::Memory)))
        };
        possible && !self.faults().any(refused)
    }

    fn uses(&self) -> impl Iterator<Item = (&'a Process, &'a Use)> + use<'a> {
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

    /// Utilization, 0–1, whether or not the driver would tell it. What its processes add up to, unless the scenario says.
    #[must_use]
    pub fn utilization_ratio(&self) -> f64 {
        match &self.device.utilization {
            Some(pattern) => pattern.at(self.at.seconds),
            None => self
                .processes()
                .map(|process| process.utilization_ratio)
                .sum::<f64>()
                .min(1.0),
        }
    }

    /// The integral of its utilization from the epoch to a moment of scenario time.
    fn utilized_seconds(&self, seconds: f64) -> f64 {
        match &self.device.utilization {
            Some(pattern) => pattern.integral(seconds),
            None => self
                .uses()
                .map(|(process, used)| {
                    process.window.integral(&used.utilization, seconds) * used.scale
                })
                .sum(),
        }
    }

    /// Mean utilization of the last minute.
    fn warmth(&self) -> f64 {
        let from = (self.at.seconds - WARMTH_SECONDS).max(0.0);
        if self.at.seconds <= from {
            return self.utilization_ratio();
        }
        let utilized = self.utilized_seconds(self.at.seconds) - self.utilized_seconds(from);
        (utilized / (self.at.seconds - from)).clamp(0.0, 1.0)
    }

    fn now(&self, pattern: &Pattern) -> f64 {
        pattern.at(self.at.seconds)
    }

    /// Part of the time during which memory was read or written, 0–1.
    #[must_use]
    pub fn memory_controller_busy_ratio(&self) -> f64 {
        match &self.device.memory_controller {
            Some(pattern) => self.now(pattern),
            None => self.utilization_ratio() * 0.6,
        }
    }

    /// Video encoder, 0–1.
    #[must_use]
    pub fn encoder_utilization_ratio(&self) -> f64 {
        self.now(&self.device.encoder)
    }

    /// Video decoder, 0–1.
    #[must_use]
    pub fn decoder_utilization_ratio(&self) -> f64 {
        self.now(&self.device.decoder)
    }

    /// °C: follows the mean utilization of the last minute.
    #[must_use]
    pub fn temperature_celsius(&self) -> f64 {
        self.device.temperature_celsius.at(self.warmth()).round()
    }

    /// Speed of each fan as a share of its maximum: follows the mean utilization of the last minute.
    #[must_use]
    pub fn fan_speed_ratios(&self) -> Vec<f64> {
        let warmth = self.warmth();
        let fans = self.device.fan_speed_ratios.iter();
        fans.map(|fan| fan.at(warmth)).collect()
    }

    /// The most that it may draw: its maximum, or the limit set for it.
    fn full_power_watts(&self) -> f64 {
        let power = self.device.power_watts;
        power.max.min(self.device.power_limit_watts).max(power.idle)
    }

    /// mW: follows utilization between idle and full.
    #[must_use]
    pub fn power_milliwatts(&self) -> u64 {
        let idle = self.device.power_watts.idle;
        let watts = idle + (self.full_power_watts() - idle) * self.utilization_ratio();
        whole(watts * 1000.0)
    }

    /// mJ since the epoch: the exact integral of its power.
    #[must_use]
    pub fn energy_millijoules(&self) -> u64 {
        let idle = self.device.power_watts.idle;
        let seconds = self.at.seconds;
        let joules =
            idle * seconds + (self.full_power_watts() - idle) * self.utilized_seconds(seconds);
        whole(joules * 1000.0)
    }

    /// Memory of the whole GPU.
    #[must_use]
    pub fn memory(&self) -> DeviceMemory {
        let device = self.device;
        let left = device.memory_bytes - device.memory_reserved_bytes;
        let used = device.memory_used_bytes.unwrap_or_else(|| {
            self.processes()
                .map(|process| process.memory_used_bytes)
                .sum::<u64>()
                .min(left)
        });
        DeviceMemory {
            total_bytes: device.memory_bytes,
            used_bytes: used,
            free_bytes: left - used,
            reserved_bytes: Some(device.memory_reserved_bytes),
        }
    }

    /// Memory of one of its MIG devices, by position.
    #[must_use]
    pub fn mig_memory(&self, position: u32) -> Option<(&'a MigDevice, DeviceMemory)> {
        let mig = self.device.mig.get(usize::try_from(position).ok()?)?;
        let index = DeviceIndex::mig(self.device.index, position);
        let used = self
            .processes()
            .filter(|process| process.index == index)
            .map(|process| process.memory_used_bytes)
            .sum::<u64>()
            .min(mig.memory_bytes);
        let memory = DeviceMemory {
            total_bytes: mig.memory_bytes,
            used_bytes: used,
            free_bytes: mig.memory_bytes - used,
            reserved_bytes: Some(0),
        };
        Some((mig, memory))
    }

    /// Bits of `nvmlDeviceGetCurrentClocksThrottleReasons`: those of the scenario, and
    /// `SwThermalSlowdown` from the slowdown temperature on.
    #[must_use]
    pub fn throttle_reasons(&self) -> u64 {
        use super::nvml::ThrottleReason;
        let hot = self
            .device
            .temperature_limits_celsius
            .get("slowdown")
            .is_some_and(|limit| self.temperature_celsius() >= f64::from(*limit));
        let given = self.device.throttled.iter().map(|reason| reason.bit());
        let thermal = hot.then_some(ThrottleReason::SwThermalSlowdown.bit());
        given.chain(thermal).fold(0, |bits, bit| bits | bit)
    }

    /// XID errors after one moment and until (with) this one: code and Unix time, in order of time. At most the
    /// last 1,000 of each kind.
    #[must_use]
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

/// A ratio in whole percent, as NVML tells utilization and fan speed. Rounds down, so that what adds up to no
/// more than everything still does.
#[must_use]
pub fn percent(ratio: f64) -> u32 {
    // A hundredth such as 0.29 is a little less in binary.
    u32::try_from(whole(ratio * 100.0 + 1e-6)).unwrap_or(u32::MAX)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and nothing here is negative"
)]
fn whole(value: f64) -> u64 {
    value.floor() as u64
}
