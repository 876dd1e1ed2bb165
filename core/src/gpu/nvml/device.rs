//! The readings of one whole GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, GpuVirtualizationMode, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::error::NvmlError;

use super::error::{Calls, Failure, is_unsupported};
use super::raw;
use crate::gpu::bounds::{MOST_MINOR, TEMPERATURE_CELSIUS};
use crate::model::{DeviceMeasurements, DeviceMemory, EccErrors};

/// Facts that cannot change while the driver is loaded, read once per device.
#[derive(Default)]
pub(super) struct DeviceFacts {
    pub(super) uuid: String,
    pub(super) name: Option<String>,
    pub(super) minor: Option<u32>,
    /// Whether no other machine can use the GPU: it is neither in a vGPU guest nor in a host of vGPUs.
    pub(super) serves_one_machine: bool,
    fans: u32,
    temperature_limits_celsius: Arc<BTreeMap<String, f64>>,
    /// Whether all facts could be read; otherwise all are read again.
    pub(super) is_whole: bool,
}

/// Fans that a device has at most: far more than any product, so that a wrong count costs little.
const MOST_FANS: u32 = 64;

const TEMPERATURE_LIMITS: [(&str, TemperatureThreshold); 4] = [
    ("shutdown", TemperatureThreshold::Shutdown),
    ("slowdown", TemperatureThreshold::Slowdown),
    ("memory_max", TemperatureThreshold::MemoryMax),
    ("gpu_max", TemperatureThreshold::GpuMax),
];

const CLOCKS: [(&str, Clock); 4] =
    [("graphics", Clock::Graphics), ("sm", Clock::SM), ("memory", Clock::Memory), ("video", Clock::Video)];

/// NVML's reasons without idleness: an idle device runs slowly because no process needs more.
const THROTTLE_REASONS: [(&str, ThrottleReasons); 8] = [
    ("applications_clocks_setting", ThrottleReasons::APPLICATIONS_CLOCKS_SETTING),
    ("display_clock_setting", ThrottleReasons::DISPLAY_CLOCK_SETTING),
    ("hw_power_brake_slowdown", ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
    ("hw_slowdown", ThrottleReasons::HW_SLOWDOWN),
    ("hw_thermal_slowdown", ThrottleReasons::HW_THERMAL_SLOWDOWN),
    ("sw_power_cap", ThrottleReasons::SW_POWER_CAP),
    ("sw_thermal_slowdown", ThrottleReasons::SW_THERMAL_SLOWDOWN),
    ("sync_boost", ThrottleReasons::SYNC_BOOST),
];

/// Reads the constant facts.
pub(super) fn facts(device: &Device<'_>, uuid: String, calls: &mut Calls) -> Result<DeviceFacts, Failure> {
    let mut is_whole = true;
    let mut temperature_limits_celsius = BTreeMap::new();
    for (limit, threshold) in TEMPERATURE_LIMITS {
        let answer = || device.temperature_threshold(threshold);
        if let Some(celsius) = fact(calls, "nvmlDeviceGetTemperatureThreshold", answer, &mut is_whole)? {
            let celsius = temperature(celsius);
            is_whole &= TEMPERATURE_CELSIUS.contains(&celsius);
            temperature_limits_celsius.insert(limit.to_owned(), celsius);
        }
    }
    let name = fact(calls, "nvmlDeviceGetName", || raw::name(device), &mut is_whole)?;
    let minor = fact(calls, "nvmlDeviceGetMinorNumber", || device.minor_number(), &mut is_whole)?;
    is_whole &= minor.is_none_or(|minor| minor <= MOST_MINOR);
    let virtualization =
        fact(calls, "nvmlDeviceGetVirtualizationMode", || device.virtualization_mode(), &mut is_whole)?;
    let fans = fact(calls, "nvmlDeviceGetNumFans", || device.num_fans(), &mut is_whole)?;
    if let Some(fans) = fans.filter(|fans| *fans > MOST_FANS) {
        is_whole = false;
        calls.note("nvmlDeviceGetNumFans", format!("it counts {fans} fans, which no device has"));
    }
    Ok(DeviceFacts {
        uuid,
        name,
        minor,
        serves_one_machine: matches!(
            virtualization,
            Some(GpuVirtualizationMode::Bare | GpuVirtualizationMode::PassThrough)
        ),
        fans: fans.filter(|fans| *fans <= MOST_FANS).unwrap_or(0),
        temperature_limits_celsius: Arc::new(temperature_limits_celsius),
        is_whole,
    })
}

/// A constant fact. A failed read may succeed later.
pub(super) fn fact<T>(
    calls: &mut Calls,
    call: &'static str,
    driver: impl FnOnce() -> Result<T, NvmlError>,
    is_whole: &mut bool,
) -> Result<Option<T>, Failure> {
    calls.optional(call, || {
        let answer = match driver() {
            // An older driver does not know each argument, such as a threshold.
            Err(NvmlError::InvalidArg) => Err(NvmlError::NotSupported),
            answer => answer,
        };
        *is_whole &= answer.as_ref().err().is_none_or(is_unsupported);
        answer
    })
}

/// Reads the values that change.
pub(super) fn measure(
    device: &Device<'_>,
    facts: &DeviceFacts,
    calls: &mut Calls,
) -> Result<DeviceMeasurements, Failure> {
    let utilization = calls.optional("nvmlDeviceGetUtilizationRates", || device.utilization_rates())?;
    let encoder = calls.optional("nvmlDeviceGetEncoderUtilization", || device.encoder_utilization())?;
    let decoder = calls.optional("nvmlDeviceGetDecoderUtilization", || device.decoder_utilization())?;
    let celsius = calls.optional("nvmlDeviceGetTemperature", || device.temperature(TemperatureSensor::Gpu))?;
    let power = calls.optional("nvmlDeviceGetPowerUsage", || device.power_usage())?;
    let power_limit = calls.optional("nvmlDeviceGetEnforcedPowerLimit", || device.enforced_power_limit())?;
    let energy = calls.optional("nvmlDeviceGetTotalEnergyConsumption", || device.total_energy_consumption())?;
    let throttled =
        calls.optional("nvmlDeviceGetCurrentClocksThrottleReasons", || device.current_throttle_reasons())?;
    let replays = calls.optional("nvmlDeviceGetPcieReplayCounter", || device.pcie_replay_counter())?;
    Ok(DeviceMeasurements {
        utilization_ratio: utilization.as_ref().map(|it| ratio(it.gpu)),
        memory_controller_busy_ratio: utilization.as_ref().map(|it| ratio(it.memory)),
        encoder_utilization_ratio: encoder.map(|it| ratio(it.utilization)),
        decoder_utilization_ratio: decoder.map(|it| ratio(it.utilization)),
        memory: memory(device, calls)?,
        temperature_celsius: celsius.map(temperature),
        temperature_limits_celsius: Arc::clone(&facts.temperature_limits_celsius),
        power_watts: power.map(|milliwatts| f64::from(milliwatts) / 1e3),
        power_limit_watts: power_limit.map(|milliwatts| f64::from(milliwatts) / 1e3),
        energy_joules: energy.map(|millijoules| millijoules as f64 / 1e3),
        clocks_hertz: Arc::new(clocks(device, calls)?),
        fan_speed_ratios: fans(device, facts.fans, calls)?,
        throttled: throttled.map(|reasons| Arc::new(throttle_reasons(reasons.bits()))),
        ecc_errors: EccErrors {
            corrected: ecc_errors(device, MemoryError::Corrected, calls)?,
            uncorrected: ecc_errors(device, MemoryError::Uncorrected, calls)?,
        },
        pcie_replays: replays.map(u64::from),
    })
}

/// Memory by the second version of the call, or by the first version where the driver or the library lacks the second.
pub(super) fn memory(device: &Device<'_>, calls: &mut Calls) -> Result<Option<DeviceMemory>, Failure> {
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`, which the wrapper does not name.
    const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    let driver = || match device.memory_info() {
        Ok(it) => Ok(DeviceMemory {
            total_bytes: it.total,
            used_bytes: it.used,
            free_bytes: it.free,
            reserved_bytes: Some(it.reserved),
        }),
        Err(
            NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::NotSupported
            | NvmlError::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH),
        ) => raw::memory_info_v1(device),
        Err(error) => Err(error),
    };
    calls.optional("nvmlDeviceGetMemoryInfo_v2", driver)
}

fn clocks(device: &Device<'_>, calls: &mut Calls) -> Result<BTreeMap<String, f64>, Failure> {
    let mut hertz = BTreeMap::new();
    for (name, clock) in CLOCKS {
        if let Some(megahertz) = calls.optional("nvmlDeviceGetClockInfo", || device.clock_info(clock))? {
            hertz.insert(name.to_owned(), f64::from(megahertz) * 1e6);
        }
    }
    Ok(hertz)
}

fn fans(device: &Device<'_>, count: u32, calls: &mut Calls) -> Result<BTreeMap<u32, f64>, Failure> {
    let mut ratios = BTreeMap::new();
    for fan in 0..count {
        if let Some(percent) = calls.optional("nvmlDeviceGetFanSpeed_v2", || device.fan_speed(fan))? {
            ratios.insert(fan, ratio(percent));
        }
    }
    Ok(ratios)
}

fn ecc_errors(device: &Device<'_>, kind: MemoryError, calls: &mut Calls) -> Result<Option<u64>, Failure> {
    calls.optional("nvmlDeviceGetTotalEccErrors", || device.total_ecc_errors(kind, EccCounter::Volatile))
}

/// Whether each reason of `nvmlDeviceGetCurrentClocksThrottleReasons` holds the clocks down, by the bits of the answer.
/// Idleness is no reason, and bits without a name are left out.
pub fn throttle_reasons(bits: u64) -> BTreeMap<String, bool> {
    let reasons = ThrottleReasons::from_bits_truncate(bits);
    THROTTLE_REASONS.into_iter().map(|(name, reason)| (name.to_owned(), reasons.contains(reason))).collect()
}

fn ratio(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

/// A temperature in °C. NVML writes a signed number into an unsigned one: 4294967291 is -5. All bits set is no measurement.
fn temperature(celsius: u32) -> f64 {
    match celsius {
        u32::MAX => f64::from(celsius),
        _ => f64::from(celsius.cast_signed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_below_zero_counts_and_all_bits_set_do_not() {
        assert_eq!([0, 85, 4_294_967_291].map(temperature), [0.0, 85.0, -5.0]);
        for garbage in [u32::MAX, 1 << 31, i32::MAX as u32] {
            assert!(!TEMPERATURE_CELSIUS.contains(&temperature(garbage)), "{garbage}");
        }
    }

    fn active(bits: u64) -> Vec<String> {
        let reasons = throttle_reasons(bits);
        assert_eq!(reasons.len(), THROTTLE_REASONS.len());
        reasons.into_iter().filter_map(|(reason, active)| active.then_some(reason)).collect()
    }

    /// Bits as nvml.h has them (`nvmlClocksEventReason*`, `nvmlClocksThrottleReason*`).
    #[test]
    fn each_reason_has_its_bit() {
        for (bit, reason) in [
            (0x2, "applications_clocks_setting"),
            (0x4, "sw_power_cap"),
            (0x8, "hw_slowdown"),
            (0x10, "sync_boost"),
            (0x20, "sw_thermal_slowdown"),
            (0x40, "hw_thermal_slowdown"),
            (0x80, "hw_power_brake_slowdown"),
            (0x100, "display_clock_setting"),
        ] {
            assert_eq!(active(bit), [reason]);
        }
    }

    #[test]
    fn idleness_is_no_throttle_and_unknown_bits_are_none() {
        assert_eq!(active(0x1 | 0x8000), Vec::<String>::new());
        assert_eq!(active(0x1 | 0x48), ["hw_slowdown", "hw_thermal_slowdown"]);
    }
}
