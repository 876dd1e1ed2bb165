//! The processes of a device: NVML's three lists in their three layouts, and utilization by process.
//!
//! As real drivers do, a GPU that is split into MIG devices lists the processes of all of them with the ids of their
//! instances, a MIG device lists its own, and neither reports utilization by process.

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

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) pid: c_uint,
    pub(crate) memory_used_bytes: u64,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

impl Entry {
    fn new(device: &Device, process: &DeviceProcess) -> Self {
        let (gpu_instance, compute_instance) = device.instances(process.index);
        let tells_memory = device.supports(Measurement::ProcessMemory);
        Self {
            pid: process.pid,
            memory_used_bytes: device.number(if tells_memory {
                process.memory_used_bytes
            } else {
                MEMORY_NOT_AVAILABLE
            }),
            gpu_instance,
            compute_instance,
        }
    }
}

impl From<&Entry> for nvmlProcessInfo_v1_t {
    fn from(entry: &Entry) -> Self {
        Self { pid: entry.pid, usedGpuMemory: entry.memory_used_bytes }
    }
}

impl From<&Entry> for nvmlProcessInfo_v2_t {
    fn from(entry: &Entry) -> Self {
        Self {
            pid: entry.pid,
            usedGpuMemory: entry.memory_used_bytes,
            gpuInstanceId: entry.gpu_instance,
            computeInstanceId: entry.compute_instance,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum List {
    Compute,
    Graphics,
    /// Clients of the multi-process service: a scenario has none.
    Mps,
    All,
}

impl List {
    fn holds(self, process_type: ProcessType) -> bool {
        match self {
            Self::Compute => process_type != ProcessType::Graphics,
            Self::Graphics => process_type != ProcessType::Compute,
            Self::Mps => false,
            Self::All => true,
        }
    }
}

/// The processes of `device` in `list`; of a GPU that is split, those of its parts.
pub(crate) fn entries(device: &Device, list: List) -> Answer<Vec<Entry>> {
    let listed = device.processes()?.filter(|process| list.holds(process.process_type));
    Ok(listed.map(|process| Entry::new(device, process)).collect())
}

/// Answers one of NVML's process lists in the layout `T`.
fn put_entries<T>(device: &Device, list: List, count: InOut<'_, c_uint>, buffer: *mut T) -> Answer
where
    T: Copy + for<'a> From<&'a Entry>,
{
    let items: Vec<T> = entries(device, list)?.iter().map(T::from).collect();
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
    ($($name:ident $list:ident $layout:ty;)*) => {
        calls! { device: $(
            fn $name(device, count: InOut<'_, c_uint>, buffer: *mut $layout) {
                put_entries(device, List::$list, count, buffer)
            }
        )*}
    };
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses Compute nvmlProcessInfo_v1_t;
    nvmlDeviceGetComputeRunningProcesses_v2 Compute nvmlProcessInfo_v2_t;
    nvmlDeviceGetComputeRunningProcesses_v3 Compute nvmlProcessInfo_v2_t;
    nvmlDeviceGetGraphicsRunningProcesses Graphics nvmlProcessInfo_v1_t;
    nvmlDeviceGetGraphicsRunningProcesses_v2 Graphics nvmlProcessInfo_v2_t;
    nvmlDeviceGetGraphicsRunningProcesses_v3 Graphics nvmlProcessInfo_v2_t;
    nvmlDeviceGetMPSComputeRunningProcesses Mps nvmlProcessInfo_v1_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 Mps nvmlProcessInfo_v2_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 Mps nvmlProcessInfo_v2_t;
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
