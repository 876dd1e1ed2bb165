//! Whether a member of an environment lives.

use super::data::{EnvironmentState, MemberState, Started};
use crate::proc::{INITIAL_PID_NAMESPACE, Lineage, PidHolder, ProcessTable};

/// The time by which a member may seem to be younger than the state file.
///
/// Both times come from one clock, but the start is computed from `btime`, which moves when the
/// clock is stepped by leap seconds and small corrections.
pub(crate) const START_TOLERANCE_SECONDS: f64 = 2.0;

/// This program's knowledge of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Lives(Living),
    /// The member may live: it is hidden from this program, or a process may be the member.
    MayLive,
    Ended,
}

/// A living member as this program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Living {
    /// Its pid in this program's namespace.
    pub(crate) pid: u32,
    pub(crate) start_time_ticks: u64,
    /// Its effective uid.
    pub(crate) uid: Option<u32>,
}

impl MemberState {
    /// The standing of a member of `environment` by the processes that have its pid. The question of `table` included
    /// the pid.
    pub(crate) fn standing(
        &self,
        environment: &EnvironmentState,
        table: &ProcessTable,
        written_timestamp_seconds: Option<f64>,
    ) -> Standing {
        let confirmed = self.pid_namespace.filter(|_| self.is_confirmed);
        let mut may_live = false;
        for holder in table.holders(self.pid, confirmed) {
            if holder.pid == self.pid && self.is_stranger {
                continue;
            }
            match self.is_process(&holder, environment, table, written_timestamp_seconds) {
                Some(true) => return Standing::Lives(Living::from(holder)),
                Some(false) => {}
                None => may_live = true,
            }
        }
        if may_live || !table.shows(self.pid, confirmed) { Standing::MayLive } else { Standing::Ended }
    }

    /// Whether a process that has the member's pid is the member; `None` if this is not known.
    ///
    /// The confirmation by the environment's user decides. Every user may write the other records: such a record can
    /// prove that a process is the member, and cannot exclude a process that is older than the environment and, by the
    /// kernel, runs as its user. genv 1.x writes the pid alone, and means the process that had the pid at that time.
    fn is_process(
        &self,
        holder: &PidHolder,
        environment: &EnvironmentState,
        table: &ProcessTable,
        written_timestamp_seconds: Option<f64>,
    ) -> Option<bool> {
        if is_kernel_thread(holder) {
            return Some(false);
        }
        if self.started == Started::At(holder.lineage.start_time_ticks) {
            return Some(true);
        }
        let is_by_genv_1 = self.started == Started::Unknown;
        let latest = if is_by_genv_1 { written_timestamp_seconds } else { environment.created_timestamp_seconds };
        if self.is_confirmed || !is_older(&holder.lineage, latest) {
            return Some(false);
        }
        let namespace = self.pid_namespace.unwrap_or(INITIAL_PID_NAMESPACE);
        let is_in_place = table.is_in(holder, namespace);
        let user = table.owner(environment.uid);
        match holder.lineage.uid.map(|uid| table.owner(uid) == user) {
            _ if is_by_genv_1 && is_in_place => Some(true),
            Some(true) if is_in_place && latest.is_some() => Some(true),
            Some(false) => Some(false),
            Some(true) | None => None,
        }
    }
}

impl From<PidHolder> for Living {
    fn from(holder: PidHolder) -> Self {
        Self { pid: holder.pid, start_time_ticks: holder.lineage.start_time_ticks, uid: holder.lineage.uid }
    }
}

/// Whether a process is a kernel thread. No environment has a kernel thread as a member, but kernel threads have small
/// pids, as do shells in containers.
fn is_kernel_thread(holder: &PidHolder) -> bool {
    const KTHREADD: u32 = 2;
    let is_of_machine = holder.namespace == Some(INITIAL_PID_NAMESPACE);
    is_of_machine && [holder.pid, holder.lineage.parent].contains(&KTHREADD)
}

/// Whether a process started before the time at which another program saw it.
pub(crate) fn is_older(process: &Lineage, timestamp_seconds: Option<f64>) -> bool {
    timestamp_seconds.is_none_or(|time| process.start_timestamp_seconds <= time + START_TOLERANCE_SECONDS)
}

#[cfg(test)]
mod tests;
