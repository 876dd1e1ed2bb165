//! The living members, and the end of environments without them.

use std::collections::{BTreeMap, HashSet};

use super::change::end_environments;
use super::data::{LostMember, ProcessId};
use super::fates::{Fate, Fates};
use super::jobs::NewJobs;
use super::kernels::EndedKernels;
use super::known;
use super::members::{Recorded, RecordedMembers};
use super::{EnvironmentState, State};
use crate::proc::{INITIAL_PID_NAMESPACE, Lineage, PidHolder, ProcessTable, own_pid_namespace};

/// The time by which a member may seem to be younger than the state file.
///
/// Both times come from one clock, but the start is computed from `btime`, which moves when the
/// clock is stepped by leap seconds and small corrections.
pub(crate) const START_TOLERANCE_SECONDS: f64 = 2.0;

/// A listed process of an environment, with its recorded facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedMember<'a> {
    environment: &'a EnvironmentState,
    pid: u32,
    recorded: &'a RecordedMembers,
}

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

impl<'a> ListedMember<'a> {
    pub(crate) fn new(environment: &'a EnvironmentState, pid: u32, recorded: &'a RecordedMembers) -> Self {
        Self { environment, pid, recorded }
    }

    fn place(&self) -> (&'a str, Option<f64>, u32) {
        let environment = self.environment;
        let created = environment.created_timestamp_seconds;
        (environment.eid.as_str(), created, self.pid)
    }

    pub(super) fn recorded(&self) -> Recorded {
        let (eid, created, pid) = self.place();
        self.recorded.of(eid, created, pid)
    }

    /// The inode of the member's pid namespace. None: genv 1.x wrote the member, on the machine or in a container.
    pub(super) fn pid_namespace(&self) -> Option<u64> {
        let (eid, created, pid) = self.place();
        self.recorded.pid_namespace(eid, created, pid)
    }

    /// See [`RecordedMembers::is_job`].
    pub(crate) fn is_job(&self) -> bool {
        let (eid, created, pid) = self.place();
        self.recorded.is_job(eid, created, pid)
    }

    fn is_confirmed(&self) -> bool {
        let (eid, created, pid) = self.place();
        self.recorded.is_confirmed(eid, created, pid)
    }

    /// The standing of the member by the processes that have its pid. The question of `table` included the pid.
    pub(crate) fn standing(&self, table: &ProcessTable, written_timestamp_seconds: Option<f64>) -> Standing {
        let confirmed = self.pid_namespace().filter(|_| self.is_confirmed());
        let strangers = &self.recorded.strangers;
        let is_stranger = strangers.contains(&(self.environment.eid.clone(), self.pid));
        let mut may_live = false;
        for holder in table.holders(self.pid, confirmed) {
            if holder.pid == self.pid && is_stranger {
                continue;
            }
            match self.is_member(&holder, table, written_timestamp_seconds) {
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
    fn is_member(
        &self,
        holder: &PidHolder,
        table: &ProcessTable,
        written_timestamp_seconds: Option<f64>,
    ) -> Option<bool> {
        let recorded = self.recorded();
        if is_kernel_thread(holder) {
            return Some(false);
        }
        if recorded == Recorded::Started(holder.lineage.start_time_ticks) {
            return Some(true);
        }
        let is_by_genv_1 = recorded == Recorded::Unknown;
        let latest = if is_by_genv_1 { written_timestamp_seconds } else { self.environment.created_timestamp_seconds };
        if self.is_confirmed() || !is_older(&holder.lineage, latest) {
            return Some(false);
        }
        let namespace = self.pid_namespace().unwrap_or(INITIAL_PID_NAMESPACE);
        let is_in_place = table.is_in(holder, namespace);
        let user = table.owner(self.environment.uid);
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
    let (recorded, written) = (&mut state.recorded, state.written_timestamp_seconds);
    for environment in &mut state.environments {
        let RemainingMembers { pids, has_shell } = left(environment, recorded, table, written);
        let lives_by_kernel = |id: &String| !ended.contains(&(environment.uid, id.clone()));
        let has_kernel = environment.kernel_ids.iter().any(lives_by_kernel);
        let created = environment.created_timestamp_seconds;
        match fates.get(&environment.eid) {
            _ if has_shell || has_kernel => environment.pids = pids,
            Some(Fate::Continues { jobs, at_work }) => {
                environment.pids = jobs.iter().map(|it| it.pid).collect();
                for job in jobs {
                    let namespace = table.pid_namespace.unwrap_or(INITIAL_PID_NAMESPACE);
                    recorded.record(&environment.eid, created, *job, namespace, true);
                }
                if *at_work {
                    known::note_context(&mut recorded.known, environment, now_seconds);
                }
            }
            Some(Fate::Unknown) | None if without.contains(&environment.eid) => {}
            Some(Fate::Ends | Fate::Unknown) | None => environment.pids.clear(),
        }
    }
    state.kernels_not_found = forget_kernels(&mut state.environments, ended);
    let lost = &mut state.recorded.lost;
    lost.retain(|member| member.may_live(table));
    end_environments(&mut state.environments, &mut state.devices, &state.recorded.lost, &state.recorded.known);
}

/// Makes new jobs members of their environments.
pub(super) fn record_jobs(state: &mut State, jobs: &NewJobs) {
    let namespace = own_pid_namespace();
    for environment in &mut state.environments {
        let new = jobs.get(&environment.eid).into_iter().flatten();
        for job in new {
            if !environment.pids.contains(&job.pid) && !environment.pids.is_empty() {
                environment.pids.push(job.pid);
                let created = environment.created_timestamp_seconds;
                state.recorded.record(&environment.eid, created, *job, namespace, true);
            }
        }
    }
}

/// The members of an environment that live or may live.
struct RemainingMembers {
    pids: Vec<u32>,
    /// Whether one of them is not a job.
    has_shell: bool,
}

fn left(
    environment: &EnvironmentState,
    recorded: &RecordedMembers,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> RemainingMembers {
    let (mut pids, mut has_shell) = (Vec::new(), false);
    for &pid in &environment.pids {
        let member = ListedMember::new(environment, pid, recorded);
        let standing = member.standing(table, written_timestamp_seconds);
        if standing != Standing::Ended {
            pids.push(pid);
            // This program does not know which devices a process of another namespace uses.
            let is_unknown = standing == Standing::MayLive && !table.hidden.contains(&pid);
            has_shell |= is_unknown || !member.is_job();
        }
    }
    RemainingMembers { pids, has_shell }
}

/// Whether an environment has a remaining member that is not a job.
pub(super) fn has_shell(
    environment: &EnvironmentState,
    recorded: &RecordedMembers,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> bool {
    left(environment, recorded, table, written_timestamp_seconds).has_shell
}

/// Environments that hold devices and have no living shell, each with its devices.
pub(super) fn without_shells(state: &State, table: &ProcessTable) -> Vec<(EnvironmentState, Vec<u32>)> {
    let mut attached = state.all_attached();
    let without = state.environments.iter().filter_map(|environment| {
        let devices = attached.remove(environment.eid.as_str())?;
        let written = state.written_timestamp_seconds;
        let has_none = !environment.pids.is_empty() && !left(environment, &state.recorded, table, written).has_shell;
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
