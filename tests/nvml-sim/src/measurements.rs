//! Measurements of a driver. Values that the scenario lacks are not supported, as on a product without the sensor.

use std::ffi::c_uint;

use genv_simulator::{Measurement, ThrottleReason, percent};
use nvml_wrapper_sys::bindings as nvml;
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlClockType_enum_NVML_CLOCK_GRAPHICS as CLOCK_GRAPHICS,
    nvmlClockType_enum_NVML_CLOCK_MEM as CLOCK_MEM, nvmlClockType_enum_NVML_CLOCK_SM as CLOCK_SM,
    nvmlClockType_enum_NVML_CLOCK_VIDEO as CLOCK_VIDEO, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlMemoryLocation_enum_NVML_MEMORY_LOCATION_DEVICE_MEMORY as DEVICE_MEMORY,
    nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND as FUNCTION_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlUtilization_t,
};

use crate::abi::{Answer, InOut, Out, calls, numbers, put};
use crate::device::Device;

/// Sampling period of encoder and decoder, as of an H200 with driver 580.
const SAMPLE_PERIOD_MICROSECONDS: u32 = 100_000;

/// Version tag of `nvmlMemory_v2_t`: its size, and 2 in the top byte.
const MEMORY_V2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;

fn clock_megahertz(device: &Device, clock: c_uint) -> Answer<c_uint> {
    let name = match clock {
        CLOCK_GRAPHICS => "graphics",
        CLOCK_SM => "sm",
        CLOCK_MEM => "memory",
        CLOCK_VIDEO => "video",
        _ => return Err(INVALID_ARGUMENT),
    };
    device.require(Measurement::Clocks)?;
    device.gpu().device().clocks_megahertz.get(name).copied().ok_or(NOT_SUPPORTED)
}

fn power_limit_milliwatts(device: &Device) -> Answer<c_uint> {
    device.require(Measurement::PowerLimit)?;
    Ok((device.gpu().device().power_limit_watts * 1000.0).round() as c_uint)
}

fn supported_throttle_reasons(device: &Device) -> Answer<u64> {
    device.require(Measurement::Throttled)?;
    Ok(ThrottleReason::ALL.iter().fold(ThrottleReason::IDLE_BIT, |bits, reason| bits | reason.bit()))
}

fn fan_percent(device: &Device, fan: c_uint) -> Answer<c_uint> {
    let fans = &device.measured(Measurement::Fans)?.fan_speed_ratios;
    fans.get(fan as usize).map(|ratio| percent(*ratio)).ok_or(INVALID_ARGUMENT)
}

fn ecc_errors(device: &Device, error_type: c_uint, counter_type: c_uint) -> Answer<u64> {
    if counter_type >= nvml::nvmlEccCounterType_enum_NVML_ECC_COUNTER_TYPE_COUNT {
        return Err(INVALID_ARGUMENT);
    }
    if !device.gpu().supports(Measurement::Ecc, false) {
        return Err(NOT_SUPPORTED);
    }
    let (corrected, uncorrected) = device.gpu().device().ecc_errors.ok_or(NOT_SUPPORTED)?;
    match error_type {
        nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED => Ok(corrected),
        nvml::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED => Ok(uncorrected),
        _ => Err(INVALID_ARGUMENT),
    }
}

calls! { device:
    fn nvmlDeviceGetMemoryInfo(device, out: Out<'_, nvmlMemory_t>) {
        let memory = device.memory()?;
        // This older call counts the driver's reserved memory as used.
        let used = memory.used_bytes + memory.reserved_bytes.unwrap_or(0);
        put(out, nvmlMemory_t {
            total: device.number(memory.total_bytes),
            free: device.number(memory.free_bytes),
            used: device.number(used),
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device, info: InOut<'_, nvmlMemory_v2_t>) {
        let info = info.ok_or(INVALID_ARGUMENT)?;
        let memory = device.memory()?;
        // The driver answers an unknown version as a missing function.
        if info.version != MEMORY_V2 || !device.supports(Measurement::MemoryReserved) {
            return Err(FUNCTION_NOT_FOUND);
        }
        info.total = device.number(memory.total_bytes);
        info.reserved = device.number(memory.reserved_bytes.unwrap_or(0));
        info.free = device.number(memory.free_bytes);
        info.used = device.number(memory.used_bytes);
        Ok(())
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device, out: Out<'_, nvmlBAR1Memory_t>) {
        // A server's GPU maps all of its memory, in a window whose size is a power of two.
        let window = device.memory()?.total_bytes.next_power_of_two();
        put(out, nvmlBAR1Memory_t { bar1Total: window, bar1Free: window, bar1Used: 0 })
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device, error_type: c_uint, counter_type: c_uint, location: c_uint, out: Out<'_, u64>,
    ) {
        // A scenario knows the errors of a whole GPU: they are put down to its device memory.
        let errors = ecc_errors(device, error_type, counter_type)?;
        let is_counted = device.mig().is_none() && location == DEVICE_MEMORY;
        put(out, if is_counted { errors } else { 0 })
    }
}

numbers! {
    nvmlDeviceGetPowerUsage(device, c_uint) => device.measured(Measurement::Power)?.power_milliwatts as c_uint;
    nvmlDeviceGetEnforcedPowerLimit(device, c_uint) => power_limit_milliwatts(device)?;
    nvmlDeviceGetPowerManagementLimit(device, c_uint) => power_limit_milliwatts(device)?;
    nvmlDeviceGetTotalEnergyConsumption(device, u64) => device.measured(Measurement::Energy)?.energy_millijoules;
    nvmlDeviceGetNumFans(device, c_uint) => device.measured(Measurement::Fans)?.fan_speed_ratios.len() as c_uint;
    // For a device without fans this older call returns "not supported", the newer one "no such fan".
    nvmlDeviceGetFanSpeed(device, c_uint) => fan_percent(device, 0).map_err(|_| NOT_SUPPORTED)?;
    nvmlDeviceGetCurrentClocksThrottleReasons(device, u64) => device.measured(Measurement::Throttled)?.throttle_reasons;
    nvmlDeviceGetCurrentClocksEventReasons(device, u64) => device.measured(Measurement::Throttled)?.throttle_reasons;
    nvmlDeviceGetSupportedClocksThrottleReasons(device, u64) => supported_throttle_reasons(device)?;
    nvmlDeviceGetPcieReplayCounter(device, c_uint) =>
        device.require(Measurement::PcieReplays).map(|()| device.gpu().device().pcie_replays)?;
}

calls! { gpu:
    fn nvmlDeviceGetUtilizationRates(device, out: Out<'_, nvmlUtilization_t>) {
        let measured = device.measured(Measurement::Utilization)?;
        put(out, nvmlUtilization_t {
            gpu: device.number(percent(measured.utilization_ratio)),
            memory: device.number(percent(measured.memory_controller_busy_ratio)),
        })
    }

    fn nvmlDeviceGetEncoderUtilization(device, out: Out<'_, c_uint>, period: Out<'_, c_uint>) {
        device.put(out, percent(device.measured(Measurement::Encoder)?.encoder_utilization_ratio))?;
        put(period, SAMPLE_PERIOD_MICROSECONDS)
    }

    fn nvmlDeviceGetDecoderUtilization(device, out: Out<'_, c_uint>, period: Out<'_, c_uint>) {
        device.put(out, percent(device.measured(Measurement::Decoder)?.decoder_utilization_ratio))?;
        put(period, SAMPLE_PERIOD_MICROSECONDS)
    }

    fn nvmlDeviceGetTemperature(device, sensor: c_uint, out: Out<'_, c_uint>) {
        if sensor != nvml::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return Err(INVALID_ARGUMENT);
        }
        device.put(out, device.measured(Measurement::Temperature)?.temperature_celsius as i32 as c_uint)
    }

    fn nvmlDeviceGetTemperatureThreshold(device, threshold: c_uint, out: Out<'_, c_uint>) {
        let name = match threshold {
            nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN => "shutdown",
            nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN => "slowdown",
            nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX => "memory_max",
            nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_GPU_MAX => "gpu_max",
            nvml::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_COUNT.. => return Err(INVALID_ARGUMENT),
            _ => return Err(NOT_SUPPORTED),
        };
        device.require(Measurement::TemperatureLimits)?;
        device.put(out, device.gpu().device().temperature_limits_celsius.get(name).copied().ok_or(NOT_SUPPORTED)?)
    }

    fn nvmlDeviceGetClockInfo(device, clock: c_uint, megahertz: Out<'_, c_uint>) {
        device.put(megahertz, clock_megahertz(device, clock)?)
    }

    fn nvmlDeviceGetClock(device, clock: c_uint, id: c_uint, megahertz: Out<'_, c_uint>) {
        match id {
            nvml::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => device.put(megahertz, clock_megahertz(device, clock)?),
            nvml::nvmlClockId_enum_NVML_CLOCK_ID_COUNT.. => Err(INVALID_ARGUMENT),
            _ => Err(NOT_SUPPORTED),
        }
    }

    fn nvmlDeviceGetFanSpeed_v2(device, fan: c_uint, out: Out<'_, c_uint>) {
        device.put(out, fan_percent(device, fan)?)
    }

    fn nvmlDeviceGetTotalEccErrors(device, error_type: c_uint, counter_type: c_uint, out: Out<'_, u64>) {
        device.put(out, ecc_errors(device, error_type, counter_type)?)
    }
}
