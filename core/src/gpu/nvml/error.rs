//! The meaning of an NVML error: for one value, for the device, or for the driver.

use nvml_wrapper::error::NvmlError;

use super::session::INIT;
use crate::gpu::GpuError;
use crate::gpu::current_call::{self, CallOf};
use crate::model::{DeviceIndex, Withheld};

/// Why the read of a device was aborted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// This device no longer answers, by this call and its error; other devices may.
    Lost(String),
    /// No device answers: the driver is gone, or another one has taken its place.
    Driver(GpuError),
}

impl Failure {
    pub(super) fn lost(call: &str, error: &NvmlError) -> Self {
        Self::Lost(format!("{call}: {error}"))
    }
}

/// The calls of one sample, which note each value that a call failed to give.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The device of the next calls; absent for calls about the driver.
    pub(super) device: Option<DeviceIndex>,
    pub(super) withheld: Vec<Withheld>,
}

impl Calls {
    /// Calls the driver.
    pub(super) fn ask<T>(&self, call: &'static str, driver: impl FnOnce() -> T) -> T {
        current_call::during(CallOf::Sweep, call, self.device.map(|device| device.gpu), driver)
    }

    /// Calls the driver for a value, which is absent if the device cannot give it now.
    pub(super) fn optional<T>(
        &mut self,
        call: &'static str,
        driver: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Option<T>, Failure> {
        match answered(call, self.ask(call, driver))? {
            Ok(value) => Ok(Some(value)),
            Err(error) => {
                if !is_unsupported(&error) {
                    self.note(call, error.to_string());
                }
                Ok(None)
            }
        }
    }

    /// As [`Calls::optional`] for a call that `value` depends on, and distinguishes an unsupported call from a failed
    /// one.
    pub(super) fn call_result<T>(
        &mut self,
        value: &'static str,
        call: &'static str,
        driver: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<CallResult<T>, Failure> {
        Ok(match answered(call, self.ask(call, driver))? {
            Ok(answer) => CallResult::Value(answer),
            Err(NvmlError::NotSupported) => CallResult::NotSupported,
            Err(error) => {
                self.note(value, format!("{call}: {error}"));
                CallResult::Failed
            }
        })
    }

    /// Notes a value that the device does not give.
    pub(super) fn note(&mut self, value: &'static str, error: String) {
        let value = value.to_owned();
        Withheld { device: self.device, value, error }.add_to(&mut self.withheld);
    }
}

/// The answer of one call, if the device and its driver still answer.
fn answered<T>(call: &'static str, answer: Result<T, NvmlError>) -> Result<Result<T, NvmlError>, Failure> {
    match answer {
        Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) => Err(Failure::lost(call, &error)),
        Err(error) if is_driver_gone(&error) => Err(Failure::Driver(driver_error(call, &error))),
        answer => Ok(answer),
    }
}

/// Whether the device, its driver or the library does not have the value at all, now and later.
pub(super) const fn is_unsupported(error: &NvmlError) -> bool {
    matches!(error, NvmlError::NotSupported | NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_))
}

/// The result of one call whose kind of failure matters.
pub(super) enum CallResult<T> {
    Value(T),
    /// The device or the library does not support the call.
    NotSupported,
    /// The call is supported and failed.
    Failed,
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
        other => driver_error(INIT, other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_costs_one_value_which_is_named_unless_the_device_does_not_have_it() {
        for (error, is_named) in [
            (NvmlError::NotSupported, false),
            (NvmlError::FunctionNotFound, false),
            (NvmlError::FailedToLoadSymbol("nvmlDeviceGetNumFans".to_owned()), false),
            (NvmlError::InvalidArg, true),
            (NvmlError::NoPermission, true),
            (NvmlError::NotFound, true),
            (NvmlError::NoData, true),
            (NvmlError::Timeout, true),
            (NvmlError::Unknown, true),
            (NvmlError::LibraryNotFound, true),
            (NvmlError::UnexpectedVariant(28), true),
        ] {
            let text = error.to_string();
            let mut calls = Calls { device: Some(DeviceIndex::gpu(3)), ..Calls::default() };
            assert_eq!(calls.optional::<u32>("nvmlDeviceGetNumFans", || Err(error)), Ok(None));
            let named = Withheld::of(DeviceIndex::gpu(3), "nvmlDeviceGetNumFans", text);
            assert_eq!(calls.withheld, Vec::from_iter(is_named.then_some(named)));
        }
        // A call that fails for two fans is one value.
        let mut calls = Calls::default();
        for error in [NvmlError::Unknown, NvmlError::NoData] {
            assert_eq!(calls.optional::<u32>("nvmlDeviceGetFanSpeed_v2", || Err(error)), Ok(None));
        }
        assert_eq!(calls.withheld.len(), 1);
    }

    #[test]
    fn a_lost_device_and_a_lost_driver_are_different_failures() {
        for error in [NvmlError::GpuLost, NvmlError::ResetRequired] {
            let why = format!("nvmlDeviceGetUUID: {error}");
            assert_eq!(Calls::default().optional::<u32>("nvmlDeviceGetUUID", || Err(error)), Err(Failure::Lost(why)));
        }
        for error in [NvmlError::Uninitialized, NvmlError::DriverNotLoaded, NvmlError::LibRmVersionMismatch] {
            assert!(matches!(
                Calls::default().optional::<u32>("nvmlDeviceGetUUID", || Err(error)),
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
