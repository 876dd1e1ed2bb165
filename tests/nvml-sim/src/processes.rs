//! The processes of a device: NVML's three lists in their three layouts, and utilization by process.
//!
//! As real drivers do, a GPU that is split into MIG devices lists the processes of all of them with the ids of their
//! instances, a MIG device lists its own, and neither reports utilization by process.

use std::convert::identity;
use std::ffi::c_uint;

use genv_core::model::ProcessType;
use genv_simulator::{DeviceProcess, Measurement, WrongAnswer, percent};
use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
};

use crate::abi::{Answer, InOut, calls, put_list};
use crate::device::Device;

/// How often processes are sampled, and how many samples are kept: as driver 580 does with an H200. NVML says
/// between 1/6 s and 1 s, depending on the product.
const SAMPLE_PERIOD_MICROSECONDS: u64 = 200_000;
const SAMPLES_KEPT: usize = 72;

/// NVML's `NVML_VALUE_NOT_AVAILABLE` as it appears in a memory field.
const MEMORY_NOT_AVAILABLE: u64 = u64::MAX;

fn compute(kind: ProcessType) -> bool {
    kind != ProcessType::Graphics
}

fn graphics(kind: ProcessType) -> bool {
    kind != ProcessType::Compute
}

/// A scenario has no clients of the multi-process service.
fn mps(_: ProcessType) -> bool {
    false
}

fn v1(entry: nvmlProcessInfo_v2_t) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: entry.pid, usedGpuMemory: entry.usedGpuMemory }
}

/// The listed processes of `device`; of a GPU that is split, those of its parts.
pub(crate) fn entries(device: &Device, listed: fn(ProcessType) -> bool) -> Answer<Vec<nvmlProcessInfo_v2_t>> {
    let tells_memory = device.supports(Measurement::ProcessMemory);
    let entry = |process: &DeviceProcess| {
        let (gpuInstanceId, computeInstanceId) = device.instances(process.index);
        let used = if tells_memory { process.memory_used_bytes } else { MEMORY_NOT_AVAILABLE };
        nvmlProcessInfo_v2_t { pid: process.pid, usedGpuMemory: device.number(used), gpuInstanceId, computeInstanceId }
    };
    Ok(device.processes()?.filter(|process| listed(process.process_type)).map(entry).collect())
}

/// Answers one of NVML's process lists in a layout.
fn put_entries<T: Copy>(
    device: &Device,
    listed: fn(ProcessType) -> bool,
    layout: fn(nvmlProcessInfo_v2_t) -> T,
    count: InOut<'_, c_uint>,
    buffer: *mut T,
) -> Answer {
    let items: Vec<T> = entries(device, listed)?.into_iter().map(layout).collect();
    let count = count.ok_or(INVALID_ARGUMENT)?;
    if let Some(WrongAnswer::Count(wrong)) = device.wrong() {
        *count = wrong;
        return Ok(());
    }
    // More processes may have come since the caller asked for the number, so that its buffer is too small again.
    let needed = items.len() as c_uint + device.moment().at().more_processes_between_calls();
    if *count > 0 && *count < needed {
        *count = needed;
        return Err(INSUFFICIENT_SIZE);
    }
    put_list(Some(count), buffer, &items)
}

macro_rules! process_lists {
    ($($name:ident $listed:ident $layout:ident $entry:ty;)*) => {
        calls! { device: $(
            fn $name(device, count: InOut<'_, c_uint>, buffer: *mut $entry) {
                put_entries(device, $listed, $layout, count, buffer)
            }
        )*}
    };
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses compute v1 nvmlProcessInfo_v1_t;
    nvmlDeviceGetComputeRunningProcesses_v2 compute identity nvmlProcessInfo_v2_t;
    nvmlDeviceGetComputeRunningProcesses_v3 compute identity nvmlProcessInfo_v2_t;
    nvmlDeviceGetGraphicsRunningProcesses graphics v1 nvmlProcessInfo_v1_t;
    nvmlDeviceGetGraphicsRunningProcesses_v2 graphics identity nvmlProcessInfo_v2_t;
    nvmlDeviceGetGraphicsRunningProcesses_v3 graphics identity nvmlProcessInfo_v2_t;
    nvmlDeviceGetMPSComputeRunningProcesses mps v1 nvmlProcessInfo_v1_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 mps identity nvmlProcessInfo_v2_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 mps identity nvmlProcessInfo_v2_t;
}

calls! { gpu:
    fn nvmlDeviceGetProcessUtilization(
        device, buffer: *mut nvmlProcessUtilizationSample_t, count: InOut<'_, c_uint>, last_seen: u64
    ) {
        device.require(Measurement::ProcessUtilization)?;
        let now = device.moment().unix_microseconds();
        let sampled = now - now % SAMPLE_PERIOD_MICROSECONDS;
        let ran = |process: &&DeviceProcess| sampled > last_seen && percent(process.utilization_ratio) > 0;
        let active: Vec<_> = device.processes()?.filter(ran).collect();
        let count = count.ok_or(INVALID_ARGUMENT)?;
        if let Some(WrongAnswer::Count(wrong)) = device.wrong() {
            *count = wrong;
            return Ok(());
        }
        // Room is wanted for all that is kept, however few processes ran.
        let wanted = active.len().max(SAMPLES_KEPT) as c_uint;
        if *count < wanted {
            *count = wanted;
            return Err(INSUFFICIENT_SIZE);
        }
        if active.is_empty() {
            return Err(NOT_FOUND);
        }
        let samples: Vec<_> = active.iter().map(|process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: sampled,
            smUtil: device.number(percent(process.utilization_ratio)),
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        }).collect();
        put_list(Some(count), buffer, &samples)
    }
}
