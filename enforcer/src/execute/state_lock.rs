//! The lock of genv's state, which every user may hold for as long as they like: one attempt a cycle, and its holder named.

use std::time::Duration;

use genv_core::state::LockHolder;

use super::{Executor, STATE_PATIENCE};
use crate::plan::Outcome;

/// Why no device can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    /// In one sentence, the same as long as it is the same holder.
    pub(crate) why: String,
    /// Who holds the lock, if the kernel tells.
    pub(crate) holder: Option<LockHolder>,
}

impl Executor {
    /// Why no device could be taken when that was last tried.
    pub(crate) const fn blocked(&self) -> Option<&Blocked> {
        self.blocked.as_ref()
    }

    /// Begins a cycle: the lock may be tried once more.
    pub(super) fn try_lock_anew(&mut self) {
        self.lock_failed = false;
        self.unchanged = None;
        // One that was held is not waited for again until it was free: each wait that fails leaves a thread behind.
        if self.blocked.is_some() && self.store.try_lock_to_change(Duration::ZERO).is_ok() {
            self.blocked = None;
        }
        self.log_repairs();
    }

    /// Checks that the state can be locked and changed. After a failed attempt, the cycle makes no further one.
    pub(super) fn ask_state_lock(&mut self) -> Result<(), Outcome> {
        if let Some(why) = &self.unchanged {
            return Err(super::evidence::later(why.clone()));
        }
        if !self.lock_failed {
            let patience = match self.blocked {
                Some(_) => Duration::ZERO,
                None => STATE_PATIENCE,
            };
            match self.store.try_lock_to_change(patience) {
                Ok(()) => self.blocked = None,
                Err(error) => self.block(error.to_string()),
            }
        }
        self.log_repairs();
        match &self.blocked {
            Some(blocked) => Err(super::evidence::later(blocked.why.clone())),
            None => Ok(()),
        }
    }

    /// Logs the repairs that the last changes and lock attempts made.
    pub(super) fn log_repairs(&mut self) {
        for notice in self.store.take_notices() {
            tracing::warn!(notice, "genv's state was repaired");
        }
    }

    /// Notes that the lock was not had; `why` says so where its holder is not known.
    pub(super) fn block(&mut self, why: String) {
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
