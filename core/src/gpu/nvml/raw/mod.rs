//! The NVML calls that `nvml-wrapper` does not offer in a usable form, and its device handles: all `unsafe` code of the
//! NVML source.

mod text;

use std::path::Path;
use std::sync::Arc;

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlMemory_t, nvmlProcessUtilizationSample_t, nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, nvmlReturn_enum_NVML_SUCCESS, nvmlReturn_t,
};

pub(super) use text::{driver_version, name, uuid};

use crate::model::DeviceMemory;

/// `usedGpuMemory` of a process whose memory the driver does not know: all bits set.
const VALUE_NOT_AVAILABLE: u64 = u64::MAX;

/// The first and the largest capacity of a buffer, in entries. The largest is far more than the number of processes
/// that can have a context on one device, so that a wrong count does not exhaust memory.
const FIRST_CAPACITY: usize = 128;
const LARGEST_CAPACITY: usize = 1 << 16;

/// The number of calls in one sweep for a list that outgrows its buffer.
const ATTEMPTS: usize = 4;

/// Loads the library and unloads it again, without a call into it.
pub(super) fn load(library: &Path) -> Result<(), NvmlError> {
    // SAFETY: the initializers of an NVML library prepare it and do nothing else.
    let library = unsafe { NvmlLib::new(library.as_os_str()) }?;
    drop(library);
    Ok(())
}

/// A whole GPU's handle that keeps its library initialized.
#[derive(Clone)]
pub(super) struct DeviceHandle {
    nvml: Arc<Nvml>,
    device: nvmlDevice_t,
}

// SAFETY: NVML is thread-safe, and a handle is a token that every thread of the process may use.
unsafe impl Send for DeviceHandle {}

impl DeviceHandle {
    /// `nvmlDeviceGetHandleByIndex_v2`.
    pub(super) fn by_index(nvml: &Arc<Nvml>, index: u32) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        Ok(Self {
            // SAFETY: the handle is only used while `nvml`, which gave it, is initialized.
            device: unsafe { device.handle() },
            nvml: Arc::clone(nvml),
        })
    }

    /// The device that the handle stands for.
    pub(super) fn device(&self) -> Device<'_> {
        // SAFETY: the handle came from this `nvml`, which is initialized as long as `self` lives.
        unsafe { Device::new(self.device, &self.nvml) }
    }

    /// Whether `device` has the same handle.
    pub(super) fn is(&self, device: &Device<'_>) -> bool {
        // SAFETY: the handle is compared, not used.
        unsafe { device.handle() == self.device }
    }
}

/// `nvmlDeviceGetMemoryInfo`, for drivers before 510, which have no second version: `used` includes the reserved
/// memory.
pub(super) fn memory_info_v1(device: &Device<'_>) -> Result<DeviceMemory, NvmlError> {
    let Ok(call) = device.nvml().lib().nvmlDeviceGetMemoryInfo.as_ref() else {
        return Err(NvmlError::FunctionNotFound);
    };
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: the handle is valid while `device` lives, and NVML writes one nvmlMemory_t.
    nvml_try(unsafe { call(device.handle(), &raw mut memory) })?;
    Ok(DeviceMemory {
        total_bytes: memory.total,
        used_bytes: memory.used,
        free_bytes: memory.free,
        reserved_bytes: None,
    })
}

/// `nvmlDeviceGetGpuInstanceId` and `nvmlDeviceGetComputeInstanceId` of a MIG device.
pub(super) fn instances(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let lib = device.nvml().lib();
    let (Ok(gpu_instance), Ok(compute_instance)) =
        (lib.nvmlDeviceGetGpuInstanceId.as_ref(), lib.nvmlDeviceGetComputeInstanceId.as_ref())
    else {
        return Err(NvmlError::FunctionNotFound);
    };
    let mut ids = (0, 0);
    // SAFETY: the handle is valid while `device` lives, and each call writes one unsigned int.
    unsafe {
        nvml_try(gpu_instance(device.handle(), &raw mut ids.0))?;
        nvml_try(compute_instance(device.handle(), &raw mut ids.1))?;
    }
    Ok(ids)
}

/// Which running processes to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessList {
    /// `nvmlDeviceGetComputeRunningProcesses`.
    Compute,
    /// `nvmlDeviceGetMPSComputeRunningProcesses`: clients of the Multi-Process Service.
    MpsCompute,
    /// `nvmlDeviceGetGraphicsRunningProcesses`.
    Graphics,
}

/// One process of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunningProcess {
    /// Process id.
    pub(super) pid: u32,
    /// `usedGpuMemory`, if the driver knows it.
    pub(super) memory_used_bytes: Option<u64>,
}

/// Room for a process list, kept from call to call.
///
/// The wrapper reads the exact size first. Its list is empty if a process starts between the two calls, or if the
/// driver answers the first call with success.
pub(super) struct ProcessBuffer {
    words: Vec<u64>,
    v3_entry_words: usize,
}

/// `u64` words of the largest entry that any driver writes.
const LARGEST_ENTRY_WORDS: usize = 4;

impl ProcessBuffer {
    /// A buffer for the entries of this driver.
    ///
    /// The `_v3` calls write the second version's structure (pid, memory, two instance ids), but the
    /// first drivers of the 535 branch appended a field to it without a new version
    /// (<https://github.com/wookayin/gpustat/issues/161>). Room is always made for the larger one.
    pub(super) fn new(driver_version: &str) -> Self {
        let appended = ["535.43.", "535.54.", "535.86."];
        let has_appended = appended.iter().any(|it| driver_version.starts_with(it));
        Self {
            words: vec![0; FIRST_CAPACITY * LARGEST_ENTRY_WORDS],
            v3_entry_words: if has_appended { LARGEST_ENTRY_WORDS } else { 3 },
        }
    }

    /// Lists the processes on a device with the newest version of the call that the library has.
    ///
    /// # Errors
    /// NVML's; `InsufficientSize` if the list kept growing or claims more entries than there was room for;
    /// `NotSupported` if the library has no version of the call.
    pub(super) fn list(
        &mut self,
        device: &Device<'_>,
        list: ProcessList,
    ) -> Result<impl Iterator<Item = RunningProcess> + '_, NvmlError> {
        let versions = [self.v3_entry_words, 3, 2];
        let mut missing = NvmlError::NotSupported;
        for (entry_words, version) in versions.into_iter().zip([3, 2, 1]) {
            let mut exists = true;
            let answer = self.fill(|count, entries| {
                call_list(device, list, version, count, entries).unwrap_or_else(|| {
                    exists = false;
                    nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
                })
            });
            match answer {
                Err(NvmlError::FunctionNotFound) if exists => missing = NvmlError::FunctionNotFound,
                Err(NvmlError::FunctionNotFound) => {}
                Err(error) => return Err(error),
                Ok(count) => return Ok(self.entries(entry_words, count)),
            }
        }
        Err(missing)
    }

    /// The first entries, of `entry_words` words each: pid in the first four bytes, memory in the second word.
    pub(super) fn entries(&self, entry_words: usize, count: usize) -> impl Iterator<Item = RunningProcess> + '_ {
        let entries = self.words.chunks_exact(entry_words).take(count);
        entries.map(|entry| RunningProcess {
            pid: nvml_u32(entry[0]),
            memory_used_bytes: (entry[1] != VALUE_NOT_AVAILABLE).then_some(entry[1]),
        })
    }

    /// Calls until the buffer is large enough. Returns the number of written entries.
    pub(super) fn fill(
        &mut self,
        mut call: impl FnMut(&mut u32, &mut [u64]) -> nvmlReturn_t,
    ) -> Result<usize, NvmlError> {
        for _ in 0..ATTEMPTS {
            // A counted entry that the driver did not write must not show a process of an earlier call.
            self.words.fill(0);
            let capacity = self.words.len() / LARGEST_ENTRY_WORDS;
            let mut count = u32::try_from(capacity).unwrap_or(u32::MAX);
            let code = call(&mut count, &mut self.words);
            if code == nvmlReturn_enum_NVML_SUCCESS {
                return within(count, capacity);
            }
            let Some(larger) = larger_capacity(code, capacity, count) else {
                return Err(code.into());
            };
            self.words.resize(larger * LARGEST_ENTRY_WORDS, 0);
        }
        Err(NvmlError::InsufficientSize(None))
    }
}

/// The number of written entries. A count beyond the capacity is an error.
fn within(count: u32, capacity: usize) -> Result<usize, NvmlError> {
    let count = count as usize;
    (count <= capacity).then_some(count).ok_or(NvmlError::InsufficientSize(None))
}

/// The capacity to try next; none if the code is not about the size, or the buffer has the largest capacity.
fn larger_capacity(code: nvmlReturn_t, capacity: usize, needed: u32) -> Option<usize> {
    if code != nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE || capacity >= LARGEST_CAPACITY {
        return None;
    }
    // A quarter more than needed now, since processes may start before the next call.
    let needed = needed as usize;
    let wanted = needed.saturating_add(needed / 4).max(capacity * 2);
    Some(wanted.min(LARGEST_CAPACITY))
}

/// The `unsigned int` in the first bytes of a word; the rest is padding.
fn nvml_u32(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Calls one version of one of the three calls; none if the library lacks it.
fn call_list(
    device: &Device<'_>,
    list: ProcessList,
    version: u8,
    count: &mut u32,
    buffer: &mut [u64],
) -> Option<nvmlReturn_t> {
    let lib = device.nvml().lib();
    macro_rules! call {
        ($symbol:ident) => {{
            let call = lib.$symbol.as_ref().ok()?;
            // SAFETY: the handle is valid while `device` lives. NVML writes at most `count` entries;
            // the buffer has room for that many of the largest, and its words align all fields.
            Some(unsafe { call(device.handle(), count, buffer.as_mut_ptr().cast()) })
        }};
    }
    match (list, version) {
        (ProcessList::Compute, 3) => call!(nvmlDeviceGetComputeRunningProcesses_v3),
        (ProcessList::Compute, 2) => call!(nvmlDeviceGetComputeRunningProcesses_v2),
        (ProcessList::Compute, _) => call!(nvmlDeviceGetComputeRunningProcesses),
        (ProcessList::MpsCompute, 3) => call!(nvmlDeviceGetMPSComputeRunningProcesses_v3),
        (ProcessList::MpsCompute, 2) => call!(nvmlDeviceGetMPSComputeRunningProcesses_v2),
        (ProcessList::MpsCompute, _) => call!(nvmlDeviceGetMPSComputeRunningProcesses),
        (ProcessList::Graphics, 3) => call!(nvmlDeviceGetGraphicsRunningProcesses_v3),
        (ProcessList::Graphics, 2) => call!(nvmlDeviceGetGraphicsRunningProcesses_v2),
        (ProcessList::Graphics, _) => call!(nvmlDeviceGetGraphicsRunningProcesses),
    }
}

/// Room for utilization samples, kept from call to call.
pub(super) struct UtilizationBuffer(Vec<nvmlProcessUtilizationSample_t>);

const NO_SAMPLE: nvmlProcessUtilizationSample_t =
    nvmlProcessUtilizationSample_t { pid: 0, timeStamp: 0, smUtil: 0, memUtil: 0, encUtil: 0, decUtil: 0 };

impl UtilizationBuffer {
    pub(super) fn new() -> Self {
        Self(vec![NO_SAMPLE; FIRST_CAPACITY])
    }

    /// `nvmlDeviceGetProcessUtilization`: samples since `last_seen_timestamp` (microseconds, 0: all
    /// that the driver keeps) of processes that had some use. None is an empty slice.
    ///
    /// # Errors
    /// NVML's, or `InsufficientSize` if there were more and more samples.
    pub(super) fn samples(
        &mut self,
        device: &Device<'_>,
        last_seen_timestamp: u64,
    ) -> Result<&mut [nvmlProcessUtilizationSample_t], NvmlError> {
        let lib = device.nvml().lib();
        let Ok(call) = lib.nvmlDeviceGetProcessUtilization.as_ref() else {
            return Err(NvmlError::FunctionNotFound);
        };
        for _ in 0..ATTEMPTS {
            self.0.fill(NO_SAMPLE);
            let capacity = self.0.len();
            let mut count = u32::try_from(capacity).unwrap_or(u32::MAX);
            // SAFETY: the handle is valid while `device` lives, and NVML writes at most `count`
            // samples, for which the buffer has room.
            let code = unsafe { call(device.handle(), self.0.as_mut_ptr(), &raw mut count, last_seen_timestamp) };
            if code == nvmlReturn_enum_NVML_SUCCESS {
                return Ok(&mut self.0[..within(count, capacity)?]);
            }
            let Some(larger) = larger_capacity(code, capacity, count) else {
                return match code.into() {
                    NvmlError::NotFound => Ok(&mut []),
                    error => Err(error),
                };
            };
            self.0.resize(larger, NO_SAMPLE);
        }
        Err(NvmlError::InsufficientSize(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(buffer: &mut [u64], entry_words: usize, processes: &[(u64, u64)]) {
        for (entry, &(pid, memory)) in buffer.chunks_exact_mut(entry_words).zip(processes) {
            // Rest in the padding is not a part of the pid.
            entry[0] = pid | 0xdead_beef_0000_0000;
            entry[1] = memory;
        }
    }

    #[test]
    fn every_version_of_an_entry_is_understood() {
        for entry_words in [2, 3, 4] {
            let mut buffer = ProcessBuffer::new("550.163.01");
            write(&mut buffer.words, entry_words, &[(7, 1024), (8, u64::MAX)]);
            let read: Vec<_> = buffer.entries(entry_words, 2).collect();
            let process = |pid, memory_used_bytes| RunningProcess { pid, memory_used_bytes };
            assert_eq!(read, [process(7, Some(1024)), process(8, None)]);
        }
    }

    #[test]
    fn only_the_first_drivers_of_the_535_branch_append_a_field() {
        assert_eq!(ProcessBuffer::new("535.54.03").v3_entry_words, 4);
        assert_eq!(ProcessBuffer::new("535.104.05").v3_entry_words, 3);
        assert_eq!(ProcessBuffer::new("550.163.01").v3_entry_words, 3);
    }

    #[test]
    fn a_list_that_grows_between_two_calls_is_read_whole() {
        let mut buffer = ProcessBuffer::new("550.163.01");
        let mut running = 500;
        let mut calls = 0;
        let count = buffer.fill(|count, words| {
            calls += 1;
            running += 50;
            let room = *count;
            *count = running;
            if room < running {
                return nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
            }
            assert!(words.len() >= running as usize * LARGEST_ENTRY_WORDS);
            nvmlReturn_enum_NVML_SUCCESS
        });
        assert_eq!((count.unwrap(), calls), (600, 2));
        let kept = buffer.words.len();
        buffer.fill(|_, _| nvmlReturn_enum_NVML_SUCCESS).unwrap();
        assert_eq!(buffer.words.len(), kept);
    }

    #[test]
    fn a_list_that_always_grows_is_an_error_after_a_limited_number_of_calls() {
        let mut buffer = ProcessBuffer::new("550.163.01");
        let mut calls = 0;
        let count = buffer.fill(|count, _| {
            calls += 1;
            *count = u32::MAX;
            nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE
        });
        assert!(matches!(count, Err(NvmlError::InsufficientSize(_))));
        assert!(calls <= ATTEMPTS);
        assert_eq!(buffer.words.len(), LARGEST_CAPACITY * LARGEST_ENTRY_WORDS);
    }

    #[test]
    fn a_count_beyond_the_buffer_is_no_answer() {
        let mut buffer = ProcessBuffer::new("550.163.01");
        let count = buffer.fill(|count, _| {
            *count += 1;
            nvmlReturn_enum_NVML_SUCCESS
        });
        assert!(matches!(count, Err(NvmlError::InsufficientSize(_))));
    }
}
