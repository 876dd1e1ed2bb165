//! Jobs of environments: processes that start in an environment while a shell of it lives. Commands record them as
//! members.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::data::{MemberState, ProcessId};
use super::standing::Standing;
use super::{EnvironmentState, State};
use crate::proc::{
    Claim, ProcReader, ProcessRead, ProcessRequest, ProcessSource, ProcessTable, is_kernel_thread, read_environs,
    variable,
};

/// The most recorded jobs of one environment.
pub(super) const MOST_JOBS: usize = 64;

/// A parent that started at most this time before a command is a wrapper of the command.
const WRAPPER_SECONDS: f64 = 1.0;

/// Finds the environments of processes, by pid, as [`environments_of`](crate::attribute::environments_of) does.
pub type FindEnvironments = fn(&State, &ProcessTable, &[u32]) -> BTreeMap<u32, String>;

/// Jobs that are not recorded yet, by eid.
pub(super) type NewJobs = BTreeMap<String, Vec<ProcessId>>;

/// The environments of the caller that hold devices and have a living shell. `table` has their members.
fn watched<'a>(state: &'a State, table: &ProcessTable) -> Vec<&'a EnvironmentState> {
    let own = geteuid().as_raw();
    let attachments = state.devices.iter().flat_map(|device| &device.attachments);
    let holding: BTreeSet<&str> = attachments.map(|it| it.eid.as_str()).collect();
    let is_watched = |environment: &&EnvironmentState| {
        let is_shell = |member: &MemberState| {
            let standing = member.standing(environment, table, state.written_timestamp_seconds);
            matches!(standing, Standing::Lives(_)) && !member.is_job
        };
        let holds = holding.contains(environment.eid.as_str());
        environment.uid == own && holds && environment.members.iter().any(is_shell)
    };
    state.environments.iter().filter(is_watched).collect()
}

/// Whether an environment of the caller can have new jobs.
pub(super) fn are_watched(state: &State, table: &ProcessTable) -> bool {
    !watched(state, table).is_empty()
}

/// The processes of the caller's environments that are not recorded yet. Processes whose variables name no environment, such as subshells, are left out.
pub(super) fn find_new(
    state: &State,
    table: &ProcessTable,
    directory: &Path,
    find_environments: FindEnvironments,
) -> NewJobs {
    let watched: BTreeSet<String> = watched(state, table).iter().map(|it| it.eid.clone()).collect();
    if watched.is_empty() {
        return NewJobs::new();
    }
    let environments = state.environments.iter();
    let environments = environments.filter(|it| watched.contains(&it.eid));
    let known: BTreeSet<u32> = environments.flat_map(EnvironmentState::pids).collect();
    let own = std::process::id();
    let mut pids = processes_of(geteuid().as_raw()).unwrap_or_default();
    pids.retain(|pid| *pid != own && !known.contains(pid));
    let (eids, directory) = (watched.clone(), directory.to_owned());
    let naming = read_environs(pids.clone(), move |pid, environ| may_name(pid, environ, &eids, &directory));
    pids.retain(|pid| naming.get(pid) == Some(&true));
    if pids.is_empty() {
        return NewJobs::new();
    }
    let table = ProcReader::new().read(&ProcessRequest {
        processes: pids.iter().copied().chain([own]).collect(),
        members: known.into_iter().collect(),
    });
    let wrappers = wrappers(own, &table);
    let mut attributed = find_environments(state, &table, &pids);
    let mut found = NewJobs::new();
    for pid in pids {
        let Some(ProcessRead::Present(facts)) = table.processes.get(&pid) else {
            continue;
        };
        let is_passing = table.zombies.contains(&pid) || wrappers.contains(&pid);
        if facts.claim == Claim::Absent || is_passing {
            continue;
        }
        if let Some(eid) = attributed.remove(&pid).filter(|eid| watched.contains(eid)) {
            found.entry(eid).or_default().push(ProcessId { pid, start_time_ticks: facts.start_time_ticks });
        }
    }
    for environment in &state.environments {
        let Some(jobs) = found.remove(&environment.eid) else {
            continue;
        };
        let living = environment.pids().filter(|pid| table.living(*pid).is_some());
        let jobs = oldest(jobs, MOST_JOBS.saturating_sub(living.count()));
        if !jobs.is_empty() {
            found.insert(environment.eid.clone(), jobs);
        }
    }
    found
}

/// Ancestors of a process that started shortly before it, such as the subshell of a prompt, and end with it.
fn wrappers(pid: u32, table: &ProcessTable) -> BTreeSet<u32> {
    let started = |pid| table.lineage.get(&pid).map(|it| it.start_timestamp_seconds);
    let mut wrappers = BTreeSet::new();
    let mut next = table.lineage.get(&pid).map(|it| it.parent);
    while let Some(parent) = next
        && let Some((own, began)) = started(pid).zip(started(parent))
        && own - began < WRAPPER_SECONDS
        && wrappers.insert(parent)
    {
        next = table.lineage.get(&parent).map(|it| it.parent);
    }
    wrappers
}

/// Whether a process names one of these environments, or may do so in an unreadable environ.
fn may_name(pid: u32, environ: Result<&[u8], Errno>, eids: &BTreeSet<String>, directory: &Path) -> bool {
    let environ = match environ {
        Ok(environ) => environ,
        // It has ended, or is a kernel thread.
        Err(Errno::NOENT | Errno::SRCH) => return false,
        Err(_) => &[],
    };
    match variable(environ, b"GENV_ENVIRONMENT_ID=") {
        Some(eid) => eids.contains(String::from_utf8_lossy(eid).as_ref()) && !is_elsewhere(environ, directory),
        None if environ.is_empty() => !is_kernel_thread(pid),
        // An overwritten environ, as after setproctitle, does not consist of entries.
        None => {
            let entries = environ.strip_suffix(&[0]).unwrap_or(environ);
            entries.split(|&byte| byte == 0).any(|entry| !entry.contains(&b'='))
        }
    }
}

/// Whether a process names an environment of another state directory, which may have the same ids.
pub(super) fn is_elsewhere(environ: &[u8], directory: &Path) -> bool {
    let named = variable(environ, b"GENV_TMPDIR=").filter(|named| !named.is_empty());
    let named = named.map(|named| Path::new(OsStr::from_bytes(named)));
    let file = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    named.is_some_and(|named| named != directory && file(named).is_none_or(|it| Some(it) != file(directory)))
}

pub(super) fn oldest(mut processes: Vec<ProcessId>, most: usize) -> Vec<ProcessId> {
    processes.sort_unstable_by_key(|it| (it.start_time_ticks, it.pid));
    processes.truncate(most);
    processes
}

/// Whether this program may read the environ of every process of a user (ptrace(2), `PTRACE_MODE_READ`).
pub(super) fn reads_environs_of(uid: u32) -> bool {
    geteuid().as_raw() == uid || geteuid().is_root() || File::open("/proc/1/environ").is_ok()
}

/// The processes of a user; `None` if processes of other users are hidden (`hidepid`).
pub(super) fn processes_of(uid: u32) -> Option<Vec<u32>> {
    processes_by_user()?.remove(&uid).or_else(|| Some(Vec::new()))
}

/// All processes, by their owner in `/proc`; `None` if processes of other users are hidden (`hidepid`).
pub(super) fn processes_by_user() -> Option<HashMap<u32, Vec<u32>>> {
    fs::metadata("/proc/1").ok()?;
    let mut by_user: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_str().and_then(|it| it.parse().ok());
        if let Some(pid) = pid {
            // A process that ended meanwhile is left out.
            if let Ok(found) = entry.metadata() {
                by_user.entry(found.uid()).or_default().push(pid);
            }
        }
    }
    Some(by_user)
}
