//! The library itself: beginning and end of its use, versions, and how devices are found.

use std::ffi::{CStr, c_char, c_int, c_uint};

use genv_core::model::DeviceIndex;
use genv_simulator::WrongAnswer;
use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_t,
};

use crate::abi::{Answer, Out, calls, put, put_text, put_text_or, text};
use crate::device::Handle;
use crate::driver::{self, Moment};
use crate::identity::PciAddress;

/// The name of a process: the scenario's, else the machine's for a real one.
pub(crate) fn process_name(moment: &Moment, pid: c_uint) -> Answer<String> {
    let process = moment.at().process(pid);
    if let Some(facts) = process.and_then(|process| process.process.facts.as_ref()) {
        return Ok(facts.comm.clone());
    }
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
    let program = command_line.split(|byte| *byte == 0).next().unwrap_or_default();
    if program.is_empty() {
        return Err(NOT_FOUND);
    }
    Ok(String::from_utf8_lossy(program).into_owned())
}

pub(crate) fn handle_by_index(moment: &Moment, index: c_uint) -> Answer<Handle> {
    moment.at().device(index).ok_or(INVALID_ARGUMENT)?;
    Ok(Handle::of(DeviceIndex::gpu(index)))
}

/// The handle of the whole GPU or MIG device with this UUID.
fn handle_by_uuid(moment: &Moment, uuid: &str) -> Answer<Handle> {
    for gpu in &moment.host().devices {
        if gpu.uuid == uuid {
            return Ok(Handle::of(DeviceIndex::gpu(gpu.index)));
        }
        if let Some(mig) = (0..=u8::MAX).zip(&gpu.mig).find_map(|(index, mig)| (mig.uuid == uuid).then_some(index)) {
            return Ok(Handle::of(DeviceIndex::mig(gpu.index, mig)));
        }
    }
    Err(NOT_FOUND)
}

calls! { free:
    fn nvmlInit() also nvmlInit_v2 {
        driver::initialise("nvmlInit_v2")
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        driver::initialise("nvmlInitWithFlags")
    }

    fn nvmlShutdown() {
        driver::shut_down()
    }
}

calls! { host:
    fn nvmlSystemGetDriverVersion(moment, buffer: *mut c_char, length: c_uint) {
        let wrong = moment.at().wrong("nvmlSystemGetDriverVersion");
        put_text_or(wrong, buffer, length, &moment.host().driver_version)
    }

    fn nvmlSystemGetNVMLVersion(moment, buffer: *mut c_char, length: c_uint) {
        let (cuda_major, _) = moment.host().cuda_version;
        put_text(buffer, length, &format!("{cuda_major}.{}", moment.host().driver_version))
    }

    fn nvmlSystemGetCudaDriverVersion(moment, out: Out<'_, c_int>) also nvmlSystemGetCudaDriverVersion_v2 {
        // NVML's form: 12.4 is 12040.
        let (major, minor) = moment.host().cuda_version;
        put(out, (major * 1000 + minor * 10) as c_int)
    }

    fn nvmlSystemGetProcessName(moment, pid: c_uint, buffer: *mut c_char, length: c_uint) {
        put_text(buffer, length, &process_name(moment, pid)?)
    }

    fn nvmlDeviceGetCount(moment, out: Out<'_, c_uint>) also nvmlDeviceGetCount_v2 {
        put(out, match moment.at().wrong("nvmlDeviceGetCount_v2") {
            Some(WrongAnswer::Number(number)) => number as c_uint,
            _ => moment.host().devices.len() as c_uint,
        })
    }

    fn nvmlDeviceGetHandleByIndex(moment, index: c_uint, out: Out<'_, Handle>) also nvmlDeviceGetHandleByIndex_v2 {
        put(out, handle_by_index(moment, index)?)
    }

    fn nvmlDeviceGetHandleByUUID(moment, uuid: *const c_char, out: Out<'_, Handle>) {
        put(out, handle_by_uuid(moment, text(uuid)?)?)
    }

    fn nvmlDeviceGetHandleBySerial(_moment, _serial: *const c_char, _out: Out<'_, Handle>) {
        // No device of a scenario has a serial number.
        Err(NOT_FOUND)
    }

    fn nvmlDeviceGetHandleByPciBusId(moment, bus_id: *const c_char, out: Out<'_, Handle>)
        also nvmlDeviceGetHandleByPciBusId_v2
    {
        let wanted = PciAddress::parse(text(bus_id)?).ok_or(INVALID_ARGUMENT)?;
        let mut gpus = moment.host().devices.iter();
        let gpu = gpus.find(|gpu| PciAddress::parse(&gpu.pci_bus_id) == Some(wanted)).ok_or(NOT_FOUND)?;
        put(out, Handle::of(DeviceIndex::gpu(gpu.index)))
    }

    fn nvmlUnitGetCount(_moment, out: Out<'_, c_uint>) {
        put(out, 0)
    }
}

/// NVML's words for a return code.
const fn error_text(code: nvmlReturn_t) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        9 => c"Driver Not Loaded",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    error_text(code).as_ptr()
}
