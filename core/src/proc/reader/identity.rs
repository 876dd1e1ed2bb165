//! What rarely changes about a process, so that few cycles read it.

use crate::proc::cgroup::Container;
use crate::proc::{Claim, Lineage, ProcessFacts, stat};

/// The users, the container and the command name of a process.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    /// Owner of `/proc/PID`: the effective uid when `uids` was read.
    pub(super) owner: u32,
    pub(super) uids: Option<stat::Uids>,
    pub(super) container: Option<Container>,
    pub(super) comm: String,
}

impl Identity {
    /// Whether the identity is valid while the process has this effective uid. If the real uid differs, it may change
    /// later, and no change of the effective uid shows it.
    pub(super) fn is_valid_for(&self, owner: u32) -> bool {
        self.owner == owner && self.uids.is_none_or(|uids| uids.real == uids.effective)
    }

    pub(super) fn facts(self, lineage: Lineage, claim: Claim) -> ProcessFacts {
        ProcessFacts {
            start_time_ticks: lineage.start_time_ticks,
            uid: self.uids.map(|uids| uids.effective),
            real_uid: self.uids.map(|uids| uids.real),
            comm: self.comm,
            container_owner: self.container.as_ref().and_then(|found| found.owner),
            container_id: self.container.map(|found| found.id),
            claim,
        }
    }
}
