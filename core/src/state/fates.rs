//! The fate of environments without a living shell ([`super::linger`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::EnvironmentState;
use super::data::ProcessId;
use super::jobs::{MOST_JOBS, is_elsewhere, oldest, processes_by_user, reads_environs_of};
use super::linger::{Belonging, START_TOLERANCE_SECONDS, belonging, lingers};
use crate::proc::{ProcessRead, ProcessRequest, ProcessSource, ProcessTable, read_environs};

/// The processes with a context on each device, by its index. A device is missing if its processes are not known.
pub type Contexts = BTreeMap<u32, BTreeSet<u32>>;

/// The fate of an environment without a living shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// None of its processes has a context on a device that it holds, or had one within the linger time.
    Ends,
    /// The evidence is missing: a command with the evidence decides later.
    Unknown,
    /// The environment continues.
    Continues {
        /// Its jobs from now on.
        jobs: Vec<ProcessId>,
        /// Whether one of the jobs has a context now.
        at_work: bool,
    },
}

/// Fates by eid.
pub(super) type Fates = HashMap<String, Fate>;

/// An environment without a shell, with the devices that it holds.
pub(super) type ShelllessEnvironment = (EnvironmentState, Vec<u32>);

/// The evidence for the fates of environments.
pub(super) struct FateEvidence<'a> {
    /// The state directory.
    pub(super) directory: &'a Path,
    pub(super) processes: &'a mut dyn ProcessSource,
    /// Called once at most.
    pub(super) contexts: &'a mut dyn FnMut() -> Option<Contexts>,
    pub(super) now_seconds: f64,
    pub(super) linger_seconds: f64,
}

/// The fates of these environments. The processes are read once for all of them: every user may write thousands of
/// records in the name of other users.
pub(super) fn fates(ended: &[ShelllessEnvironment], evidence: &mut FateEvidence<'_>) -> Fates {
    if ended.is_empty() {
        return Fates::new();
    }
    let Some(by_user) = processes_by_user() else {
        let unknown = ended.iter().map(|(it, _)| (it.eid.clone(), Fate::Unknown));
        return unknown.collect();
    };
    let mut readable: HashMap<u32, bool> = HashMap::new();
    let mut is_readable = |uid| *readable.entry(uid).or_insert_with(|| reads_environs_of(uid));
    let (own, others): (Vec<&ShelllessEnvironment>, Vec<&ShelllessEnvironment>) =
        ended.iter().partition(|(it, _)| is_readable(it.uid));
    let (own, without): (Vec<&ShelllessEnvironment>, Vec<&ShelllessEnvironment>) =
        own.into_iter().partition(|(_, devices)| !devices.is_empty());
    let mut fates: Fates = without.into_iter().map(|(it, _)| (it.eid.clone(), Fate::Ends)).collect();
    fates.extend(fates_by_processes(&own, &by_user, evidence));
    let mut starts = StartTimes::new(&by_user);
    fates.extend(others.into_iter().map(|(environment, _)| {
        let fate = if starts.may_have_jobs(environment, evidence.processes) { Fate::Unknown } else { Fate::Ends };
        (environment.eid.clone(), fate)
    }));
    fates
}

/// The fates of environments whose processes' variables the caller may read.
fn fates_by_processes(
    environments: &[&ShelllessEnvironment],
    by_user: &HashMap<u32, Vec<u32>>,
    evidence: &mut FateEvidence<'_>,
) -> Fates {
    if environments.is_empty() {
        return Fates::new();
    }
    let contexts = (evidence.contexts)().unwrap_or_default();
    // A process in a container may run as another uid. If the processes of a device are not known, each process may use
    // the device.
    let candidates = |(environment, devices): &ShelllessEnvironment| {
        let mut pids: BTreeSet<u32> = by_user.get(&environment.uid).into_iter().flatten().copied().collect();
        for device in devices {
            match contexts.get(device) {
                Some(using) => pids.extend(using),
                None => pids.extend(by_user.values().flatten()),
            }
        }
        pids
    };
    let processes: BTreeSet<u32> = environments.iter().flat_map(|it| candidates(it)).collect();
    let members = environments.iter().flat_map(|(it, _)| it.pids());
    let table = evidence
        .processes
        .read(&ProcessRequest { processes: processes.into_iter().collect(), members: members.collect() });
    let fate = |it: &&ShelllessEnvironment| {
        let fate = fate(it, &candidates(it), &contexts, &table, evidence);
        (it.0.eid.clone(), fate)
    };
    environments.iter().map(fate).collect()
}

fn fate(
    (environment, devices): &ShelllessEnvironment,
    candidates: &BTreeSet<u32>,
    contexts: &Contexts,
    table: &ProcessTable,
    evidence: &FateEvidence<'_>,
) -> Fate {
    let held = |device: &u32| contexts.get(device);
    let using: BTreeSet<u32> = devices.iter().filter_map(held).flatten().copied().collect();
    let are_known = devices.iter().all(|device| held(device).is_some());
    let (mut all_own, mut is_unclear) = (Vec::new(), false);
    for &pid in candidates {
        let Some(ProcessRead::Present(facts)) = table.processes.get(&pid) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        match belonging(environment, pid, facts, table) {
            Belonging::Own => all_own.push(ProcessId { pid, start_time_ticks: facts.start_time_ticks }),
            // A process whose reads hang may turn out to belong to the environment.
            Belonging::Unclear => {
                is_unclear |= using.contains(&pid) || table.unread.contains(&pid);
            }
            Belonging::Other => {}
        }
    }
    let directory = evidence.directory.to_owned();
    let elsewhere = read_environs(all_own.iter().map(|it| it.pid).collect(), move |_, environ| {
        is_elsewhere(environ.unwrap_or_default(), &directory)
    });
    all_own.retain(|it| elsewhere.get(&it.pid) != Some(&true));
    let (at_work, own): (Vec<_>, Vec<_>) = all_own.into_iter().partition(|it| using.contains(&it.pid));
    if !at_work.is_empty() {
        // A process without a context keeps no device, and is no longer a job.
        return Fate::Continues { jobs: oldest(at_work, MOST_JOBS), at_work: true };
    }
    let last = environment.context_seconds;
    if is_unclear {
        Fate::Unknown
    } else if own.is_empty() {
        Fate::Ends
    } else if lingers(last, evidence.now_seconds, evidence.linger_seconds) {
        let recorded = own.iter().filter(|it| environment.member(it.pid).is_some());
        let recorded: Vec<ProcessId> = recorded.copied().collect();
        Fate::Continues { jobs: oldest(if recorded.is_empty() { own } else { recorded }, MOST_JOBS), at_work: false }
    } else if are_known {
        Fate::Ends
    } else {
        Fate::Unknown
    }
}

/// Whether a context that is seen now is to be recorded: the last record is older than a part of the linger time.
pub(super) fn is_news(noted: Option<f64>, now_seconds: f64, linger_seconds: f64) -> bool {
    noted.is_none_or(|noted| !(0.0..linger_seconds / 8.0).contains(&(now_seconds - noted)))
}

/// Start times of processes whose variables the caller cannot read. Such a process may belong to an environment if it
/// may run as the environment's user and started after the creation of the environment.
struct StartTimes<'a> {
    by_user: &'a HashMap<u32, Vec<u32>>,
    /// The newest start by owner in `/proc`.
    owned: HashMap<u32, f64>,
    /// The newest starts of processes that run, or may run, as a user.
    running: Option<NewestStarts>,
}

/// The newest starts of processes by user, Unix time.
struct NewestStarts {
    of_user: HashMap<u32, f64>,
    /// Of processes that may belong to any user.
    of_any_user: f64,
}

/// The start of no process.
const NEVER_SECONDS: f64 = f64::NEG_INFINITY;

impl<'a> StartTimes<'a> {
    fn new(by_user: &'a HashMap<u32, Vec<u32>>) -> Self {
        Self { by_user, owned: HashMap::new(), running: None }
    }

    fn may_have_jobs(&mut self, environment: &EnvironmentState, processes: &mut dyn ProcessSource) -> bool {
        let Some(created) = environment.created_timestamp_seconds else {
            return true;
        };
        let earliest = created - START_TOLERANCE_SECONDS;
        let uid = environment.uid;
        self.newest_owned(uid, processes) >= earliest || self.newest_running(uid, processes) >= earliest
    }

    fn newest_owned(&mut self, uid: u32, processes: &mut dyn ProcessSource) -> f64 {
        let Some(pids) = self.by_user.get(&uid) else {
            return NEVER_SECONDS;
        };
        *self.owned.entry(uid).or_insert_with(|| {
            let table = processes.read(&ProcessRequest { processes: Vec::new(), members: pids.clone() });
            let started = pids.iter().map(|pid| started(&table, *pid));
            started.fold(NEVER_SECONDS, f64::max)
        })
    }

    /// `/proc` shows root as the owner of processes that may not be traced, and other owners for processes in
    /// containers.
    fn newest_running(&mut self, uid: u32, processes: &mut dyn ProcessSource) -> f64 {
        let by_user = self.by_user;
        let newest = self.running.get_or_insert_with(|| {
            let table = processes.read(&ProcessRequest {
                processes: by_user.values().flatten().copied().collect(),
                members: Vec::new(),
            });
            NewestStarts::of(&table)
        });
        let of_user = newest.of_user.get(&uid).copied();
        of_user.unwrap_or(NEVER_SECONDS).max(newest.of_any_user)
    }
}

impl NewestStarts {
    fn of(table: &ProcessTable) -> Self {
        let mut newest = Self { of_user: HashMap::new(), of_any_user: NEVER_SECONDS };
        for (&pid, read) in &table.processes {
            let facts = match read {
                ProcessRead::Present(facts) => facts,
                ProcessRead::Unreadable => {
                    newest.of_any_user = f64::INFINITY;
                    continue;
                }
                ProcessRead::Vanished => continue,
            };
            let started = started(table, pid);
            let runs_as = [facts.uid, facts.real_uid].into_iter().flatten();
            let users = runs_as.flat_map(|uid| [uid, table.owner(uid)]);
            for user in users.chain(facts.container_owner) {
                let of_user = newest.of_user.entry(user).or_insert(NEVER_SECONDS);
                *of_user = of_user.max(started);
            }
            if facts.container_id.is_some() && facts.container_owner.is_none() {
                newest.of_any_user = newest.of_any_user.max(started);
            }
        }
        newest
    }
}

fn started(table: &ProcessTable, pid: u32) -> f64 {
    let living = table.living(pid);
    living.map_or(NEVER_SECONDS, |it| it.start_timestamp_seconds)
}

#[cfg(test)]
mod tests {
    use rustix::process::geteuid;

    use super::*;
    use crate::proc::{Claim, MissingEvidence, ProcessFacts};

    /// The first process is in a container, and runs as another user.
    struct Container(Claim);

    impl ProcessSource for Container {
        fn read(&mut self, _: &ProcessRequest) -> ProcessTable {
            let facts = ProcessFacts {
                start_time_ticks: 1,
                uid: Some(4_000_000),
                real_uid: Some(4_000_000),
                comm: "train".to_owned(),
                container_id: Some("c".to_owned()),
                container_owner: None,
                claim: self.0.clone(),
            };
            ProcessTable {
                processes: [(1, ProcessRead::Present(facts))].into_iter().collect(),
                ..ProcessTable::default()
            }
        }

        fn username(&mut self, uid: u32) -> String {
            uid.to_string()
        }
    }

    #[test]
    fn an_environment_ends_only_where_it_is_known_which_processes_use_its_devices() {
        let environment = EnvironmentState {
            eid: "e1".to_owned(),
            uid: geteuid().as_raw(),
            members: vec![u32::MAX.into()],
            ..EnvironmentState::default()
        };
        let named = Claim::Named("e1".to_owned());
        let unreadable = Claim::Missing(MissingEvidence::EnvironUnreadable);
        for (claim, contexts, ends) in [
            (named.clone(), None, false),
            (unreadable.clone(), None, true),
            (Claim::Absent, None, true),
            (named, Some(Contexts::from([(0, BTreeSet::new())])), true),
            (unreadable, Some(Contexts::from([(0, BTreeSet::new())])), true),
        ] {
            let shellless = (environment.clone(), vec![0]);
            let mut evidence = FateEvidence {
                directory: Path::new("/nonexistent"),
                processes: &mut Container(claim.clone()),
                contexts: &mut || contexts.clone(),
                now_seconds: 1000.0,
                linger_seconds: 60.0,
            };
            let fates = fates(&[shellless], &mut evidence);
            let expected = if ends { Fate::Ends } else { Fate::Unknown };
            assert_eq!(fates["e1"], expected, "{claim:?} {contexts:?}");
        }
    }
}
