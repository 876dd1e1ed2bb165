//! The evidence of one host as a snapshot, and the facts that one cycle keeps for the next.
//!
//! This module reads no source and no clock: a cycle is a function of its evidence, so that a test can play days.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::clock::Moment;
use super::contradictions::Contradictions;
use super::contradictory::Contradictory;
use super::devices::{Devices, moved_environments};
use super::distrusted::DistrustedCounts;
use super::environments::{self, LastActive};
use super::lingering::Lingering;
use super::processes;
use super::unexplained::Unexplained;
use super::withheld;
use super::{CollectOptions, Collectors};
use crate::accounting::{GpuReading, Ledger, Observed};
use crate::attribute::{Attributor, LiveEnvironment, live_environments};
use crate::gpu::GpuSample;
use crate::gpu::bounds::Bounds;
use crate::model::{CollectorStatus, Occupants, QueuedProcess, SNAPSHOT_VERSION, Snapshot};
use crate::proc::{INITIAL_PID_NAMESPACE, ProcessTable};
use crate::state::State;

/// A value from a source, with its times.
#[derive(Clone, Debug)]
pub(super) struct Timed<T> {
    pub(super) value: T,
    /// When the source was asked, by the clock of [`Moment::seconds`].
    pub(super) asked_seconds: f64,
    /// When the value was read, by the same clock.
    pub(super) read_seconds: f64,
    /// When the value was read, Unix time.
    pub(super) timestamp_seconds: f64,
}

/// The last value of each source.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    pub(super) gpu: Option<Timed<GpuSample>>,
    /// The state of the question to which `processes` is the answer.
    pub(super) state: Option<Timed<State>>,
    pub(super) processes: Option<Timed<ProcessAnswer>>,
    /// Whether state and processes were read in this cycle, after the devices.
    pub(super) state_is_fresh: bool,
}

/// Processes, and the names of their users and of the environments' users.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessAnswer {
    pub(super) table: ProcessTable,
    pub(super) usernames: HashMap<u32, String>,
}

/// The facts of one host that cycles keep.
pub(super) struct View {
    hostname: String,
    simulated: bool,
    interval_seconds: f64,
    max_age_seconds: f64,
    busy_above: f64,
    collectors: Collectors,
    devices: Devices,
    occupants: Occupants,
    usernames: Usernames,
    last_active: LastActive,
    lingering: Lingering,
    ledger: Ledger,
    bounds: Bounds,
    distrusted: DistrustedCounts,
    contradictions: Contradictions,
    contradictory: Contradictory,
    unexplained: Unexplained,
    previous: Observed,
    /// Absent before the first observation: earlier time is not charged.
    previous_seconds: Option<f64>,
}

impl View {
    pub(super) fn new(hostname: String, simulated: bool, options: &CollectOptions) -> Self {
        Self {
            hostname,
            simulated,
            interval_seconds: options.interval.as_secs_f64(),
            max_age_seconds: options.max_age.as_secs_f64(),
            busy_above: options.busy_above,
            collectors: options.collectors,
            devices: Devices::default(),
            occupants: Occupants::default(),
            usernames: Usernames::default(),
            last_active: LastActive::default(),
            lingering: Lingering::new(),
            ledger: Ledger::new(options.busy_above),
            bounds: Bounds::default(),
            distrusted: DistrustedCounts::default(),
            contradictions: Contradictions::default(),
            contradictory: Contradictory::new(options.contradictory_after),
            unexplained: Unexplained::default(),
            previous: Observed::default(),
            previous_seconds: None,
        }
    }

    /// The snapshot of one cycle.
    pub(super) fn observe(
        &mut self,
        now: Moment,
        evidence: &mut Evidence,
        reading: GpuReading,
        mut collectors: BTreeMap<String, CollectorStatus>,
    ) -> Snapshot {
        if collectors.get("gpu").is_some_and(|it| !it.success) {
            self.contradictory.follow_failure(now.seconds);
        }
        let sees_part = evidence.processes.as_ref().is_some_and(may_be_part);
        let sees_all = self.simulated || evidence.processes.as_ref().is_some_and(is_of_machine);
        if let Some(gpu) = evidence.gpu.as_mut().filter(|_| reading.read_seconds.is_some()) {
            let distrusted = self.bounds.apply(&mut gpu.value, gpu.read_seconds);
            self.distrusted.count(&distrusted);
            if self.contradictions.follow_driver(&gpu.value) {
                self.contradictory.end_all();
            }
            self.contradictory.follow(&gpu.value, &self.contradictions, sees_all, gpu.read_seconds);
            self.contradictions.mark(&mut gpu.value, gpu.read_seconds, sees_part);
            self.unexplained.mark(&mut gpu.value);
            withheld::complete(&mut gpu.value, &distrusted);
        }
        let evidence = &*evidence;
        let oldest = now.seconds - self.max_age_seconds;
        let gpu = evidence.gpu.as_ref().filter(|it| it.read_seconds >= oldest);
        let sample = gpu.map(|it| &it.value);
        let answer = evidence.processes.as_ref().filter(|it| it.read_seconds >= oldest);
        let answer = answer.map(|it| &it.value);
        let state = evidence.state.as_ref().filter(|it| it.read_seconds >= oldest);
        if let Some((state, status)) = state.zip(collectors.get_mut("state")) {
            status.timestamp_seconds = Some(state.timestamp_seconds);
        }
        let state = state.map(|it| &it.value);

        for (collector, current) in
            [("gpu", sample.is_some()), ("processes", answer.is_some()), ("state", state.is_some() && answer.is_some())]
        {
            if let Some(status) = collectors.get_mut(collector) {
                status.current = current;
            }
        }

        if let Some(answer) = answer {
            self.usernames.learn(&answer.usernames);
        }
        let no_table = ProcessTable::default();
        let table = answer.map_or(&no_table, |answer| &answer.table);
        // Without processes, no environment is known to live.
        let mut live: Vec<LiveEnvironment<'_>> = match (state, answer) {
            (Some(state), Some(_)) => live_environments(state, table),
            _ => Vec::new(),
        };
        let mut devices =
            self.devices.show(sample, self.collectors.processes, &self.contradictions, &self.contradictory);
        if let Some((sample, status)) = sample.zip(collectors.get_mut("gpu"))
            && status.success
        {
            status.error = self.devices.missing(sample, state, &live);
            status.withhold(sample.withheld.clone());
        }
        if let (Some(state), Some(_)) = (state, answer) {
            let moved = moved_environments(state, &devices, &self.occupants);
            self.lingering.extend(&mut live, state, table, sample, &moved, now);
        }
        let no_state = State::default();
        let attributor =
            Attributor::new(state.unwrap_or(&no_state), &live, evidence.state_is_fresh && state.is_some(), table);

        let processes = match sample {
            Some(sample) if self.collectors.processes => {
                processes::processes(sample, table, &attributor, &self.usernames)
            }
            _ => Vec::new(),
        };
        if let Some(status) = collectors.get_mut("processes").filter(|it| it.success) {
            status.withhold(withheld::of_processes(table, &processes));
        }
        if let Some(state) = state {
            self.devices.attach(&mut devices, state, &live, &self.occupants);
        }
        let mut environments =
            environments::environments(&live, state, &devices, &processes, answer.is_some(), table, &self.usernames);

        let new_sample = gpu.filter(|_| reading.read_seconds.is_some());
        if let Some(sample) = new_sample {
            self.occupants.note(&devices, sample.timestamp_seconds);
        }
        self.last_active.update(&mut environments, new_sample.map(|it| it.timestamp_seconds), self.busy_above);

        let mut snapshot = Snapshot {
            version: SNAPSHOT_VERSION,
            hostname: self.hostname.clone(),
            timestamp_seconds: now.timestamp_seconds,
            interval_seconds: self.interval_seconds,
            installed: state.is_some_and(|state| state.installed),
            simulated: self.simulated,
            sees_all_processes: evidence.processes.as_ref().is_some_and(is_of_machine),
            driver_version: sample.and_then(|sample| sample.driver_version.clone()),
            collectors,
            devices,
            environments: environments.into_iter().map(Arc::new).collect(),
            processes: processes.into_iter().map(Arc::new).collect(),
            queue: state.map_or_else(Vec::new, |state| self.queue(state)),
            refused_requests: state.map(|state| state.refused_requests),
            counters: Default::default(),
        };
        let current = Observed::of(&snapshot, reading, &mut self.ledger.users);
        let elapsed_seconds = now.seconds - self.previous_seconds.unwrap_or(now.seconds);
        self.ledger.step(&self.previous, &current, elapsed_seconds);
        self.previous = current;
        self.previous_seconds = Some(now.seconds);
        snapshot.counters = self.ledger.publish();
        snapshot.counters.device_distrusted_readings = self.distrusted.publish();
        snapshot
    }
}

impl View {
    fn queue(&self, state: &State) -> Vec<QueuedProcess> {
        let queue = state.queue.iter().map(|waiting| QueuedProcess {
            pid: waiting.pid,
            uid: Some(waiting.uid),
            username: self.usernames.of(waiting.uid),
            gpus: waiting.request.as_ref().and_then(|it| it.gpus),
            since_timestamp_seconds: waiting.since_timestamp_seconds.map(|seconds| seconds as f64),
        });
        queue.collect()
    }
}

/// Whether the pids of an answer are those of the machine's pid namespace, which has all processes.
fn is_of_machine(answer: &Timed<ProcessAnswer>) -> bool {
    answer.value.table.pid_namespace == Some(INITIAL_PID_NAMESPACE)
}

/// Whether the pids of an answer may be those of a pid namespace within the machine's. Those of another machine are not.
fn may_be_part(answer: &Timed<ProcessAnswer>) -> bool {
    answer.value.table.pid_namespace.is_some_and(|namespace| namespace != INITIAL_PID_NAMESPACE)
}

/// Names of users, as last read.
#[derive(Debug, Default)]
pub(super) struct Usernames(HashMap<u32, String>);

/// The number of names that are kept beside those of the last answer. Every user may write the state and invent any
/// number of users.
const MOST_NAMES: usize = 4096;

impl Usernames {
    fn learn(&mut self, usernames: &HashMap<u32, String>) {
        if self.0.len() > MOST_NAMES {
            self.0.clear();
        }
        for (uid, name) in usernames {
            if self.0.get(uid) != Some(name) {
                self.0.insert(*uid, name.clone());
            }
        }
    }

    /// The passwd name of a uid, else `uid:1234`.
    pub(super) fn of(&self, uid: u32) -> String {
        self.0.get(&uid).map_or_else(|| format!("uid:{uid}"), String::clone)
    }
}
