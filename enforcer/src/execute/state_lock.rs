//! The lock of genv's state. Every user may hold it for any time: the executor tries once per cycle, and names the holder.

use std::time::Duration;

use genv_core::state::LockHolder;

use super::{Executor, STATE_LOCK_TIMEOUT};
use crate::plan::Outcome;

/// Why no device can be detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// The reason in one sentence, unchanged while the holder is the same.
    pub(crate) why: String,
    /// The holder of the lock, if the kernel shows it.
    pub(crate) holder: Option<LockHolder>,
}

impl Executor {
    /// Why the last try to detach a device failed at the lock.
    pub(crate) const fn blocked(&self) -> Option<&Blocked> {
        self.blocked.as_ref()
    }

    /// Begins a cycle: the lock may be tried once more.
    pub(super) fn retry_state_lock(&mut self) {
        self.lock_failed = false;
        self.unchanged = None;
        // No wait for a lock that was held until it was free: each failed wait leaves a thread behind.
        if self.blocked.is_some() && self.store.try_lock_to_change(Duration::ZERO).is_ok() {
            self.blocked = None;
        }
        self.log_repairs();
    }

    /// Checks that the state can be locked and changed. After a failed attempt, the cycle makes no further one.
    pub(super) fn check_state_lock(&mut self) -> Result<(), Outcome> {
        if let Some(why) = &self.unchanged {
            return Err(super::evidence::refuse_for_now(why.clone()));
        }
        if !self.lock_failed {
            let patience = match self.blocked {
                Some(_) => Duration::ZERO,
                None => STATE_LOCK_TIMEOUT,
            };
            match self.store.try_lock_to_change(patience) {
                Ok(()) => self.blocked = None,
                Err(error) => self.note_blocked(error.to_string()),
            }
        }
        self.log_repairs();
        match &self.blocked {
            Some(blocked) => Err(super::evidence::refuse_for_now(blocked.why.clone())),
            None => Ok(()),
        }
    }

    /// Logs the repairs that the last changes and lock attempts made.
    pub(super) fn log_repairs(&mut self) {
        for notice in self.store.take_notices() {
            tracing::warn!(notice, "genv's state was repaired");
        }
    }

    /// Notes that the lock could not be taken. `why` is the reason if the holder is not known.
    pub(super) fn note_blocked(&mut self, why: String) {
        self.lock_failed = true;
        let holder = self.store.lock_holder();
        let why = match &holder {
            None => why,
            Some(holder) => {
                let user = holder.uid.map(|uid| self.evidence.processes.username(uid));
                let of = user.map(|user| format!(" of {}", crate::plan::words::name(&user)));
                format!(
                    "no device can be taken: process {} ({}){} holds the lock of genv's state: end it, or have its user end it",
                    holder.pid,
                    holder.name,
                    of.unwrap_or_default()
                )
            }
        };
        self.blocked = Some(Blocked { why, holder });
    }
}
