//! What a GPU measures at one moment.

use std::cell::LazyCell;

use genv_core::model::DeviceMemory;

use super::{DeviceAt, DeviceProcess};
use crate::definition::MigDevice;
use crate::nvml::ThrottleReason;
use crate::pattern::{Level, Pattern};

/// Over how many seconds temperature and fans average the load that they follow.
const WARMTH_SECONDS: f64 = 60.0;

/// The values of a whole GPU at a moment, also those that the driver does not report.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// 0–1: the scenario's value, else the sum of the processes.
    pub utilization_ratio: f64,
    /// Part of the time during which memory was read or written, 0–1.
    pub memory_controller_busy_ratio: f64,
    /// Video encoder, 0–1.
    pub encoder_utilization_ratio: f64,
    /// Video decoder, 0–1.
    pub decoder_utilization_ratio: f64,
    /// °C: follows the mean utilization of the last minute.
    pub temperature_celsius: f64,
    /// Speed of each fan as a share of its maximum: follows the mean utilization of the last minute.
    pub fan_speed_ratios: Vec<f64>,
    /// mW: follows utilization between idle and full.
    pub power_milliwatts: u64,
    /// mJ since the epoch: the exact integral of its power.
    pub energy_millijoules: u64,
    /// Memory of the whole GPU.
    pub memory: DeviceMemory,
    /// Bits of `nvmlDeviceGetCurrentClocksThrottleReasons`: those of the scenario,
    /// `SwThermalSlowdown` from the slowdown temperature on, and idleness.
    pub throttle_reasons: u64,
    /// Processes on it and on its MIG devices, in the scenario's order.
    pub processes: Vec<DeviceProcess>,
}

impl Measured {
    pub(super) fn new(at: DeviceAt<'_>) -> Self {
        let device = at.device();
        let seconds = at.seconds();
        let now = |pattern: &Pattern| pattern.at(seconds);

        let processes: Vec<DeviceProcess> = at.processes().collect();
        let utilization_ratio = device.utilization.as_ref().map_or_else(
            || {
                let ratios = processes.iter().map(|process| process.utilization_ratio);
                ratios.sum::<f64>().min(1.0)
            },
            now,
        );
        let utilized_seconds = utilized_seconds(at, seconds);
        let warmth = LazyCell::new(|| {
            let from = (seconds - WARMTH_SECONDS).max(0.0);
            if seconds <= from {
                return utilization_ratio;
            }
            let utilized = utilized_seconds - self::utilized_seconds(at, from);
            (utilized / (seconds - from)).clamp(0.0, 1.0)
        });
        let following = |level: &Level| {
            if level.idle < level.max { level.at(*warmth) } else { level.idle }
        };
        let temperature_celsius = following(&device.temperature_celsius).round();
        let slowdown = device.temperature_limits_celsius.get("slowdown");
        let hot = slowdown.is_some_and(|limit| temperature_celsius >= f64::from(*limit));
        let thermal = hot.then_some(ThrottleReason::SwThermalSlowdown);
        let reasons = device.throttled.iter().copied().chain(thermal);
        let idle_bit = if utilization_ratio > 0.0 { 0 } else { ThrottleReason::IDLE_BIT };

        // The upper bound: the maximum of the GPU, or its power limit.
        let idle_watts = device.power_watts.idle;
        let full_watts = device.power_watts.max.min(device.power_limit_watts);
        let loaded_watts = full_watts.max(idle_watts) - idle_watts;
        let joules = idle_watts * seconds + loaded_watts * utilized_seconds;

        let left_bytes = device.memory_bytes - device.memory_reserved_bytes;
        let used_bytes = device.memory_used_bytes.unwrap_or_else(|| {
            let held = processes.iter().map(|process| process.memory_used_bytes);
            let instances = device.mig.iter().filter(|mig| mig.compute_instance == 0);
            let empty = instances.map(MigDevice::empty_bytes);
            held.chain(empty).sum::<u64>().min(left_bytes)
        });
        Self {
            utilization_ratio,
            memory_controller_busy_ratio: device.memory_controller.as_ref().map_or(utilization_ratio * 0.6, now),
            encoder_utilization_ratio: now(&device.encoder),
            decoder_utilization_ratio: now(&device.decoder),
            temperature_celsius,
            fan_speed_ratios: device.fan_speed_ratios.iter().map(following).collect(),
            power_milliwatts: whole((idle_watts + loaded_watts * utilization_ratio) * 1000.0),
            energy_millijoules: whole(joules * 1000.0),
            memory: DeviceMemory {
                total_bytes: device.memory_bytes,
                used_bytes,
                free_bytes: left_bytes - used_bytes,
                reserved_bytes: Some(device.memory_reserved_bytes),
            },
            throttle_reasons: reasons.fold(idle_bit, |bits, reason| bits | reason.bit()),
            processes,
        }
    }
}

/// The integral of a GPU's utilization from the epoch to a moment of scenario time.
fn utilized_seconds(at: DeviceAt<'_>, seconds: f64) -> f64 {
    match &at.device().utilization {
        Some(pattern) => pattern.integral(seconds),
        None => at.uses().map(|(process, used)| process.window.integral(&used.utilization, seconds) * used.scale).sum(),
    }
}

/// A ratio in whole percent, as NVML reports utilization and fan speed. Rounds down, so that what adds up to no
/// more than everything still does.
pub fn percent(ratio: f64) -> u32 {
    // A hundredth such as 0.29 is a little less in binary.
    u32::try_from(whole(ratio * 100.0 + 1e-6)).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and nothing here is negative")]
fn whole(value: f64) -> u64 {
    value.floor() as u64
}
