//! What NVML calls can answer wrongly, as faults of a scenario.

use std::fmt::Display;

/// Calls about one device, as they are named without a version.
const CALLS: &[&str] = &[
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetNumFans",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
];

/// Calls that answer with a text, and what may stand in its place.
const TEXTS: &[&str] = &["nvmlDeviceGetUUID", "nvmlDeviceGetName"];
const NO_TEXTS: &[&str] = &["empty", "not_utf8", "unterminated"];

/// Calls that answer with a list.
const LISTS: &[&str] = &[
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetProcessUtilization",
];

/// Errors that concern one device or one call: all but a lost device cost the same value (`core/src/gpu/nvml/error.rs`).
const ERRORS: &[&str] = &["unknown", "gpu_is_lost"];

/// Errors that mean more to a list: no such processes at all, no entry, another version, or more entries.
const OF_LISTS: &[&str] = &["not_supported", "not_found", "function_not_found", "insufficient_size"];

/// Numbers that no device measures: all bits set in each width, nearly so, and a little too much.
const NUMBERS: &[u64] = &[u64::MAX, u64::MAX - 1, 101];

const COUNTS: &[u32] = &[4_000_000_000, 129, 70_000];

/// Faults of the whole driver, except hanging calls.
const OF_THE_HOST: &[&str] = &[
    "{init: driver_not_loaded}, {reload: 1}",
    "{wrong: nvmlDeviceGetCount, error: unknown}",
    "{wrong: nvmlDeviceGetCount, error: uninitialized}",
    "{wrong: nvmlDeviceGetCount, number: 4000000000}",
    "{wrong: nvmlDeviceGetCount, number: 0}",
    "{wrong: nvmlDeviceGetHandleByIndex, error: unknown}, {reload: 2}",
    "{wrong: nvmlDeviceGetHandleByIndex, error: no_permission}, {reload: 3}",
    "{wrong: nvmlDeviceGetUtilizationRates, error: lib_rm_version_mismatch}",
    "{wrong: nvmlSystemGetDriverVersion, error: unknown}, {reload: 4}",
    "{wrong: nvmlSystemGetDriverVersion, text: unterminated}, {reload: 5}",
    "{wrong: nvmlEventSetCreate, error: unknown}, {reload: 6}",
    "{wrong: nvmlEventSetCreate, error: uninitialized}, {reload: 7}",
    "{wrong: nvmlDeviceRegisterEvents, error: unknown}, {reload: 8}",
    "{wrong: nvmlDeviceGetSupportedEventTypes, number: 18446744073709551615}, {reload: 9}",
    "{wrong: nvmlEventSetWait, error: gpu_is_lost}",
    "{wrong: nvmlEventSetWait, number: 18446744073709551615}",
    "{wrong: nvmlEventSetFree, error: unknown}, {reload: 10}",
];

/// Calls that hang: in a sweep, at its begin, in a new session, where XID errors are waited for, and all of them.
const HANGS: &[&str] = &[
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait",
    "nvmlEventSetFree",
    "all",
];

/// All faults of the whole driver. A hanging call blocks all other calls of its thread. The driver makes some calls in a
/// new session only.
pub(crate) fn of_the_host() -> Vec<String> {
    let hangs = HANGS.iter().zip(100..).map(|(call, session)| format!("{{hang: {call}}}, {{reload: {session}}}"));
    let wrong = OF_THE_HOST.iter().map(|fault| (*fault).to_owned());
    wrong.chain(hangs).collect()
}

/// All faults of single devices.
pub(crate) fn of_devices() -> Vec<String> {
    [
        each(CALLS, "error", ERRORS),
        each(LISTS, "error", OF_LISTS),
        each(CALLS, "number", NUMBERS),
        each(LISTS, "count", COUNTS),
        each(TEXTS, "text", NO_TEXTS),
    ]
    .concat()
}

/// A fault for each of these calls with each of these answers.
fn each<T: Display>(calls: &[&str], key: &str, answers: &[T]) -> Vec<String> {
    let of_call = |call| {
        let answers = answers.iter();
        answers.map(move |answer| format!("{{wrong: {call}, {key}: {answer}}}"))
    };
    calls.iter().flat_map(of_call).collect()
}
