//! A GPU at one moment.

use std::time::SystemTime;

use super::{HostAt, in_force};
use crate::model::{DeviceIndex, DeviceMemory, ProcessType};
use crate::scenario::definition::{Device, DeviceFault, MigDevice, Process, Use};
use crate::scenario::nvml::{Measurement, ThrottleReason};
use crate::scenario::pattern::{Level, Pattern};

/// Over how many seconds temperature and fans average the load that they follow.
const WARMTH_SECONDS: f64 = 60.0;

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
    pub(super) const fn new(at: HostAt<'a>, device: &'a Device) -> Self {
        Self { at, device }
    }

    /// What does not change.
    #[must_use]
    pub const fn device(&self) -> &'a Device {
        self.device
    }

    pub(super) fn faults(&self) -> impl Iterator<Item = &'a DeviceFault> {
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

    /// A level that follows the mean utilization of the last minute.
    fn following(&self, level: Level) -> f64 {
        if level.idle < level.max {
            level.at(self.warmth())
        } else {
            level.idle
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
        self.following(self.device.temperature_celsius).round()
    }

    /// Speed of each fan as a share of its maximum: follows the mean utilization of the last minute.
    #[must_use]
    pub fn fan_speed_ratios(&self) -> Vec<f64> {
        let fans = self.device.fan_speed_ratios.iter();
        fans.map(|fan| self.following(*fan)).collect()
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
        let hot = self
            .device
            .temperature_limits_celsius
            .get("slowdown")
            .map(|limit| f64::from(*limit))
            .is_some_and(|limit| {
                self.device.temperature_celsius.max >= limit && self.temperature_celsius() >= limit
            });
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
