//! The living members, and the end of environments without them.

use std::collections::{BTreeMap, HashSet};

use super::change::end_environments;
use super::data::{LostMember, MemberState, ProcessId, Started};
use super::fates::{Fate, Fates};
use super::jobs::NewJobs;
use super::kernels::EndedKernels;
use super::known;
use super::{EnvironmentState, State};
use crate::proc::{INITIAL_PID_NAMESPACE, Lineage, PidHolder, ProcessTable, own_pid_namespace};

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

impl LostMember {
    /// Whether the member lives, or may live.
    fn may_live(&self, table: &ProcessTable) -> bool {
        let ProcessId { pid, start_time_ticks } = self.process;
        let namespace = Some(self.pid_namespace);
        let mut holders = table.holders(pid, namespace);
        holders.any(|it| it.lineage.start_time_ticks == start_time_ticks) || !table.shows(pid, namespace)
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

/// Removes ended members, environments without a living shell, and their attachments.
///
/// `fates` decide on environments that hold devices without a living shell, and on environments that genv 1.x cleared.
/// Without a decision, the former stay as they are, and the latter may be restored later.
pub(super) fn clean(state: &mut State, table: &ProcessTable, ended: &EndedKernels, fates: &Fates, now_seconds: f64) {
    for (environment, devices) in known::cleared(state, table) {
        match fates.get(&environment.eid) {
            Some(Fate::Continues { .. }) => {
                known::put_back(state, environment, &devices, now_seconds);
            }
            Some(Fate::Ends) => drop(state.recorded.known.remove(&environment.eid)),
            Some(Fate::Unknown) | None => {}
        }
    }
    let without: HashSet<String> = without_shells(state, table).into_iter().map(|(it, _)| it.eid).collect();
    let written = state.written_timestamp_seconds;
    for environment in &mut state.environments {
        let RemainingMembers { members, has_shell } = left(environment, table, written);
        let lives_by_kernel = |id: &String| !ended.contains(&(environment.uid, id.clone()));
        let has_kernel = environment.kernel_ids.iter().any(lives_by_kernel);
        match fates.get(&environment.eid) {
            _ if has_shell || has_kernel => environment.members = members,
            Some(Fate::Continues { jobs, at_work }) => {
                let namespace = table.pid_namespace.unwrap_or(INITIAL_PID_NAMESPACE);
                environment.members = jobs.iter().map(|job| MemberState::found(*job, namespace, true)).collect();
                if *at_work {
                    known::note_context(&mut state.recorded.known, environment, now_seconds);
                }
            }
            Some(Fate::Unknown) | None if without.contains(&environment.eid) => {}
            Some(Fate::Ends | Fate::Unknown) | None => environment.members.clear(),
        }
    }
    state.kernels_not_found = forget_kernels(&mut state.environments, ended);
    let lost = &mut state.recorded.lost;
    lost.retain(|member| member.may_live(table));
    end_environments(&mut state.environments, &mut state.devices, &state.recorded.lost, &state.recorded.known);
}

/// Makes new jobs members of their environments.
pub(super) fn record_jobs(environments: &mut [EnvironmentState], jobs: &NewJobs) {
    let namespace = own_pid_namespace();
    for environment in environments.iter_mut().filter(|it| !it.members.is_empty()) {
        for job in jobs.get(&environment.eid).into_iter().flatten() {
            if environment.member(job.pid).is_none() {
                environment.members.push(MemberState::found(*job, namespace, true));
            }
        }
    }
}

/// The members of an environment that live or may live.
struct RemainingMembers {
    members: Vec<MemberState>,
    /// Whether one of them is not a job.
    has_shell: bool,
}

fn left(
    environment: &EnvironmentState,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> RemainingMembers {
    let (mut members, mut has_shell) = (Vec::new(), false);
    for member in &environment.members {
        let standing = member.standing(environment, table, written_timestamp_seconds);
        if standing != Standing::Ended {
            members.push(*member);
            // This program does not know which devices a process of another namespace uses.
            let is_unknown = standing == Standing::MayLive && !table.hidden.contains(&member.pid);
            has_shell |= is_unknown || !member.is_job;
        }
    }
    RemainingMembers { members, has_shell }
}

/// Whether an environment has a remaining member that is not a job.
pub(super) fn has_shell(
    environment: &EnvironmentState,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> bool {
    left(environment, table, written_timestamp_seconds).has_shell
}

/// Environments that hold devices and have no living shell, each with its devices.
pub(super) fn without_shells(state: &State, table: &ProcessTable) -> Vec<(EnvironmentState, Vec<u32>)> {
    let mut attached = state.all_attached();
    let without = state.environments.iter().filter_map(|environment| {
        let devices = attached.remove(environment.eid.as_str())?;
        let written = state.written_timestamp_seconds;
        let has_none = !environment.members.is_empty() && !has_shell(environment, table, written);
        has_none.then(|| (environment.clone(), devices))
    });
    without.collect()
}

/// Removes kernels that ended. Returns the environments, by eid with their users, that had kernels and have none left.
pub(super) fn forget_kernels(environments: &mut [EnvironmentState], ended: &EndedKernels) -> BTreeMap<String, u32> {
    let mut without = BTreeMap::new();
    for EnvironmentState { eid, uid, kernel_ids, .. } in environments {
        let before = kernel_ids.len();
        kernel_ids.retain(|id| !ended.contains(&(*uid, id.clone())));
        if kernel_ids.is_empty() && before > 0 {
            without.insert(eid.clone(), *uid);
        }
    }
    without
}

#[cfg(test)]
mod tests;
