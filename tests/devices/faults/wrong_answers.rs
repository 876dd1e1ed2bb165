//! What NVML calls can answer wrongly, as faults of a scenario.

use std::fmt::Display;

/// Calls about one device, as they are named without a version.
const CALLS: &[&str] = &[
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMigMode",
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

/// Errors that concern one device or one call.
const ERRORS: &[&str] = &[
    "not_supported",
    "no_permission",
    "not_found",
    "insufficient_size",
    "function_not_found",
    "timeout",
    "gpu_is_lost",
    "unknown",
];

/// Numbers that no device measures: all bits set in each width, nearly so, and a little too much.
const NUMBERS: &[u64] = &[u64::MAX, u64::MAX - 1, 0xFFFF_FFFF, 255, 200, 101];

const COUNTS: &[u32] = &[4_000_000_000, 129, 70_000];

/// Faults of the whole driver, except hanging calls.
const OF_THE_HOST: &[&str] = &[
    "{init: driver_not_loaded}, {reload: 1}",
    "{init: unknown}, {reload: 1}",
    "{wrong: nvmlDeviceGetCount, error: unknown}",
    "{wrong: nvmlDeviceGetCount, error: uninitialized}",
    "{wrong: nvmlDeviceGetCount, number: 4000000000}",
    "{wrong: nvmlDeviceGetCount, number: 0}",
    "{wrong: nvmlSystemGetDriverVersion, error: unknown}, {reload: 1}",
    "{wrong: nvmlDeviceGetHandleByIndex, error: unknown}, {reload: 2}",
    "{wrong: nvmlDeviceGetHandleByIndex, error: no_permission}, {reload: 3}",
    "{wrong: nvmlDeviceGetUtilizationRates, error: lib_rm_version_mismatch}",
    "{wrong: nvmlSystemGetDriverVersion, text: empty}, {reload: 4}",
    "{wrong: nvmlSystemGetDriverVersion, text: not_utf8}, {reload: 5}",
    "{wrong: nvmlSystemGetDriverVersion, text: unterminated}, {reload: 6}",
    "{wrong: nvmlSystemGetDriverVersion, error: insufficient_size}, {reload: 7}",
    "{wrong: nvmlEventSetCreate, error: unknown}, {reload: 8}",
    "{wrong: nvmlEventSetCreate, error: uninitialized}, {reload: 9}",
    "{wrong: nvmlDeviceRegisterEvents, error: unknown}, {reload: 10}",
    "{wrong: nvmlEventSetWait, error: unknown}",
    "{wrong: nvmlEventSetWait, error: gpu_is_lost}",
    "{wrong: nvmlEventSetWait, error: uninitialized}",
    "{wrong: nvmlEventSetWait, number: 18446744073709551615}",
    "{wrong: nvmlEventSetWait, number: 4294967295}",
    "{wrong: nvmlEventSetCreate, error: insufficient_size}, {reload: 14}",
    "{wrong: nvmlDeviceRegisterEvents, error: uninitialized}, {reload: 15}",
    "{wrong: nvmlDeviceGetSupportedEventTypes, number: 18446744073709551615}, {reload: 16}",
    "{wrong: nvmlEventSetFree, error: unknown}, {reload: 18}",
];

/// Calls about the whole driver, and all calls together.
const OTHER_CALLS: &[&str] = &[
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlSystemGetDriverVersion",
    "nvmlEventSetCreate",
    "nvmlEventSetWait",
    "nvmlEventSetFree",
    "all",
];

/// All faults of the whole driver. A hanging call blocks all other calls. The driver makes some calls in a new session
/// only.
pub(crate) fn of_the_host() -> Vec<String> {
    let calls = CALLS.iter().chain(OTHER_CALLS).zip(100..);
    let hangs = calls.map(|(call, session)| format!("{{hang: {call}}}, {{reload: {session}}}"));
    let wrong = OF_THE_HOST.iter().map(|fault| (*fault).to_owned());
    wrong.chain(hangs).collect()
}

/// All faults of single devices.
pub(crate) fn of_devices() -> Vec<String> {
    [
        each(CALLS, "error", ERRORS),
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
