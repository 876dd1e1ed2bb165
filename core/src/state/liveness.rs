//! Which members live, and what ends with those that do not.

use std::collections::{BTreeMap, HashSet};

use super::jobs::{Fate, Fates};
use super::kernels::EndedKernels;
use super::members::{LostMember, Recorded, RecordedMembers};
use super::{DeviceState, EnvironmentState, State};
use crate::proc::{Lineage, ProcessTable};

/// How much later than the state file a member may seem to have started.
///
/// Both times come from one clock, but the start is computed from `btime`, which moves when the
/// clock is stepped by leap seconds and small corrections.
const START_TOLERANCE_SECONDS: f64 = 2.0;

/// Whether the process that has a member's pid now is that member.
///
/// If its start is not recorded, genv 1.x wrote the pid, and means the process that had it then: it started
/// before `envs.json` was written.
pub(crate) fn is_member(
    recorded: Recorded,
    process: &Lineage,
    written_timestamp_seconds: Option<f64>,
) -> bool {
    match recorded {
        Recorded::Started(ticks) => process.start_time_ticks == ticks,
        Recorded::BeforeThisBoot => false,
        Recorded::Unknown => written_timestamp_seconds.is_none_or(|written| {
            process.start_timestamp_seconds <= written + START_TOLERANCE_SECONDS
        }),
    }
}

/// Whether a process that may not be seen may be a member.
pub(crate) fn may_be_member(recorded: Recorded) -> bool {
    recorded != Recorded::BeforeThisBoot
}

/// Removes members that ended, environments that have none left, and their attachments.
///
/// What becomes of one that holds devices and has no member left, `fates` tell: it stays as it is where they do not.
pub(super) fn clean(state: &mut State, table: &ProcessTable, ended: &EndedKernels, fates: &Fates) {
    let without: HashSet<String> = without_members(state, table)
        .into_iter()
        .map(|it| it.eid)
        .collect();
    let (recorded, written) = (&state.recorded, state.written_timestamp_seconds);
    for environment in &mut state.environments {
        let left = living(environment, recorded, table, written);
        if !without.contains(&environment.eid) {
            environment.pids = left;
            continue;
        }
        let lives_by_kernel = |id: &String| !ended.contains(&(environment.uid, id.clone()));
        match fates.get(&environment.eid) {
            Some(Fate::Continues(pids)) => environment.pids.clone_from(pids),
            Some(Fate::Ends) => environment.pids.clear(),
            _ if environment.kernel_ids.iter().any(lives_by_kernel) => environment.pids.clear(),
            Some(Fate::Unknown) | None => {}
        }
    }
    state.kernels_not_found = forget_kernels(&mut state.environments, ended);
    state.recorded.lost.retain(|LostMember { process, .. }| {
        let found = table.living(process.pid);
        found.map_or_else(
            || table.hidden.contains(&process.pid),
            |found| found.start_time_ticks == process.start_time_ticks,
        )
    });
    end_environments(
        &mut state.environments,
        &mut state.devices,
        &state.recorded.lost,
    );
}

/// The members that are left of an environment.
fn living(
    environment: &EnvironmentState,
    recorded: &RecordedMembers,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> Vec<u32> {
    let is_left = |pid: &u32| {
        let created = environment.created_timestamp_seconds;
        let recorded = recorded.of(&environment.eid, created, *pid);
        match table.living(*pid) {
            Some(process) => is_member(recorded, process, written_timestamp_seconds),
            None => table.hidden.contains(pid) && may_be_member(recorded),
        }
    };
    environment.pids.iter().copied().filter(is_left).collect()
}

/// Environments that hold devices and have no process left.
pub(super) fn without_members(state: &State, table: &ProcessTable) -> Vec<EnvironmentState> {
    let attachments = state.devices.iter().flat_map(|device| &device.attachments);
    let holding: HashSet<&str> = attachments.map(|it| it.eid.as_str()).collect();
    let has_none = |environment: &&EnvironmentState| {
        !environment.pids.is_empty()
            && holding.contains(environment.eid.as_str())
            && living(
                environment,
                &state.recorded,
                table,
                state.written_timestamp_seconds,
            )
            .is_empty()
    };
    state
        .environments
        .iter()
        .filter(has_none)
        .cloned()
        .collect()
}

/// Removes kernels that ended. Returns the environments, by eid with their users, that had kernels and have none left.
pub(super) fn forget_kernels(
    environments: &mut [EnvironmentState],
    ended: &EndedKernels,
) -> BTreeMap<String, u32> {
    let mut without = BTreeMap::new();
    for EnvironmentState {
        eid,
        uid,
        kernel_ids,
        ..
    } in environments
    {
        let before = kernel_ids.len();
        kernel_ids.retain(|id| !ended.contains(&(*uid, id.clone())));
        if kernel_ids.is_empty() && before > 0 {
            without.insert(eid.clone(), *uid);
        }
    }
    without
}

/// Removes environments that have no member, and attachments of environments that neither exist nor were lost.
pub(super) fn end_environments(
    environments: &mut Vec<EnvironmentState>,
    devices: &mut [DeviceState],
    lost: &[LostMember],
) {
    environments
        .retain(|environment| !environment.pids.is_empty() || !environment.kernel_ids.is_empty());
    let lost = lost.iter().map(|it| it.eid.as_str());
    let eids: HashSet<&str> = environments
        .iter()
        .map(|it| it.eid.as_str())
        .chain(lost)
        .collect();
    for device in devices {
        let attachments = &mut device.attachments;
        attachments.retain(|attachment| eids.contains(attachment.eid.as_str()));
    }
}
