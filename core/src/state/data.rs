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
    /// Member processes, including jobs.
    pub pids: Vec<u32>,
    /// Member Jupyter kernels.
    pub kernel_ids: Vec<String>,
}

impl EnvironmentState {
    /// Whether a process or kernel is a member.
    pub fn has(&self, member: &MemberId) -> bool {
        match member {
            MemberId::Process(pid) => self.pids.contains(pid),
            MemberId::Kernel(id) => self.kernel_ids.contains(id),
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
