//! What the state consists of: environments with their members, devices with their attachments, leases.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::written::{self, whole_seconds};
use crate::model::{MemoryAmount, is_initial_pid_namespace};

/// One environment of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentState {
    /// Environment id.
    pub eid: String,
    /// Owner.
    pub uid: u32,
    /// The owner's name, as the file claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// When it was activated, Unix time.
    #[serde(default, serialize_with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub created_timestamp_seconds: Option<f64>,
    /// Configured name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Configured device count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Configured memory per device.
    #[serde(default, with = "written", skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<MemoryAmount>,
    /// Member processes, including jobs; their pids are distinct.
    #[serde(default)]
    pub members: Vec<MemberState>,
    /// Member Jupyter kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_ids: Vec<String>,
    /// The last time at which a command saw one of its processes with a context on its devices after its last shell had
    /// ended, Unix time.
    #[serde(default, serialize_with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub context_seconds: Option<f64>,
}

impl EnvironmentState {
    /// The pids of the member processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|it| it.pid)
    }

    /// The members that keep the environment alive: those that are no jobs.
    pub fn shells(&self) -> impl Iterator<Item = u32> {
        self.members.iter().filter(|it| !it.is_job).map(|it| it.pid)
    }

    /// The member process with a pid.
    pub fn member(&self, pid: u32) -> Option<&MemberState> {
        self.members.iter().find(|it| it.pid == pid)
    }

    /// Whether a process or kernel is a member.
    pub fn has(&self, member: &MemberId) -> bool {
        match member {
            MemberId::Process(pid) => self.member(*pid).is_some(),
            MemberId::Kernel(id) => self.kernel_ids.contains(id),
        }
    }
}

/// A member process of an environment. A pid alone is ambiguous: another process may have it by now, and another pid
/// namespace has its own process with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberState {
    /// Its pid, in its pid namespace.
    pub pid: u32,
    /// Its start.
    #[serde(rename = "start_time_ticks", default, skip_serializing_if = "Started::is_unknown")]
    pub started: Started,
    /// The inode of its pid namespace. Absent: genv 1.x recorded the member, on the machine or in a container.
    #[serde(default, skip_serializing_if = "is_of_machine")]
    pub pid_namespace: Option<u64>,
    /// Whether it is a *job*: a process that started in the environment and that a command recorded. It keeps the
    /// environment only while it works on a device (see docs/files.md). Only a confirmation shows it.
    #[serde(skip)]
    pub is_job: bool,
    /// Whether the environment's user, root or this program recorded these facts.
    #[serde(skip)]
    pub is_confirmed: bool,
    /// Whether it is a process of another user, which is no member whatever the record claims.
    #[serde(skip)]
    pub is_stranger: bool,
}

/// The start of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Started {
    /// Not recorded: genv 1.x recorded the member.
    #[default]
    Unknown,
    /// Clock ticks since boot.
    At(u64),
    /// Before the last boot.
    BeforeThisBoot,
}

/// The start of no process.
const NEVER_TICKS: u64 = u64::MAX;

impl Serialize for Started {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ticks = match self {
            Self::Unknown => None,
            Self::At(ticks) => Some(*ticks),
            Self::BeforeThisBoot => Some(NEVER_TICKS),
        };
        ticks.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Started {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Unknown, Self::At))
    }
}

impl Started {
    pub(super) const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// Whether a recorded pid namespace is the machine's, as is that of a record without one.
#[expect(clippy::ref_option, reason = "the signature is serde's")]
fn is_of_machine(namespace: &Option<u64>) -> bool {
    namespace.is_none_or(|inode| is_initial_pid_namespace(&inode))
}

impl From<u32> for MemberState {
    /// A member of which only the pid is known.
    fn from(pid: u32) -> Self {
        Self {
            pid,
            started: Started::Unknown,
            pid_namespace: None,
            is_job: false,
            is_confirmed: false,
            is_stranger: false,
        }
    }
}

impl MemberState {
    /// A process with this program's own facts.
    pub(super) fn found(process: ProcessId, pid_namespace: u64, is_job: bool) -> Self {
        Self {
            started: Started::At(process.start_time_ticks),
            pid_namespace: Some(pid_namespace),
            is_job,
            is_confirmed: true,
            ..Self::from(process.pid)
        }
    }
}

/// One device of the state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Index of the whole GPU.
    pub index: u32,
    /// Memory of the device, as written.
    #[serde(default, with = "written", skip_serializing_if = "Option::is_none")]
    pub total_memory: Option<MemoryAmount>,
    /// Environments attached to it, in the file's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<AttachmentState>,
}

/// One attachment of the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttachmentState {
    /// Environment id.
    pub eid: String,
    /// Memory claimed; absent: the whole device.
    #[serde(default, with = "written", skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<MemoryAmount>,
    /// When it was attached, Unix time.
    #[serde(default, serialize_with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub attached_timestamp_seconds: Option<f64>,
}

/// Indices of the devices that an environment is attached to.
pub(super) fn attached(devices: &[DeviceState], eid: &str) -> Vec<u32> {
    let has = |device: &&DeviceState| device.attachments.iter().any(|it| it.eid == eid);
    devices.iter().filter(has).map(|it| it.index).collect()
}

/// As [`attached`], for all environments with devices.
pub(super) fn all_attached(devices: &[DeviceState]) -> HashMap<&str, Vec<u32>> {
    let mut all: HashMap<&str, Vec<u32>> = HashMap::new();
    for device in devices {
        for attachment in &device.attachments {
            all.entry(&attachment.eid).or_default().push(device.index);
        }
    }
    all
}

/// A member of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemberId {
    /// A process, by pid.
    Process(u32),
    /// A Jupyter kernel, by id.
    Kernel(String),
}

/// How a member came into an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The environment is new.
    Created,
    /// The environment existed.
    Joined,
}

/// The configuration of an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Its name.
    pub name: Option<String>,
    /// The number of devices.
    pub gpus: Option<u32>,
    /// The memory on each device; absent: all.
    pub gpu_memory: Option<MemoryAmount>,
}

/// The identity of a process. A later process with the same pid has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its pid.
    pub pid: u32,
    /// Its start in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time_ticks: u64,
}

/// The ends of leases by environment, Unix time.
pub(super) type Leases = HashMap<String, f64>;

/// The longest remaining time of a lease.
pub const LONGEST_LEASE: Duration = Duration::from_secs(366 * 86_400);
