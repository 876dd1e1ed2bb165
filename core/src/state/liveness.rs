//! Which members live, and what ends with those that do not.

use std::collections::{BTreeMap, HashSet};

use super::fates::{Fate, Fates};
use super::jobs::NewJobs;
use super::kernels::EndedKernels;
use super::known;
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

/// Removes members that ended, environments that have no shell left, and their attachments.
///
/// `fates` decide over those that hold devices and have no shell left, and over those that genv 1.x cleared: without a
/// decision the first stay as they are, and the second may be restored later.
pub(super) fn clean(
    state: &mut State,
    table: &ProcessTable,
    ended: &EndedKernels,
    fates: &Fates,
    now_seconds: f64,
) {
    for (environment, devices) in known::cleared(state, table) {
        match fates.get(&environment.eid) {
            Some(Fate::Continues { .. }) => {
                known::put_back(state, environment, &devices, now_seconds);
            }
            Some(Fate::Ends) => drop(state.recorded.known.remove(&environment.eid)),
            Some(Fate::Unknown) | None => {}
        }
    }
    let without: HashSet<String> = without_shells(state, table)
        .into_iter()
        .map(|(it, _)| it.eid)
        .collect();
    let (recorded, written) = (&mut state.recorded, state.written_timestamp_seconds);
    for environment in &mut state.environments {
        let Left { pids, has_shell } = left(environment, recorded, table, written);
        let lives_by_kernel = |id: &String| !ended.contains(&(environment.uid, id.clone()));
        let has_kernel = environment.kernel_ids.iter().any(lives_by_kernel);
        let created = environment.created_timestamp_seconds;
        match fates.get(&environment.eid) {
            _ if has_shell || has_kernel => environment.pids = pids,
            Some(Fate::Continues { jobs, at_work }) => {
                environment.pids = jobs.iter().map(|it| it.pid).collect();
                for job in jobs {
                    recorded.record(&environment.eid, created, *job, true);
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

/// Makes new jobs members of their environments.
pub(super) fn record_jobs(state: &mut State, jobs: &NewJobs) {
    for environment in &mut state.environments {
        let new = jobs.get(&environment.eid).into_iter().flatten();
        for job in new {
            if !environment.pids.contains(&job.pid) && !environment.pids.is_empty() {
                environment.pids.push(job.pid);
                let created = environment.created_timestamp_seconds;
                state.recorded.record(&environment.eid, created, *job, true);
            }
        }
    }
}

/// The members that are left of an environment.
struct Left {
    pids: Vec<u32>,
    /// Whether one of them is no job.
    has_shell: bool,
}

fn left(
    environment: &EnvironmentState,
    recorded: &RecordedMembers,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> Left {
    let (eid, created) = (&environment.eid, environment.created_timestamp_seconds);
    let is_left = |pid: &u32| {
        let recorded = recorded.of(eid, created, *pid);
        match table.living(*pid) {
            Some(process) => is_member(recorded, process, written_timestamp_seconds),
            None => table.hidden.contains(pid) && may_be_member(recorded),
        }
    };
    let pids: Vec<u32> = environment.pids.iter().copied().filter(is_left).collect();
    let has_shell = pids.iter().any(|pid| !recorded.is_job(eid, created, *pid));
    Left { pids, has_shell }
}

/// Whether a member of an environment is left that is no job.
pub(super) fn has_shell(
    environment: &EnvironmentState,
    recorded: &RecordedMembers,
    table: &ProcessTable,
    written_timestamp_seconds: Option<f64>,
) -> bool {
    left(environment, recorded, table, written_timestamp_seconds).has_shell
}

/// Environments that hold devices and have no shell left, each with these devices.
pub(super) fn without_shells(
    state: &State,
    table: &ProcessTable,
) -> Vec<(EnvironmentState, Vec<u32>)> {
    let mut attached = state.all_attached();
    let without = state.environments.iter().filter_map(|environment| {
        let devices = attached.remove(environment.eid.as_str())?;
        let written = state.written_timestamp_seconds;
        let has_none = !environment.pids.is_empty()
            && !left(environment, &state.recorded, table, written).has_shell;
        has_none.then(|| (environment.clone(), devices))
    });
    without.collect()
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
