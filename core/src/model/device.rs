//! Devices: whole GPUs and the MIG devices that they are split into.

use std::collections::BTreeMap;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::exact::exact;

/// NVML's index of a device, as `nvidia-smi --query-gpu=index` prints it; MIG device 1 of
/// GPU 0 is `0:1`. A GPU precedes its MIG devices.
///
/// It is packed to 6 bytes, because each row of a process or an environment has an index. Rust allows no reference to `gpu`:
/// where one is needed, such as in `format!`, copy it: `{ index.gpu }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C, packed(2))]
pub struct DeviceIndex {
    /// Index of the GPU (`nvmlDeviceGetIndex`).
    pub gpu: u32,
    /// Index of the MIG device within its GPU (`nvmlDeviceGetMigDeviceHandleByIndex`). A GPU has at most a few.
    pub mig: Option<u8>,
}

impl DeviceIndex {
    /// The index of a whole GPU.
    pub const fn gpu(gpu: u32) -> Self {
        Self { gpu, mig: None }
    }

    /// The index of a MIG device.
    pub const fn mig(gpu: u32, mig: u8) -> Self {
        Self { gpu, mig: Some(mig) }
    }

    /// The whole GPU: this device itself, or the GPU of this MIG device.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self::gpu(self.gpu)
    }
}

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mig {
            None => write!(f, "{}", { self.gpu }),
            Some(mig) => write!(f, "{}:{mig}", { self.gpu }),
        }
    }
}

/// A text that is not a device index.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not a device index: expected a number such as 0, or 0:1 for a MIG device")]
pub struct ParseDeviceIndexError(String);

impl FromStr for DeviceIndex {
    type Err = ParseDeviceIndexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (gpu, mig) = text.split_once(':').map_or((text, None), |(gpu, mig)| (gpu, Some(mig)));
        let parse = || Ok::<_, ParseIntError>(Self { gpu: gpu.parse()?, mig: mig.map(str::parse).transpose()? });
        parse().map_err(|_| ParseDeviceIndexError(text.to_owned()))
    }
}

impl Serialize for DeviceIndex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// One device of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Device {
    /// The device.
    pub index: DeviceIndex,
    /// `nvmlDeviceGetUUID`: stable across reboots, unlike the index.
    pub uuid: String,
    /// Whether the device answers now. A device that was seen stays listed with `up` false if it is lost, if the driver
    /// does not answer, or if its values are too old.
    pub up: bool,
    /// Product name, `nvmlDeviceGetName`.
    #[serde(default)]
    pub name: Option<String>,
    /// Minor number N of `/dev/nvidiaN`, `nvmlDeviceGetMinorNumber`.
    #[serde(default)]
    pub minor: Option<u32>,
    /// MIG profile such as `3g.40gb`; only of a MIG device.
    #[serde(default)]
    pub profile: Option<String>,
    /// The id of a MIG device's GPU instance, `nvmlDeviceGetGpuInstanceId`. The MIG devices of a GPU with one id are the
    /// compute instances of one GPU instance: `measurements.memory` of each is the memory that they share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// Whether this whole GPU is split into MIG devices.
    #[serde(default)]
    pub mig_parent: bool,
    /// Whether this whole GPU is in MIG mode and has no MIG devices: no CUDA program runs on it, and it is not available.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig_unsplit: bool,
    /// The measurements. All are absent while `up` is false.
    #[serde(default)]
    pub measurements: DeviceMeasurements,
    /// Whether all processes on the device are known, so that the absence of processes in the snapshot means that there
    /// are none: the driver's lists could be read, and no other reading contradicts them. Always false for a MIG
    /// parent, whose MIG devices have the processes, and while `up` is false. See [`super::Snapshot::processes_known`].
    #[serde(default)]
    pub processes_measured: bool,
    /// Whether the device shows use that no listed process explains: the device works or holds memory, while it lists
    /// no process or only processes that rest. The use of the device is not measured then. After 10 s without a listed
    /// process `processes_measured` is false too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub use_unexplained: bool,
    /// Whether the utilization has been high for `--gpu.contradictory-after` while no process was listed and the device
    /// held no more memory than its driver keeps. The measurement may be stuck, or a process that this program does not
    /// see uses the device. A new CUDA context or a reset of the GPU ends a stuck measurement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contradictory: bool,
    /// Whether a `contradictory` device is known to be unused: for all that time every sample had the utilization, the
    /// memory and all lists of processes, the memory was that which the driver keeps, and this program saw the processes
    /// of the whole machine: it ran in the machine's pid namespace, and not in WSL, a vGPU guest or a host of vGPUs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measurement_stuck: bool,
    /// The environments that hold the device, by the state files; always empty for MIG devices.
    //
    // In an Arc: changes that another host sends leave the list shared with the snapshot before.
    #[serde(default, deserialize_with = "exact")]
    pub attachments: Arc<Vec<Attachment>>,
}

/// The measurements of one device. A value that could not be measured is absent, never 0.
//
// No doc comment, which would be in the schema: values in an Arc are shared with the snapshot before, or with the facts
// that NVML gave once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeviceMeasurements {
    /// Part of the last sample period during which a kernel ran, 0–1: `nvmlDeviceGetUtilizationRates`.
    pub utilization_ratio: Option<f64>,
    /// Part of the last sample period during which memory was read or written, 0–1: the same call.
    pub memory_controller_busy_ratio: Option<f64>,
    /// Video encoder, 0–1: `nvmlDeviceGetEncoderUtilization`.
    pub encoder_utilization_ratio: Option<f64>,
    /// Video decoder, 0–1: `nvmlDeviceGetDecoderUtilization`.
    pub decoder_utilization_ratio: Option<f64>,
    /// `nvmlDeviceGetMemoryInfo_v2`.
    pub memory: Option<DeviceMemory>,
    /// GPU core temperature: `nvmlDeviceGetTemperature`.
    pub temperature_celsius: Option<f64>,
    /// `nvmlDeviceGetTemperatureThreshold`, by limit: `shutdown`, `slowdown`, `memory_max`, `gpu_max`.
    pub temperature_limits_celsius: Arc<BTreeMap<String, f64>>,
    /// `nvmlDeviceGetPowerUsage`.
    pub power_watts: Option<f64>,
    /// `nvmlDeviceGetEnforcedPowerLimit`.
    pub power_limit_watts: Option<f64>,
    /// Since the driver was loaded: `nvmlDeviceGetTotalEnergyConsumption`. The accumulated
    /// counter that survives a driver reload is [`super::Counters::device_energy`].
    pub energy_joules: Option<f64>,
    /// `nvmlDeviceGetClockInfo`, by clock: `graphics`, `sm`, `memory`, `video`.
    pub clocks_hertz: Arc<BTreeMap<String, f64>>,
    /// `nvmlDeviceGetFanSpeed_v2`, by fan number; share of the maximum speed, 0–1 (may exceed 1).
    pub fan_speed_ratios: BTreeMap<u32, f64>,
    /// `nvmlDeviceGetCurrentClocksThrottleReasons`, by reason; absent where the call is not supported.
    pub throttled: Option<Arc<BTreeMap<String, bool>>>,
    /// `nvmlDeviceGetTotalEccErrors`, volatile counters (since the driver was loaded).
    pub ecc_errors: EccErrors,
    /// `nvmlDeviceGetPcieReplayCounter`.
    pub pcie_replays: Option<u64>,
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceMemory {
    /// Installed.
    pub total_bytes: u64,
    /// Allocated by processes; without the reserved memory if the driver reports both.
    pub used_bytes: u64,
    /// Not allocated.
    pub free_bytes: u64,
    /// Held by the driver and firmware; absent before driver 510.
    #[serde(default)]
    pub reserved_bytes: Option<u64>,
}

/// ECC errors since the driver was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct EccErrors {
    /// Single-bit errors that were corrected.
    pub corrected: Option<u64>,
    /// Errors that could not be corrected.
    pub uncorrected: Option<u64>,
}

/// One environment's claim to one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Attachment {
    /// The environment.
    pub eid: String,
    /// Memory that the attachment claims; absent: the whole device.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Part of the device that the attachment holds, 0–1: memory claimed / total, or 1 without an amount;
    /// scaled so that the shares of a device never add up to more than 1.
    pub share_ratio: f64,
    /// When it was attached, Unix time.
    #[serde(default)]
    pub attached_timestamp_seconds: Option<f64>,
    /// Whether another GPU was at the index of the device at the time of the attachment, so that the environment's GPU
    /// is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_does_not_fit_is_refused() {
        let (gpu, mig) = (u32::MAX, u8::MAX);
        for index in [DeviceIndex::gpu(gpu), DeviceIndex::mig(gpu, mig)] {
            assert_eq!(index.to_string().parse::<DeviceIndex>().unwrap(), index);
        }
        for text in ["4294967296", "0:256", "0:4294967296", "-1", "", ":", "0:", ":0", "0:0:0"] {
            let error = text.parse::<DeviceIndex>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}' is not a device index: ")), "{error}");
        }
    }

    #[test]
    fn a_gpu_precedes_its_mig_devices() {
        let sorted = ["0", "0:0", "0:1", "0:255", "1", "256:0"].map(|text| text.parse::<DeviceIndex>().unwrap());
        assert!(sorted.is_sorted());
    }
}
