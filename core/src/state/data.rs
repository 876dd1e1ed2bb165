//! What the state consists of: environments with their members, devices with their attachments, leases.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::MemoryAmount;

/// One environment of the state files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvironmentState {
    /// Environment id.
    pub eid: String,
    /// Owner.
    pub uid: u32,
    /// The owner's name, as the file claims.
    pub username: Option<String>,
    /// When it was activated, Unix time.
    pub created_timestamp_seconds: Option<f64>,
    /// Configured name.
    pub name: Option<String>,
    /// Configured device count.
    pub gpus: Option<u32>,
    /// Configured memory per device.
    pub gpu_memory: Option<MemoryAmount>,
    /// Member processes, including jobs; their pids are distinct.
    pub members: Vec<MemberState>,
    /// Member Jupyter kernels.
    pub kernel_ids: Vec<String>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Its pid, in its pid namespace.
    pub pid: u32,
    /// Its start.
    pub started: Started,
    /// The inode of its pid namespace. Absent: genv 1.x wrote the member, on the machine or in a container.
    pub pid_namespace: Option<u64>,
    /// Whether it is a *job*: a process that started in the environment and that a command recorded. For genv 1.x a
    /// living job keeps the environment; here it does so only while it works on a device (see docs/files.md).
    pub is_job: bool,
    /// Whether the environment's user, root or this program recorded these facts.
    pub is_confirmed: bool,
    /// Whether it is a process of another user, which is no member whatever the record claims.
    pub is_stranger: bool,
}

/// The start of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// Not recorded: genv 1.x wrote the member.
    Unknown,
    /// Clock ticks since boot.
    At(u64),
    /// Before the last boot.
    BeforeThisBoot,
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

/// One device of the state files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceState {
    /// Index of the whole GPU.
    pub index: u32,
    /// Memory of the device, as written.
    pub total_memory: Option<MemoryAmount>,
    /// Environments attached to it, in the file's order.
    pub attachments: Vec<AttachmentState>,
}

/// One attachment of the state files.
#[derive(Clone, Debug, PartialEq)]
pub struct AttachmentState {
    /// Environment id.
    pub eid: String,
    /// Memory claimed; absent: the whole device.
    pub gpu_memory: Option<MemoryAmount>,
    /// When it was attached, Unix time.
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

/// A member of an environment whose record is lost. While the member lives, the environment keeps its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostMember {
    pub(super) eid: String,
    /// When the environment was created, Unix time.
    pub(super) created_seconds: Option<i64>,
    pub(super) process: ProcessId,
    /// The inode of its pid namespace.
    pub(super) pid_namespace: u64,
    /// Whether it is a job.
    pub(super) is_job: bool,
}

/// Known environments by eid.
pub(super) type KnownEnvironments = BTreeMap<String, KnownEnvironment>;

/// The last known facts of an environment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownEnvironment {
    /// Without its members.
    pub(super) environment: EnvironmentState,
    pub(super) devices: BTreeSet<u32>,
    /// The last time at which a command saw one of its processes with a context on its devices, Unix time.
    pub(super) context_seconds: Option<f64>,
}

/// The ends of leases by environment, Unix time.
pub(super) type Leases = HashMap<String, f64>;

/// The devices that a process of each bare environment sees, by eid.
pub(super) type Visible = BTreeMap<String, BTreeSet<u32>>;

/// The longest remaining time of a lease.
pub const LONGEST_LEASE: Duration = Duration::from_secs(366 * 86_400);
