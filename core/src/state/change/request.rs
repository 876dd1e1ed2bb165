//! What a program asks of the state, and what it is told.

use std::collections::BTreeSet;
use std::time::Duration;

use super::refusal::Refusal;
use crate::model::MemoryAmount;
use crate::state::allocate::{DeviceKind, DeviceUsage};
use crate::state::data::{Activation, Configuration, EnvironmentState, MemberId};
use crate::state::inventory::Inventory;
use crate::state::queue::{RequestedDevices, Waiting};

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The user, see [`own_uid`](crate::proc::own_uid).
    pub uid: u32,
    /// The process, which may wait in the queue.
    pub pid: u32,
}

/// The rules of the site for requests. There are none yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {}

/// What is known of the devices of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The devices of the machine, if the driver listed them.
    pub inventory: Option<Inventory>,
    /// The use of the devices, by the last survey, also where this attempt made none.
    pub usage: DeviceUsage,
    /// The end of the survey of this attempt, Unix time. Absent: there was none; then of `usage` only the models count.
    pub taken_seconds: Option<f64>,
}

/// The request for a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create or join an environment, and attach its devices.
    Enter(Box<Enter>),
    /// Make a process or kernel a member.
    Join {
        /// The environment.
        eid: String,
        /// The new member.
        member: MemberId,
        /// The user of the environment if it does not exist. Absent: the environment must exist, and be the requester's.
        founder: Option<Founder>,
    },
    /// Attach devices to an environment.
    Attach {
        /// The environment.
        eid: String,
        /// Who may do it.
        permission: Permission,
        /// The devices.
        wish: Wish,
    },
    /// Detach devices from an environment.
    Detach {
        /// The environment.
        eid: String,
        /// Who may do it.
        permission: Permission,
        /// The devices; empty: all.
        indices: Vec<u32>,
    },
    /// Detach a device, unless the attachment has changed since the requester saw it.
    DetachSeen(SeenAttachment),
    /// Configure an environment. Its attachments stay.
    Configure {
        /// The environment.
        eid: String,
        /// Who may do it.
        permission: Permission,
        /// The new values.
        change: ConfigurationChange,
    },
    /// Extend the lease of an environment. Only its user may do it.
    Extend {
        /// The environment.
        eid: String,
        /// Additional time.
        more: Duration,
    },
    /// Replace a member by its child, without an end of the environment in between.
    HandOver {
        /// The environment.
        eid: String,
        /// The member.
        from: u32,
        /// The new member.
        to: u32,
    },
    /// Remove a member.
    Leave {
        /// The environment; absent: all environments of the member.
        eid: Option<String>,
        /// The member.
        member: MemberId,
        /// Whether the environment also ends if only jobs remain and the member had ended before.
        as_shell: bool,
    },
    /// Leave the queue.
    Withdraw,
    /// End all environments. Only root may end those of others.
    ResetEnvironments,
    /// Record the devices of the machine: new ones are added, lost ones stay. Everybody may do it.
    RecordDevices(Inventory),
    /// Remove all devices and attachments, and add these devices. Only root may detach those of others.
    ResetDevices(Inventory),
}

/// The request of [`Request::Enter`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Enter {
    /// The environment.
    pub eid: String,
    /// The new member.
    pub member: u32,
    /// The name of the requester.
    pub username: Option<String>,
    /// The new name of the environment.
    pub name: Option<String>,
    /// The new memory of each device.
    pub gpu_memory: Option<MemoryAmount>,
    /// The new lease, from now.
    pub lease: Option<Duration>,
    /// The configuration of a new environment, where the request has no value.
    pub local: Configuration,
    /// The lease of a new environment if `lease` is absent.
    pub local_lease: Option<Duration>,
    /// The accepted devices of a new environment, instead of those of the wish.
    pub kind_if_new: DeviceKind,
    /// Whether devices are attached.
    pub attach: bool,
    /// The devices.
    pub wish: Wish,
}

/// The user of a new environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// The user's id.
    pub uid: u32,
    /// The user's name.
    pub username: Option<String>,
}

/// Who may change an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Its user.
    Owner,
    /// Its user, and root.
    OwnerOrRoot,
}

/// An attachment, as a requester saw it before the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenAttachment {
    /// The environment.
    pub eid: String,
    /// The user of the environment.
    pub uid: u32,
    /// The index of the device.
    pub index: u32,
    /// When the device was attached, Unix time in whole seconds. Absent: at any time.
    pub attached_seconds: Option<i64>,
}

/// The requested devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Particular devices; empty: a number of devices.
    pub indices: BTreeSet<u32>,
    /// The number of devices in all. Absent: the configured number.
    pub count: Option<u32>,
    /// The accepted devices, for a number.
    pub kind: DeviceKind,
    /// Whether devices of others may be shared.
    pub over_subscribe: bool,
    /// Whether devices that others use without holding them may be attached.
    pub force: bool,
    /// Whether to enter the queue if the devices are not free.
    pub wait: bool,
    /// Whether to pass processes in the queue even if they are delayed.
    pub pass_queue: bool,
}

/// New values of a configuration. The outer `None` keeps a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigurationChange {
    /// The values to start from. Absent: the present ones.
    pub base: Option<Configuration>,
    /// The name.
    pub name: Option<Option<String>>,
    /// The number of devices.
    pub gpus: Option<Option<u32>>,
    /// The memory of each device.
    pub gpu_memory: Option<Option<MemoryAmount>>,
}

impl ConfigurationChange {
    /// The configuration after the change.
    pub fn of(&self, known: Configuration) -> Configuration {
        let base = self.base.clone().unwrap_or(known);
        Configuration {
            name: self.name.clone().unwrap_or(base.name),
            gpus: self.gpus.unwrap_or(base.gpus),
            gpu_memory: self.gpu_memory.unwrap_or(base.gpu_memory),
        }
    }
}

/// The answer to a request that was not refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The request is done.
    Done,
    /// The member is in the environment.
    Entered(Activation, Attached),
    /// The environment has its devices.
    Attached(Attached),
    /// No devices are requested or configured. No attachment has changed.
    NothingConfigured,
    /// These devices were detached.
    Detached(Vec<u32>),
    /// The member is not in the environment.
    Left(Left),
    /// The process is in the queue, or behind it if its user has no place left. The request has changed no environment.
    Waits {
        /// The number of processes before it.
        ahead: usize,
        /// Its request.
        requested: Option<RequestedDevices>,
        /// Why it waits.
        refusal: Refusal,
    },
    /// The decision needs an answer of the driver. Nothing has changed.
    FactsNeeded,
}

/// The devices that an environment got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attached {
    /// The devices that the environment did not have.
    pub added: Vec<u32>,
    /// The processes of the queue that were passed.
    pub passed: Vec<Waiting>,
    /// The request; absent if no devices were requested.
    pub requested: Option<RequestedDevices>,
}

/// An environment after a member has left it.
#[derive(Clone, Debug, PartialEq)]
pub enum Left {
    /// It continues.
    Continues(EnvironmentState),
    /// It ends.
    Ends,
    /// It had ended before.
    AlreadyEnded,
}
