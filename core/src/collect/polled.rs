//! Snapshots of a host that another machine polls by programs of the host. Their output is assembled and accounted as
//! the values of sources are.

use std::collections::{BTreeMap, HashMap};

use super::CollectOptions;
use super::clock::Moment;
use super::view::{Evidence, ProcessAnswer, Timed, View};
use crate::accounting::GpuReading;
use crate::gpu::GpuSample;
use crate::model::{CollectorStatus, Snapshot};
use crate::proc::ProcessTable;
use crate::state::State;

/// The answer of a host to one poll. A missing part has the reason.
#[derive(Debug)]
pub struct PollReport {
    /// Its devices, and the processes on them.
    pub gpu: Result<GpuSample, String>,
    /// Its environments. A process of an environment that was created after this question seems to claim an environment
    /// that does not exist.
    pub state: Result<State, String>,
    /// The processes of devices and environments.
    pub processes: Result<ProcessTable, String>,
    /// The names of its users, by uid.
    pub usernames: HashMap<u32, String>,
    /// The duration of the whole poll.
    pub duration_seconds: f64,
}

/// The time of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PollTime {
    /// By a clock here that never goes back.
    pub seconds: f64,
    /// Unix time, by the clock of the host.
    pub timestamp_seconds: f64,
}

/// A polled host, and the facts that polls keep.
pub struct PolledHost {
    view: View,
    evidence: Evidence,
    statuses: BTreeMap<String, CollectorStatus>,
}

impl PolledHost {
    /// A host without an answer so far.
    pub fn new(hostname: String, options: &CollectOptions) -> Self {
        Self { view: View::new(hostname, false, options), evidence: Evidence::default(), statuses: BTreeMap::new() }
    }

    /// The snapshot of this answer. Earlier values replace missing parts until they are too old.
    pub fn observe(&mut self, report: PollReport, at: PollTime) -> Snapshot {
        let PollReport { gpu, state, processes, usernames, duration_seconds } = report;
        let mut update = StatusUpdate { statuses: &mut self.statuses, at, duration_seconds };
        let mut reading = GpuReading::default();
        if let Some(gpu) = update.take("gpu", gpu) {
            reading.read_seconds = Some(at.seconds);
            self.evidence.gpu = Some(gpu);
        }
        let warnings = state.as_ref().ok().map(|state| state.warnings.join("; "));
        let state = update.take("state", state);
        if let Some(warnings) = warnings.filter(|it| !it.is_empty())
            && let Some(status) = update.statuses.get_mut("state")
        {
            status.error = Some(warnings);
        }
        let processes = processes.map(|table| ProcessAnswer { table, usernames });
        let processes = update.take("processes", processes);
        self.evidence.state_is_fresh = state.is_some() && processes.is_some();
        self.evidence.state = state.or(self.evidence.state.take());
        self.evidence.processes = processes.or(self.evidence.processes.take());
        let now = Moment { seconds: at.seconds, timestamp_seconds: at.timestamp_seconds };
        self.view.observe(now, &mut self.evidence, reading, self.statuses.clone())
    }
}

/// Updates the status of each collector by its part of the answer.
struct StatusUpdate<'a> {
    statuses: &'a mut BTreeMap<String, CollectorStatus>,
    at: PollTime,
    duration_seconds: f64,
}

impl StatusUpdate<'_> {
    fn take<T>(&mut self, name: &str, part: Result<T, String>) -> Option<Timed<T>> {
        let status = self.statuses.entry(name.to_owned()).or_default();
        status.duration_seconds = Some(self.duration_seconds);
        status.success = part.is_ok();
        match part {
            Ok(value) => {
                status.error = None;
                status.timestamp_seconds = Some(self.at.timestamp_seconds);
                Some(Timed {
                    value,
                    asked_seconds: self.at.seconds,
                    read_seconds: self.at.seconds,
                    timestamp_seconds: self.at.timestamp_seconds,
                })
            }
            Err(error) => {
                status.error = Some(error);
                None
            }
        }
    }
}
