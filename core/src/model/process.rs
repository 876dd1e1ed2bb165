//! Processes that use a device.

use serde::{Deserialize, Serialize};

use super::exact::exact;
use super::{DeviceIndex, PackedOption};

/// One process that uses at least one device, identified by pid and start time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    /// Process id in the host's namespace.
    pub pid: u32,
    /// Start in clock ticks since boot (field 22 of `/proc/PID/stat`); absent if the process ended before it was read.
    #[serde(default)]
    pub start_time_ticks: Option<u64>,
    /// Effective uid, from `/proc/PID/status`. For a setuid program: the real uid, of the user who started it, unless
    /// that user is root. For a subordinate uid (subuid(5)): the uid of its owner. Absent if users are shown by
    /// hashes of their names.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Name of `uid`, else `uid:1234`.
    #[serde(default)]
    pub username: Option<String>,
    /// Command name, `/proc/PID/stat` field 2; never arguments.
    #[serde(default)]
    pub comm: Option<String>,
    /// The container of the process, from `/proc/PID/cgroup`.
    #[serde(default)]
    pub container_id: Option<String>,
    /// The environment of the process, outside, or unknown.
    pub attribution: Attribution,
    /// Its use of each device; at least one device.
    #[serde(deserialize_with = "exact")]
    pub devices: Vec<ProcessDevice>,
}

/// The environment of a process, or the reason why it is outside or unknown. `reason` is one of a small fixed set of
/// words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Attribution {
    /// In an environment.
    Environment {
        /// The environment.
        eid: String,
    },
    /// Known to be in no environment.
    Outside {
        /// The evidence.
        reason: String,
    },
    /// Evidence is missing. Such a process is reported, and no rule acts on it.
    Unknown {
        /// The missing evidence.
        reason: String,
    },
}

impl Attribution {
    /// The environment, if the process is in one.
    pub fn eid(&self) -> Option<&str> {
        match self {
            Self::Environment { eid } => Some(eid),
            Self::Outside { .. } | Self::Unknown { .. } => None,
        }
    }

    /// The word for the `state` label: `environment`, `outside` or `unknown`.
    pub const fn state(&self) -> &'static str {
        match self {
            Self::Environment { .. } => "environment",
            Self::Outside { .. } => "outside",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// A process's use of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessDevice {
    /// The device; a MIG device rather than its GPU.
    pub index: DeviceIndex,
    /// The kind of use.
    #[serde(rename = "type")]
    pub process_type: ProcessType,
    /// Device memory that the process holds; absent if the driver does not report it.
    #[serde(default)]
    pub memory_used_bytes: PackedOption<u64>,
    /// The part of the time since the last sample in which its kernels ran, 0–1; absent if the driver does not report
    /// it.
    #[serde(default)]
    pub utilization_ratio: PackedOption<f64>,
}

impl ProcessDevice {
    /// Whether the process shows use of the device beyond an entry in the driver's list. A process that uses a device
    /// holds memory of the device: an entry with 0 bytes and without utilization contradicts itself.
    pub fn shows_use(&self) -> bool {
        self.memory_used_bytes != Some(0) || self.utilization_ratio.get().is_some_and(|ratio| ratio > 0.0)
    }
}

/// The kind of a process's use, by the list of NVML that has the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProcessType {
    /// `nvmlDeviceGetComputeRunningProcesses`.
    Compute,
    /// `nvmlDeviceGetGraphicsRunningProcesses`.
    Graphics,
    /// Both.
    ComputeAndGraphics,
}
