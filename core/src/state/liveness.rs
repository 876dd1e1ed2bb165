//! The living members, and the end of environments without them.

use std::collections::{BTreeMap, HashSet};

use super::change::end_environments;
use super::data::MemberState;
use super::fates::{Fate, Fates};
use super::jobs::NewJobs;
use super::kernels::EndedKernels;
use super::standing::Standing;
use super::{EnvironmentState, State};
use crate::proc::{INITIAL_PID_NAMESPACE, ProcessTable, own_pid_namespace};

/// Removes ended members, environments without a living shell, and their attachments.
///
/// `fates` decide on environments that hold devices without a living shell. Without a decision they stay as they are.
pub(super) fn clean(state: &mut State, table: &ProcessTable, ended: &EndedKernels, fates: &Fates, now_seconds: f64) {
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
                    environment.context_seconds = Some(now_seconds);
                }
            }
            Some(Fate::Unknown) | None if without.contains(&environment.eid) => {}
            Some(Fate::Ends | Fate::Unknown) | None => environment.members.clear(),
        }
    }
    state.kernels_not_found = forget_kernels(&mut state.environments, ended);
    end_environments(&mut state.environments, &mut state.devices);
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
