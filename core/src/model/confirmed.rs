//! Changes that commands of users made in environments.

use serde::{Deserialize, Serialize};

use crate::proc::INITIAL_PID_NAMESPACE;

/// A change that a command made in an environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confirmed {
    /// The environment.
    pub eid: String,
    /// When the state was written with the change, Unix time.
    pub at_seconds: f64,
    /// The process that joined, for such a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Joined>,
    /// The change.
    #[serde(flatten)]
    pub change: ConfirmedChange,
}

/// Facts of a process that became a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The start of the process in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The inode of the pid namespace to which the pid belongs.
    #[serde(default = "initial_pid_namespace", skip_serializing_if = "is_initial_pid_namespace")]
    pub pid_namespace: u64,
    /// Whether the process joined as a job ([`MemberState::is_job`](crate::state::MemberState::is_job)).
    #[serde(default, rename = "job", skip_serializing_if = "std::ops::Not::not")]
    pub is_job: bool,
}

/// A change in an environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum ConfirmedChange {
    /// A process became a member.
    Joined {
        /// The process.
        pid: u32,
    },
    /// The environment was attached to a device.
    Attached {
        /// The device.
        gpu: u32,
    },
    /// The environment ended.
    Ended,
    /// A process left the environment.
    Left {
        /// The process.
        pid: u32,
    },
    /// The environment was detached from a device.
    Released {
        /// The device.
        gpu: u32,
    },
    /// The environment reserves less memory of a device.
    Reserved {
        /// The device.
        gpu: u32,
        /// The present reservation.
        bytes: u64,
    },
    /// Its configuration asks for less memory.
    Configured {
        /// The present amount.
        bytes: u64,
    },
}

impl ConfirmedChange {
    /// Whether the change gives a member or a device to the environment.
    pub(crate) const fn gives(&self) -> bool {
        matches!(self, Self::Joined { .. } | Self::Attached { .. })
    }
}

/// The namespace of a pid that is written without a namespace.
pub(crate) const fn initial_pid_namespace() -> u64 {
    INITIAL_PID_NAMESPACE
}

/// Whether a pid of this namespace is written without a namespace.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
pub(crate) const fn is_initial_pid_namespace(inode: &u64) -> bool {
    *inode == INITIAL_PID_NAMESPACE
}
