//! Processes of an environment that are no shells of it: which of them are recorded as its jobs while a shell lives, and what
//! becomes of the environment when none does ([`crate::linger`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::known::Known;
use super::members::ProcessId;
use super::{EnvironmentState, State};
use crate::attribute::{Attributor, live_environments};
use crate::linger::{Belonging, START_TOLERANCE_SECONDS, belonging, lingers, may_be_of};
use crate::proc::{
    Claim, ProcReader, ProcessRead, ProcessRequest, ProcessSource, ProcessTable, buffer,
    is_kernel_thread, read_environ, variable,
};

/// Which processes have a context on which device, by its index. A device of which that is not known is not here.
pub type Contexts = BTreeMap<u32, BTreeSet<u32>>;

/// More jobs of one environment are not recorded.
const MOST_JOBS: usize = 64;

/// How long a command looks for jobs: reading the variables of a process can hang as long as its page faults do.
const PATIENCE: Duration = Duration::from_secs(1);

/// A parent that started so little earlier than a command was started to run it.
const WRAPPER_SECONDS: f64 = 1.0;

/// What becomes of an environment that has no shell left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// None of its processes has a context on a device that it holds, or had one within the linger time.
    Ends,
    /// The evidence is missing here: a caller who has it settles it later.
    Unknown,
    /// It goes on.
    Continues {
        /// Its jobs from now on.
        jobs: Vec<ProcessId>,
        /// Whether one of them has a context now.
        at_work: bool,
    },
}

/// By eid.
pub(super) type Fates = HashMap<String, Fate>;

/// Jobs that are not recorded yet, by eid.
pub(super) type NewJobs = BTreeMap<String, Vec<ProcessId>>;

/// What the fates of environments depend on.
pub(super) struct Evidence<'a> {
    /// The state directory.
    pub(super) directory: &'a Path,
    pub(super) processes: &'a mut dyn ProcessSource,
    /// Asked once, if at all.
    pub(super) contexts: &'a mut dyn FnMut() -> Option<Contexts>,
    pub(super) now_seconds: f64,
    pub(super) linger_seconds: f64,
}

/// The fates of these environments, each with the devices that it holds.
pub(super) fn fates(
    state: &State,
    ended: &[(EnvironmentState, Vec<u32>)],
    evidence: &mut Evidence<'_>,
) -> Fates {
    let mut contexts = None;
    let mut judge = |(environment, devices): &(EnvironmentState, Vec<u32>)| {
        let fate = fate(state, environment, devices, evidence, &mut contexts);
        (environment.eid.clone(), fate)
    };
    ended.iter().map(&mut judge).collect()
}

fn fate(
    state: &State,
    environment: &EnvironmentState,
    devices: &[u32],
    evidence: &mut Evidence<'_>,
    contexts: &mut Option<Option<Contexts>>,
) -> Fate {
    let Some(mut pids) = processes_of(environment.uid) else {
        return Fate::Unknown;
    };
    if !reads_environs_of(environment.uid) {
        return if may_have_jobs(environment, &pids, evidence.processes) {
            Fate::Unknown
        } else {
            Fate::Ends
        };
    }
    if devices.is_empty() {
        return Fate::Ends;
    }
    let contexts = contexts.get_or_insert_with(|| (evidence.contexts)());
    let held = |device: &u32| contexts.as_ref().and_then(|contexts| contexts.get(device));
    let using: BTreeSet<u32> = devices.iter().filter_map(held).flatten().copied().collect();
    let are_known = devices.iter().all(|device| held(device).is_some());
    // One in a container may be of another uid.
    pids.extend(&using);
    let table = evidence.processes.read(&ProcessRequest {
        processes: pids,
        members: environment.pids.clone(),
    });
    let mut buffer = buffer();
    let mut is_elsewhere = |pid| {
        let environ = read_environ(pid, &mut buffer).unwrap_or_default();
        is_elsewhere(environ, evidence.directory)
    };
    let (mut own, mut at_work, mut is_unclear) = (Vec::new(), Vec::new(), false);
    for (&pid, read) in &table.processes {
        let ProcessRead::Present(facts) = read else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let process = ProcessId {
            pid,
            start_time_ticks: facts.start_time_ticks,
        };
        match belonging(environment, &state.recorded, pid, facts, &table) {
            Belonging::Own if is_elsewhere(pid) => {}
            Belonging::Own if using.contains(&pid) => at_work.push(process),
            Belonging::Own => own.push(process),
            Belonging::Unclear => is_unclear |= using.contains(&pid),
            Belonging::Other => {}
        }
    }
    if !at_work.is_empty() {
        // What has no context keeps no device, and is no job any more.
        return Fate::Continues {
            jobs: oldest(at_work, MOST_JOBS),
            at_work: true,
        };
    }
    let known = state.recorded.known.get(&environment.eid);
    let last = known
        .filter(|known| known.is_of(environment))
        .and_then(|known| known.context_seconds);
    if is_unclear {
        Fate::Unknown
    } else if own.is_empty() {
        Fate::Ends
    } else if lingers(last, evidence.now_seconds, evidence.linger_seconds) {
        let recorded = own.iter().filter(|it| environment.pids.contains(&it.pid));
        let recorded: Vec<ProcessId> = recorded.copied().collect();
        Fate::Continues {
            jobs: oldest(if recorded.is_empty() { own } else { recorded }, MOST_JOBS),
            at_work: false,
        }
    } else if are_known {
        Fate::Ends
    } else {
        Fate::Unknown
    }
}

fn oldest(mut processes: Vec<ProcessId>, most: usize) -> Vec<ProcessId> {
    processes.sort_unstable_by_key(|it| (it.start_time_ticks, it.pid));
    processes.truncate(most);
    processes
}

/// Whether a context that is seen now is to be noted: it was not noted for a part of the linger time.
pub(super) fn is_news(known: Option<&Known>, now_seconds: f64, linger_seconds: f64) -> bool {
    let noted = known.and_then(|known| known.context_seconds);
    noted.is_none_or(|noted| !(0.0..linger_seconds / 8.0).contains(&(now_seconds - noted)))
}

/// The environments of the caller that hold devices and have a living shell, `table` has their members.
fn watched<'a>(state: &'a State, table: &ProcessTable) -> Vec<&'a EnvironmentState> {
    let own = geteuid().as_raw();
    let attachments = state.devices.iter().flat_map(|device| &device.attachments);
    let holding: BTreeSet<&str> = attachments.map(|it| it.eid.as_str()).collect();
    let is_watched = |environment: &&EnvironmentState| {
        let created = environment.created_timestamp_seconds;
        let is_shell = |pid: &u32| {
            table.living(*pid).is_some() && !state.recorded.is_job(&environment.eid, created, *pid)
        };
        environment.uid == own
            && holding.contains(environment.eid.as_str())
            && environment.pids.iter().any(is_shell)
    };
    state.environments.iter().filter(is_watched).collect()
}

/// Whether jobs are looked for at all.
pub(super) fn are_watched(state: &State, table: &ProcessTable) -> bool {
    !watched(state, table).is_empty()
}

/// Processes of the caller's environments that are not recorded yet, so that genv 1.x, which knows members alone, finds
/// living ones when the shells have ended. Those whose variables name no environment, such as subshells, are left out.
pub(super) fn find_new(state: &State, table: &ProcessTable, directory: &Path) -> NewJobs {
    let watched: BTreeSet<String> = watched(state, table)
        .iter()
        .map(|it| it.eid.clone())
        .collect();
    if watched.is_empty() {
        return NewJobs::new();
    }
    let (state, directory) = (state.clone(), directory.to_owned());
    let (sender, receiver) = mpsc::channel();
    // If it hangs, it ends with this program.
    thread::spawn(move || sender.send(look_for(&state, &watched, &directory)));
    receiver.recv_timeout(PATIENCE).unwrap_or_default()
}

fn look_for(state: &State, watched: &BTreeSet<String>, directory: &Path) -> NewJobs {
    let environments = state.environments.iter();
    let environments = environments.filter(|it| watched.contains(&it.eid));
    let known: BTreeSet<u32> = environments.flat_map(|it| &it.pids).copied().collect();
    let (own, mut buffer) = (std::process::id(), buffer());
    let mut pids = processes_of(geteuid().as_raw()).unwrap_or_default();
    pids.retain(|&pid| {
        pid != own && !known.contains(&pid) && may_name(pid, watched, directory, &mut buffer)
    });
    if pids.is_empty() {
        return NewJobs::new();
    }
    let table = ProcReader::new().read(&ProcessRequest {
        processes: pids.iter().copied().chain([own]).collect(),
        members: known.into_iter().collect(),
    });
    let wrappers = wrappers(own, &table);
    let live = live_environments(state, &table);
    let attributor = Attributor::new(state, &live, true, &table);
    let mut found = NewJobs::new();
    for pid in pids {
        let Some(ProcessRead::Present(facts)) = table.processes.get(&pid) else {
            continue;
        };
        let is_passing = table.zombies.contains(&pid) || wrappers.contains(&pid);
        if facts.claim == Claim::Absent || is_passing {
            continue;
        }
        let attribution = attributor.attribute(pid);
        if let Some(eid) = attribution.eid().filter(|eid| watched.contains(*eid)) {
            found.entry(eid.to_owned()).or_default().push(ProcessId {
                pid,
                start_time_ticks: facts.start_time_ticks,
            });
        }
    }
    for environment in &state.environments {
        let Some(jobs) = found.remove(&environment.eid) else {
            continue;
        };
        let living = environment
            .pids
            .iter()
            .filter(|pid| table.living(**pid).is_some());
        let jobs = oldest(jobs, MOST_JOBS.saturating_sub(living.count()));
        if !jobs.is_empty() {
            found.insert(environment.eid.clone(), jobs);
        }
    }
    found
}

/// Ancestors of a process that hardly began earlier, such as the subshell of a prompt, and end with it.
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

/// Whether a process names one of these environments, or does not show what it names.
fn may_name(
    pid: u32,
    eids: &BTreeSet<String>,
    directory: &Path,
    buffer: &mut Vec<u8>,
) -> bool {
    let environ = match read_environ(pid, buffer) {
        Ok(environ) => environ,
        // It ended, or is a thread of the kernel.
        Err(Errno::NOENT | Errno::SRCH) => return false,
        Err(_) => &[],
    };
    match variable(environ, b"GENV_ENVIRONMENT_ID=") {
        Some(eid) => {
            eids.contains(String::from_utf8_lossy(eid).as_ref())
                && !is_elsewhere(environ, directory)
        }
        None if environ.is_empty() => !is_kernel_thread(pid),
        // One that was overwritten, as setproctitle does, is not made of entries.
        None => {
            let entries = environ.strip_suffix(&[0]).unwrap_or(environ);
            entries
                .split(|&byte| byte == 0)
                .any(|entry| !entry.contains(&b'='))
        }
    }
}

/// Whether the environment that a process names is one of another state directory, which may have the same ids.
fn is_elsewhere(environ: &[u8], directory: &Path) -> bool {
    let named = variable(environ, b"GENV_TMPDIR=").filter(|named| !named.is_empty());
    let named = named.map(|named| Path::new(OsStr::from_bytes(named)));
    let file = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    named.is_some_and(|named| {
        named != directory && file(named).is_none_or(|it| Some(it) != file(directory))
    })
}

/// Whether this program may read the environ of every process of a user (ptrace(2), `PTRACE_MODE_READ`).
pub(super) fn reads_environs_of(uid: u32) -> bool {
    geteuid().as_raw() == uid || geteuid().is_root() || File::open("/proc/1/environ").is_ok()
}

/// Whether a process that was started since the environment was made may be one of its own, for a caller who cannot read
/// what it names. `pids` are those that the kernel shows as its user's.
fn may_have_jobs(
    environment: &EnvironmentState,
    pids: &[u32],
    processes: &mut dyn ProcessSource,
) -> bool {
    let Some(created) = environment.created_timestamp_seconds else {
        return true;
    };
    let is_since = |pid: u32, table: &ProcessTable| {
        let started = table.living(pid).map(|it| it.start_timestamp_seconds);
        started.is_some_and(|started| started >= created - START_TOLERANCE_SECONDS)
    };
    let table = processes.read(&ProcessRequest {
        processes: Vec::new(),
        members: pids.to_vec(),
    });
    if pids.iter().any(|&pid| is_since(pid, &table)) {
        return true;
    }
    // What may not be traced belongs to root in /proc, whoever runs it; what runs in a container, to others.
    let others = processes_where(|_| true).unwrap_or_default();
    let table = processes.read(&ProcessRequest {
        processes: others,
        members: Vec::new(),
    });
    let uid = environment.uid;
    table.processes.iter().any(|(&pid, read)| {
        let ProcessRead::Present(facts) = read else {
            return *read == ProcessRead::Unreadable;
        };
        let uids = [facts.uid, facts.real_uid];
        let runs_as_user = uids.into_iter().flatten().any(|it| table.owner(it) == uid);
        (runs_as_user || may_be_of(facts, uid)) && is_since(pid, &table)
    })
}

/// The processes of a user; none if others' processes are hidden here (`hidepid`).
pub(super) fn processes_of(uid: u32) -> Option<Vec<u32>> {
    processes_where(|owner| owner == uid)
}

fn processes_where(is_wanted: impl Fn(u32) -> bool) -> Option<Vec<u32>> {
    fs::metadata("/proc/1").ok()?;
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let wanted = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        is_wanted(entry.metadata().ok()?.uid()).then_some(pid)
    });
    Some(wanted.collect())
}
