//! What becomes of an environment whose last member ended: while one of its processes has a context on a device that it
//! holds, it goes on, and that process is its member from then on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::geteuid;

use super::{EnvironmentState, State};
use crate::proc::{Claim, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource};

/// Which processes have a context on which device, by its index. A device of which that is not known is not here.
pub type Contexts = BTreeMap<u32, BTreeSet<u32>>;

/// More processes of one environment are not written down.
const MOST_JOBS: usize = 64;

/// A process of an environment may seem to have started so much earlier than the environment.
const START_TOLERANCE_SECONDS: f64 = 2.0;

/// What becomes of an environment that has no member left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// None of its processes has a context on a device that it holds.
    Ends,
    /// That cannot be known here: whoever can knows later.
    Unknown,
    /// These processes of it have one.
    Continues(Vec<u32>),
}

/// By eid.
pub(super) type Fates = HashMap<String, Fate>;

/// What the fates of environments depend on.
pub(super) struct Evidence<'a> {
    pub(super) processes: &'a mut dyn ProcessSource,
    /// Asked once, if at all.
    pub(super) contexts: &'a mut dyn FnMut() -> Option<Contexts>,
}

/// The fates of these environments.
pub(super) fn fates(
    state: &State,
    ended: &[EnvironmentState],
    evidence: &mut Evidence<'_>,
) -> Fates {
    let mut contexts = None;
    let judge = |environment: &EnvironmentState| {
        let devices = state.attached(&environment.eid);
        (
            environment.eid.clone(),
            fate(environment, &devices, evidence, &mut contexts),
        )
    };
    ended.iter().map(judge).collect()
}

fn fate(
    environment: &EnvironmentState,
    devices: &[u32],
    evidence: &mut Evidence<'_>,
    contexts: &mut Option<Option<Contexts>>,
) -> Fate {
    let Some(mut pids) = processes_of(environment.uid) else {
        return Fate::Unknown;
    };
    if !reads_environs_of(environment.uid) {
        return if started_within(environment, &pids, evidence.processes) {
            Fate::Unknown
        } else {
            Fate::Ends
        };
    }
    let contexts = contexts.get_or_insert_with(|| (evidence.contexts)());
    let held = |device: &u32| contexts.as_ref().and_then(|contexts| contexts.get(device));
    let using: BTreeSet<u32> = devices.iter().filter_map(held).flatten().copied().collect();
    let known = devices.iter().all(|device| held(device).is_some());
    // One in a container may be of another uid.
    pids.extend(&using);
    let table = evidence.processes.read(&ProcessRequest {
        processes: pids,
        members: Vec::new(),
    });
    let (mut claiming, mut jobs, mut unclear) = (false, Vec::new(), false);
    for (&pid, read) in &table.processes {
        let ProcessRead::Present(facts) = read else {
            continue;
        };
        if pid == std::process::id() || !may_be_of(facts, environment.uid) {
            continue;
        }
        match &facts.claim {
            Claim::Named(eid) if *eid == environment.eid => {
                claiming = true;
                jobs.extend(using.contains(&pid).then_some(pid));
            }
            Claim::Missing(_) => unclear |= using.contains(&pid),
            Claim::Named(_) | Claim::Absent => {}
        }
    }
    if !jobs.is_empty() {
        jobs.sort_unstable();
        jobs.truncate(MOST_JOBS);
        Fate::Continues(jobs)
    } else if unclear || (claiming && !known) {
        Fate::Unknown
    } else {
        Fate::Ends
    }
}

fn may_be_of(facts: &ProcessFacts, uid: u32) -> bool {
    facts.uid == Some(uid)
        || facts.container_id.is_some() && facts.container_owner.is_none_or(|owner| owner == uid)
}

/// Whether this program may read the environ of every process of a user (ptrace(2), `PTRACE_MODE_READ`).
pub(super) fn reads_environs_of(uid: u32) -> bool {
    geteuid().as_raw() == uid || geteuid().is_root() || fs::File::open("/proc/1/environ").is_ok()
}

/// Whether one of these may have been started in the environment.
fn started_within(
    environment: &EnvironmentState,
    pids: &[u32],
    processes: &mut dyn ProcessSource,
) -> bool {
    let Some(created) = environment.created_timestamp_seconds else {
        return !pids.is_empty();
    };
    let request = ProcessRequest {
        processes: Vec::new(),
        members: pids.to_vec(),
    };
    let table = processes.read(&request);
    pids.iter()
        .filter_map(|&pid| table.living(pid))
        .any(|process| process.start_timestamp_seconds >= created - START_TOLERANCE_SECONDS)
}

/// The processes of a user; none if others' processes are hidden here (`hidepid`).
pub(super) fn processes_of(uid: u32) -> Option<Vec<u32>> {
    fs::metadata("/proc/1").ok()?;
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let of_user = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() == uid).then_some(pid)
    });
    Some(of_user.collect())
}
