//! Environments: reservations of users.

use serde::{Deserialize, Serialize};

use super::exact::exact;
use super::{Confirmed, DeviceIndex, PackedOption};

/// One environment of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Environment {
    /// Environment id.
    pub eid: String,
    /// The user of the environment, by the state file; absent if users are shown by hashes of their names.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The passwd name of `uid`, else `uid:1234`; the name in the state file is only a claim.
    pub username: String,
    /// The name that its user gave.
    #[serde(default)]
    pub name: Option<String>,
    /// When it was activated, Unix time.
    #[serde(default)]
    pub created_timestamp_seconds: Option<f64>,
    /// The end of its lease, the time until which its user wants it, Unix time; absent without a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_end_timestamp_seconds: Option<f64>,
    /// Devices asked for in its configuration.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// Memory per device asked for in its configuration, bytes.
    #[serde(default)]
    pub gpu_memory_bytes: Option<u64>,
    /// When the oldest of its living members was started, Unix time by the kernel; absent without such a member.
    #[serde(default)]
    pub oldest_member_started_timestamp_seconds: Option<f64>,
    /// Living processes that its record lists and that run as other users: they are no members.
    #[serde(default)]
    pub foreign_members: usize,
    /// Its member processes (shells) that are alive.
    #[serde(default, deserialize_with = "exact")]
    pub members: Vec<Member>,
    /// Jupyter kernels that are its members.
    #[serde(default, deserialize_with = "exact")]
    pub kernel_ids: Vec<String>,
    /// Its use of each device that it is attached to or that one of its processes uses.
    #[serde(default, deserialize_with = "exact")]
    pub devices: Vec<EnvironmentDevice>,
    /// Changes by commands of `uid` and of root, from `genv-confirmed-N.json`; only in snapshots of followed hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(test, schemars(skip))]
    pub confirmed: Vec<Confirmed>,
}

/// A process that keeps an environment alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Member {
    /// Process id.
    pub pid: u32,
    /// Start in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time_ticks: u64,
}

/// An environment's use of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EnvironmentDevice {
    /// The device.
    pub index: DeviceIndex,
    /// Whether the environment is attached to the device; it may use the device without.
    pub attached: bool,
    /// Memory that the environment's processes use on the device; absent if one of them could not be measured.
    #[serde(default)]
    pub memory_used_bytes: PackedOption<u64>,
    /// Memory that the environment may use on the device: the amount of the attachment, else the total of the device;
    /// absent if not attached.
    #[serde(default)]
    pub memory_capacity_bytes: PackedOption<u64>,
    /// Utilization by the environment's processes, 0–1; absent if the driver does not report it.
    #[serde(default)]
    pub utilization_ratio: PackedOption<f64>,
    /// When its utilization was last seen above the busy threshold, Unix time; absent if never.
    #[serde(default)]
    pub last_active_timestamp_seconds: PackedOption<f64>,
}
