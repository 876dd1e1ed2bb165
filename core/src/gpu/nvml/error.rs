//! The meaning of an NVML error: for one value, for the device, or for the driver.

use nvml_wrapper::error::NvmlError;

use crate::gpu::GpuError;

/// Why the read of a device was aborted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// This device no longer answers; other devices may.
    Lost,
    /// No device answers: the driver is gone, or another one has taken its place.
    Driver(GpuError),
}

/// The value of one call, absent if the device cannot give it now.
pub(super) fn optional<T>(call: &'static str, answer: Result<T, NvmlError>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::GpuLost | NvmlError::ResetRequired) => Err(Failure::Lost),
        Err(error) if is_driver_gone(&error) => Err(Failure::Driver(driver_error(call, &error))),
        Err(_) => Ok(None),
    }
}

/// The result of one call whose kind of failure matters.
pub(super) enum CallResult<T> {
    Value(T),
    /// The device or the library does not support the call.
    NotSupported,
    /// The call is supported and failed.
    Failed,
}

/// As [`optional`], and distinguishes an unsupported call from a failed one.
pub(super) fn call_result<T>(call: &'static str, answer: Result<T, NvmlError>) -> Result<CallResult<T>, Failure> {
    let not_supported = matches!(answer, Err(NvmlError::NotSupported));
    Ok(match optional(call, answer)? {
        Some(value) => CallResult::Value(value),
        None if not_supported => CallResult::NotSupported,
        None => CallResult::Failed,
    })
}

/// Whether the error concerns every device. `LibraryNotFound` and `FunctionNotFound` do not: a call may
/// need a library that is not installed, while all others work.
pub(super) const fn is_driver_gone(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch)
}

/// The driver as a whole failed to answer `call`.
pub(super) fn driver_error(call: &'static str, error: &NvmlError) -> GpuError {
    let remedy = match error {
        NvmlError::DriverNotLoaded => "; load it with 'modprobe nvidia'",
        NvmlError::LibRmVersionMismatch => {
            "; reload the NVIDIA kernel modules or reboot, so that they match the installed library"
        }
        NvmlError::NoPermission => "; let this user read and write /dev/nvidia*",
        NvmlError::LibraryNotFound => "; install the NVIDIA driver's libraries in the kernel modules' version",
        _ => "; see 'nvidia-smi' and the kernel log",
    };
    GpuError::Driver { call, reason: format!("{error}{remedy}") }
}

/// `nvmlInit_v2` failed, or never began because the library could not be used.
pub(super) fn init_error(library: &str, error: &NvmlError) -> GpuError {
    let not_loaded = |reason: String| GpuError::LibraryNotLoaded { library: library.to_owned(), reason };
    match error {
        NvmlError::LibloadingError(reason) => not_loaded(reason.to_string()),
        NvmlError::FailedToLoadSymbol(reason) => not_loaded(format!("it is not an NVML library ({reason})")),
        other => driver_error("nvmlInit_v2", other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_call_costs_one_value() {
        for error in [
            NvmlError::NotSupported,
            NvmlError::NoPermission,
            NvmlError::NotFound,
            NvmlError::NoData,
            NvmlError::Timeout,
            NvmlError::Unknown,
            NvmlError::FunctionNotFound,
            NvmlError::LibraryNotFound,
            NvmlError::FailedToLoadSymbol("nvmlDeviceGetNumFans".to_owned()),
            NvmlError::UnexpectedVariant(28),
        ] {
            assert_eq!(optional::<u32>("nvmlDeviceGetNumFans", Err(error)), Ok(None));
        }
    }

    #[test]
    fn a_lost_device_and_a_lost_driver_are_different_failures() {
        for error in [NvmlError::GpuLost, NvmlError::ResetRequired] {
            assert_eq!(optional::<u32>("nvmlDeviceGetUUID", Err(error)), Err(Failure::Lost));
        }
        for error in [NvmlError::Uninitialized, NvmlError::DriverNotLoaded, NvmlError::LibRmVersionMismatch] {
            assert!(matches!(
                optional::<u32>("nvmlDeviceGetUUID", Err(error)),
                Err(Failure::Driver(GpuError::Driver { call: "nvmlDeviceGetUUID", .. }))
            ));
        }
    }

    #[test]
    fn an_error_of_the_driver_has_a_remedy() {
        insta::assert_snapshot!(
            init_error("libnvidia-ml.so.1", &NvmlError::DriverNotLoaded),
            @"nvmlInit_v2 failed: NVIDIA driver is not loaded; load it with 'modprobe nvidia'"
        );
    }
}
