//! The undocumented table of functions without which nvidia-smi finds no device.
//!
//! NVIDIA does not document its slots. The few that nvidia-smi of drivers 470 to 550 needs were found by
//! observing its use of the results.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::LazyLock;

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};

use crate::abi::{Answer, Out, answer, calls, fixed_text, put, put_list};
use crate::device::Handle;
use crate::driver;
use crate::library::{handle_by_index, process_name};
use crate::processes::entries;

/// The table that nvidia-smi requests; the first three fields of its id are little-endian.
const TABLE_ID: [u8; 16] =
    [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];

/// The table's size in bytes: more than any version looks for.
const TABLE_BYTES: usize = 0x1000;

/// The signature of every slot; the words beyond a function's parameters are ignored.
type Slot = extern "C" fn(usize, usize, usize, usize) -> nvmlReturn_t;

/// Its size in bytes, and a function in every other word.
static TABLE: LazyLock<Box<[usize]>> = LazyLock::new(|| {
    let slot = |word| -> Slot {
        match word {
            81 => device_by_index,
            213..=215 => process_list,
            230 => max_pcie_generation,
            _ => other,
        }
    };
    let words = TABLE_BYTES / size_of::<usize>();
    std::iter::once(TABLE_BYTES).chain((1..words).map(|word| slot(word) as usize)).collect()
});

#[derive(Clone, Copy)]
#[repr(C)]
struct ProcessEntry {
    pid: c_uint,
    unknown: c_uint,
    memory_used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
    memory_protected_bytes: u64,
    name: [c_char; 4096],
}

const _: () = assert!(size_of::<ProcessEntry>() == 4128);

extern "C" fn device_by_index(index: usize, out: usize, _: usize, _: usize) -> nvmlReturn_t {
    answer(|| put(pointer(out), handle_by_index(&*driver::host("nvmlDeviceGetHandleByIndex_v2")?, index as c_uint)?))
}

extern "C" fn process_list(device: usize, count: usize, array: usize, _: usize) -> nvmlReturn_t {
    answer(|| {
        let device = driver::device("nvmlDeviceGetComputeRunningProcesses", Handle::from_word(device))?;
        // SAFETY: the slot is called with a null or valid pointer in that place.
        let count = unsafe { (count as *mut c_uint).as_mut() }.ok_or(INVALID_ARGUMENT)?;
        let mut rows: Vec<ProcessEntry> = entries(&device, |_| true)?
            .iter()
            .map(|entry| ProcessEntry {
                pid: entry.pid,
                unknown: 0,
                memory_used_bytes: entry.usedGpuMemory,
                gpu_instance: entry.gpuInstanceId,
                compute_instance: entry.computeInstanceId,
                memory_protected_bytes: 0,
                name: fixed_text(&process_name(device.moment(), entry.pid).unwrap_or_default()),
            })
            .collect();
        // Unlike the public lists, these are cut to the capacity.
        rows.truncate(*count as usize);
        put_list(Some(count), array as *mut ProcessEntry, &rows)
    })
}

extern "C" fn max_pcie_generation(_: usize, out: usize, _: usize, _: usize) -> nvmlReturn_t {
    answer(|| put(pointer::<c_uint>(out), 4))
}

/// An unknown slot. A capacity that stays as it was is read as that many entries, so what looks like an output
/// beside a device is set to none.
extern "C" fn other(first: usize, second: usize, _: usize, _: usize) -> nvmlReturn_t {
    answer(|| {
        if Handle::from_word(first).index().is_some() && second > u32::MAX as usize {
            put(pointer::<c_uint>(second), 0)?;
        }
        Ok(())
    })
}

fn pointer<'a, T>(word: usize) -> Out<'a, T> {
    // SAFETY: the slots that call this are called with a null or writable pointer in that place.
    unsafe { (word as *mut std::mem::MaybeUninit<T>).as_mut() }
}

fn table(id: Option<&[u8; 16]>) -> Answer<*const c_void> {
    if id.ok_or(INVALID_ARGUMENT)? == &TABLE_ID { Ok(TABLE.as_ptr().cast()) } else { Err(NOT_SUPPORTED) }
}

calls! { free:
    fn nvmlInternalGetExportTable(out: Out<'_, *const c_void>, id: Option<&[u8; 16]>) {
        put(out, table(id)?)
    }
}
