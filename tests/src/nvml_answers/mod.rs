//! What an NVML library answers, call by call, with no wrapper between: recorded from a real driver, the answers are
//! fixtures that the simulated library is held against.
//!
//! Signatures and constants are those of nvml.h
//! (<https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html>).

mod processes;

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use libloading::Library;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub call: String,
    /// What it was asked, apart from the device; empty if that was all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub argument: String,
    /// The `nvmlReturn_t`, or `absent` if the library has no such function.
    pub code: Value,
    /// What it wrote, if it succeeded or if what it writes on failure means something.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub value: Value,
    /// How long the call took, in microseconds of wall time.
    pub microseconds: u64,
}

pub const SUCCESS: u32 = 0;

type Device = *mut c_void;

/// `(device, unsigned int *)` or an enumeration, which is as wide.
const NUMBERS: &[&str] = &[
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetNumFans",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetDisplayActive",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetAccountingMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceIsMigDeviceHandle",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetArchitecture",
];

/// `(device, unsigned long long *)`.
const LONG_NUMBERS: &[&str] = &[
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksThrottleReasons",
    "nvmlDeviceGetSupportedEventTypes",
];

/// `(device, unsigned int, unsigned int *)`, with the arguments to ask for.
const NUMBERS_BY_ARGUMENT: &[(&str, std::ops::Range<u32>)] = &[
    ("nvmlDeviceGetTemperature", 0..2),
    ("nvmlDeviceGetTemperatureThreshold", 0..8),
    ("nvmlDeviceGetClockInfo", 0..4),
    ("nvmlDeviceGetMaxClockInfo", 0..4),
    ("nvmlDeviceGetFanSpeed_v2", 0..1),
];

/// `(device, unsigned int *, unsigned int *)`.
const PAIRS: &[&str] = &[
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetPowerManagementLimitConstraints",
];

pub fn ask_everything(library: &Path) -> Result<Vec<Answer>> {
    // SAFETY: NVML's initializers have no requirements.
    let library = unsafe { Library::new(library) }.with_context(|| format!("cannot load {}", library.display()))?;
    let mut asked = Asked { library, answers: Vec::new() };
    asked.system()?;
    let device = asked.first_device()?;
    asked.texts(device);
    asked.numbers(device);
    asked.memory(device);
    asked.processes(device);
    asked.process_utilization(device);
    asked.events(device);
    asked.call("nvmlShutdown", "", |call: extern "C" fn() -> u32| (call(), Value::Null));
    Ok(asked.answers)
}

struct Asked {
    library: Library,
    answers: Vec<Answer>,
}

impl Asked {
    /// Makes one call by `ask`, which must give the function its type in nvml.h.
    fn call<F: Copy>(
        &mut self,
        name: &str,
        argument: impl ToString,
        ask: impl FnOnce(F) -> (u32, Value),
    ) -> Option<u32> {
        // SAFETY: the types below are those of nvml.h; the function is not used after the library.
        let function = unsafe { self.library.get::<F>(name.as_bytes()) }.map(|it| *it);
        let began = Instant::now();
        let (code, value) = match function {
            Ok(function) => {
                let (code, value) = ask(function);
                (Some(code), value)
            }
            Err(_) => (None, Value::Null),
        };
        self.answers.push(Answer {
            call: name.to_owned(),
            argument: argument.to_string(),
            code: code.map_or_else(|| json!("absent"), |it| json!(it)),
            value,
            microseconds: began.elapsed().as_micros() as u64,
        });
        code
    }

    fn system(&mut self) -> Result<()> {
        let code = self.call("nvmlInit_v2", "", |call: extern "C" fn() -> u32| (call(), Value::Null));
        ensure!(code == Some(SUCCESS), "nvmlInit_v2 returned {code:?}");
        for name in ["nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"] {
            self.call(name, "", |call: extern "C" fn(*mut c_char, u32) -> u32| {
                text(|buffer, length| call(buffer, length))
            });
        }
        for name in ["nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2"] {
            self.call(name, "", |call: extern "C" fn(*mut u32) -> u32| written(0_u32, |out| call(out), |it| json!(it)));
        }
        Ok(())
    }

    fn first_device(&mut self) -> Result<Device> {
        let mut device = std::ptr::null_mut();
        for index in [1000, 0] {
            self.call("nvmlDeviceGetHandleByIndex_v2", index, |call: extern "C" fn(u32, *mut Device) -> u32| {
                (call(index, &raw mut device), Value::Null)
            });
        }
        ensure!(!device.is_null(), "the library has no device");
        Ok(device)
    }

    fn texts(&mut self, device: Device) {
        for name in ["nvmlDeviceGetName", "nvmlDeviceGetUUID"] {
            for room in [96, 4] {
                self.call(name, room, |call: extern "C" fn(Device, *mut c_char, u32) -> u32| {
                    text(|buffer, length| call(device, buffer, length.min(room)))
                });
            }
        }
    }

    /// A call of `(device, T *)`.
    fn value<T: Copy + Default + Serialize>(&mut self, name: &str, device: Device) {
        self.call(name, "", |call: extern "C" fn(Device, *mut T) -> u32| {
            written(T::default(), |out| call(device, out), |it| json!(it))
        });
    }

    fn numbers(&mut self, device: Device) {
        NUMBERS.iter().for_each(|name| self.value::<u32>(name, device));
        LONG_NUMBERS.iter().for_each(|name| self.value::<u64>(name, device));
        for (name, arguments) in NUMBERS_BY_ARGUMENT {
            for argument in arguments.clone() {
                self.call(name, argument, |call: extern "C" fn(Device, u32, *mut u32) -> u32| {
                    written(0_u32, |out| call(device, argument, out), |it| json!(it))
                });
            }
        }
        for name in PAIRS {
            self.call(name, "", |call: extern "C" fn(Device, *mut u32, *mut u32) -> u32| {
                let (mut first, mut second) = (0, 0);
                let code = call(device, &raw mut first, &raw mut second);
                (code, json!([first, second]))
            });
        }
        self.value::<[u32; 2]>("nvmlDeviceGetUtilizationRates", device);
        for (kind, counter) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            self.call(
                "nvmlDeviceGetTotalEccErrors",
                format!("{kind} {counter}"),
                |call: extern "C" fn(Device, u32, u32, *mut u64) -> u32| {
                    written(0, |out| call(device, kind, counter, out), |it| json!(it))
                },
            );
        }
        self.call("nvmlDeviceGetMigDeviceHandleByIndex", 0, |call: extern "C" fn(Device, u32, *mut Device) -> u32| {
            let mut mig = std::ptr::null_mut();
            (call(device, 0, &raw mut mig), Value::Null)
        });
    }

    fn memory(&mut self, device: Device) {
        for name in ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetBAR1MemoryInfo"] {
            self.value::<[u64; 3]>(name, device);
        }
        // The second version's structure begins with its version: its size, and 2 in the highest byte.
        for version in [40_u64 | 2 << 24, 0] {
            self.call("nvmlDeviceGetMemoryInfo_v2", version, |call: extern "C" fn(Device, *mut [u64; 5]) -> u32| {
                written([version, 0, 0, 0, 0], |out| call(device, out), |it| json!(it[1..]))
            });
        }
    }

    fn events(&mut self, device: Device) {
        let mut set = std::ptr::null_mut();
        self.call("nvmlEventSetCreate", "", |call: extern "C" fn(*mut Device) -> u32| {
            (call(&raw mut set), Value::Null)
        });
        self.call(
            "nvmlDeviceRegisterEvents",
            "critical XID error",
            |call: extern "C" fn(Device, u64, Device) -> u32| (call(device, 8, set), Value::Null),
        );
        self.call("nvmlEventSetWait_v2", "50 ms", |call: extern "C" fn(Device, *mut [u64; 4], u32) -> u32| {
            let mut event = [0; 4];
            (call(set, &raw mut event, 50), Value::Null)
        });
        self.call("nvmlEventSetFree", "", |call: extern "C" fn(Device) -> u32| (call(set), Value::Null));
    }
}

/// Calls with room for one value; what was written, if anything.
fn written<T: Copy>(before: T, call: impl FnOnce(*mut T) -> u32, show: impl FnOnce(T) -> Value) -> (u32, Value) {
    let mut out = before;
    let code = call(&raw mut out);
    let value = if code == SUCCESS { show(out) } else { Value::Null };
    (code, value)
}

fn text(call: impl FnOnce(*mut c_char, u32) -> u32) -> (u32, Value) {
    let mut buffer = [0_u8; 96];
    let code = call(buffer.as_mut_ptr().cast(), buffer.len() as u32);
    if code != SUCCESS {
        return (code, Value::Null);
    }
    let end = buffer.iter().position(|&it| it == 0);
    let text = String::from_utf8_lossy(&buffer[..end.unwrap_or(buffer.len())]);
    (code, json!(text))
}
