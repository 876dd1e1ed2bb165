//! Why a request is refused. The display of some refusals looks up names of users, which may be slow: do not print them
//! while the state is locked.

use std::time::Duration;

use crate::duration::days;
use crate::proc::user_phrase;
use crate::state::allocate::AllocateError;
use crate::state::data::LONGEST_LEASE;
use crate::state::queue::{Waiting, waiting_phrase};

/// Why a request is refused. [`apply`](super::apply) then returns no new state.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The environment ended, or never existed.
    #[error("there is no environment {}. 'genv envs' lists those that there are", .eid.escape_debug())]
    NoSuchEnvironment {
        /// Its id.
        eid: String,
    },
    /// The environment belongs to another user, and only this user may do it.
    #[error("cannot {task}: environment {} belongs to the user {}. 'genv activate' with another id, or with none, \
             starts one of your own", .eid.escape_debug(), user_phrase(*.uid))]
    NotOwner {
        /// The attempted task.
        task: &'static str,
        /// The environment.
        eid: String,
        /// Its user.
        uid: u32,
    },
    /// Only this user and root may do it.
    #[error("cannot {task} of the user {}: only this user and root may do so. Ask this user, or run it with sudo",
            user_phrase(*.uid))]
    NotOwnerOrRoot {
        /// The attempted task, with its object.
        task: String,
        /// The user.
        uid: u32,
    },
    /// The attachment is not the one that the requester saw. The text is the difference alone, for the enforcer's audit: "it"
    /// is the device.
    #[error("{0}")]
    AttachmentChanged(&'static str),
    /// The devices cannot be assigned.
    #[error("{error}")]
    Devices {
        /// The reason.
        error: AllocateError,
        /// Whether they can be assigned once others have given devices back.
        may_become_free: bool,
    },
    /// Other processes are before this one in the queue, and would be delayed.
    #[error("cannot attach devices now: {} in the queue for devices. '--wait' waits too, '-o' shares",
            waiting_phrase(.0))]
    OthersWait(Vec<Waiting>),
    /// The lease would be too long.
    #[error("cannot extend: the lease would end in {}, and the limit is {}. Choose less",
            days(*.left), days(LONGEST_LEASE))]
    LeaseTooLong {
        /// The remaining time that the lease would have.
        left: Duration,
    },
}

impl Refusal {
    /// Whether the request can succeed later without another change by its user.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::OthersWait(_) | Self::Devices { may_become_free: true, .. })
    }

    /// Whether devices are missing.
    pub const fn is_shortage(&self) -> bool {
        matches!(self, Self::OthersWait(_) | Self::Devices { .. })
    }

    /// Why devices cannot be assigned, if that is the reason.
    pub const fn devices(&self) -> Option<&AllocateError> {
        match self {
            Self::Devices { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<AllocateError> for Refusal {
    fn from(error: AllocateError) -> Self {
        Self::Devices { error, may_become_free: false }
    }
}
