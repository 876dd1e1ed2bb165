//! Texts of the driver: its version, and the names and UUIDs of devices.
//!
//! `nvml-wrapper` reads a buffer until its first NUL, even beyond its end. A text without a NUL, and an empty one, is no answer.

use std::ffi::{c_char, c_uint};

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// Characters of the longest text, its NUL included: `NVML_DEVICE_NAME_V2_BUFFER_SIZE` and
/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`; a driver's version needs 80.
const CAPACITY: usize = 96;

/// `nvmlSystemGetDriverVersion`.
pub(in super::super) fn driver_version(nvml: &Nvml) -> Result<String, NvmlError> {
    let Ok(call) = nvml.lib().nvmlSystemGetDriverVersion.as_ref() else {
        return Err(NvmlError::FunctionNotFound);
    };
    // SAFETY: NVML writes no more characters than there is room for.
    text(|buffer, capacity| unsafe { call(buffer, capacity) })
}

/// `nvmlDeviceGetName`.
pub(in super::super) fn name(device: &Device<'_>) -> Result<String, NvmlError> {
    let Ok(call) = device.nvml().lib().nvmlDeviceGetName.as_ref() else {
        return Err(NvmlError::FunctionNotFound);
    };
    // SAFETY: the handle is valid while `device` lives; NVML writes no more characters than there is room for.
    text(|buffer, capacity| unsafe { call(device.handle(), buffer, capacity) })
}

/// `nvmlDeviceGetUUID`.
pub(in super::super) fn uuid(device: &Device<'_>) -> Result<String, NvmlError> {
    let Ok(call) = device.nvml().lib().nvmlDeviceGetUUID.as_ref() else {
        return Err(NvmlError::FunctionNotFound);
    };
    // SAFETY: as above.
    text(|buffer, capacity| unsafe { call(device.handle(), buffer, capacity) })
}

fn text(call: impl FnOnce(*mut c_char, c_uint) -> nvmlReturn_t) -> Result<String, NvmlError> {
    let mut buffer = [0_u8; CAPACITY];
    nvml_try(call(buffer.as_mut_ptr().cast(), CAPACITY as c_uint))?;
    let length = buffer.iter().position(|byte| *byte == 0);
    match length {
        Some(0) | None => Err(NvmlError::NoData),
        Some(length) => Ok(std::str::from_utf8(&buffer[..length])?.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_SUCCESS as SUCCESS;

    use super::*;

    /// What is read of these bytes, behind which are NULs.
    fn read(bytes: &[u8]) -> Result<String, NvmlError> {
        text(|buffer, capacity| {
            assert!(bytes.len() <= capacity as usize);
            // SAFETY: the buffer has room for them.
            unsafe { buffer.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
            SUCCESS
        })
    }

    #[test]
    fn a_text_without_an_end_is_no_answer() {
        assert_eq!(read(b"580.95.05").unwrap(), "580.95.05");
        assert_eq!(read(&[b'x'; CAPACITY - 1]).unwrap().len(), CAPACITY - 1);
        assert!(matches!(read(&[b'x'; CAPACITY]), Err(NvmlError::NoData)));
        assert!(matches!(read(b""), Err(NvmlError::NoData)));
        assert!(matches!(read(b"a\xff"), Err(NvmlError::Utf8Error(_))));
    }
}
