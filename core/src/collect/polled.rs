//! Snapshots of a host that is asked from elsewhere, by programs that it has: what they tell is assembled and accounted
//! as what sources tell.

use std::collections::{BTreeMap, HashMap};

use super::CollectOptions;
use super::clock::Moment;
use super::view::{Evidence, Held, ProcessAnswer, View};
use crate::accounting::Reading;
use crate::gpu::GpuSample;
use crate::model::{CollectorStatus, Snapshot};
use crate::proc::ProcessTable;
use crate::state::State;

/// What a host told when it was asked. What it did not tell says why.
#[derive(Debug)]
pub struct Told {
    /// Its devices, and the processes on them.
    pub gpu: Result<GpuSample, String>,
    /// Its environments. A process whose environment began after they were asked for seems to claim one that there is not.
    pub state: Result<State, String>,
    /// The processes of both.
    pub processes: Result<ProcessTable, String>,
    /// What its users are called, by uid.
    pub usernames: HashMap<u32, String>,
    /// How long it took to tell all of that.
    pub duration_seconds: f64,
}

/// When a host told something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToldAt {
    /// By a clock here that never goes back.
    pub seconds: f64,
    /// Unix time, by the clock of the host.
    pub timestamp_seconds: f64,
}

/// A host that is asked from elsewhere, and what is remembered of it.
pub struct PolledHost {
    view: View,
    evidence: Evidence,
    statuses: BTreeMap<String, CollectorStatus>,
}

impl PolledHost {
    /// Nothing is known of it yet.
    #[must_use]
    pub fn new(hostname: String, options: &CollectOptions) -> Self {
        Self { view: View::new(hostname, false, options), evidence: Evidence::default(), statuses: BTreeMap::new() }
    }

    /// The snapshot of what it told now. What it told before stands in the place of what it did not tell, until it is too
    /// old.
    pub fn observe(&mut self, told: Told, at: ToldAt) -> Snapshot {
        let Told { gpu, state, processes, usernames, duration_seconds } = told;
        let mut keep = Keep { statuses: &mut self.statuses, at, duration_seconds };
        let mut reading = Reading::default();
        if let Some(gpu) = keep.told("gpu", gpu) {
            reading.read_seconds = Some(at.seconds);
            self.evidence.gpu = Some(gpu);
        }
        let warnings = state.as_ref().ok().map(|state| state.warnings.join("; "));
        let state = keep.told("state", state);
        if let Some(warnings) = warnings.filter(|it| !it.is_empty())
            && let Some(status) = keep.statuses.get_mut("state")
        {
            status.error = Some(warnings);
        }
        let processes = processes.map(|table| ProcessAnswer { table, usernames });
        let processes = keep.told("processes", processes);
        self.evidence.state_is_fresh = state.is_some() && processes.is_some();
        self.evidence.state = state.or(self.evidence.state.take());
        self.evidence.processes = processes.or(self.evidence.processes.take());
        let now = Moment { seconds: at.seconds, timestamp_seconds: at.timestamp_seconds };
        self.view.observe(now, &mut self.evidence, reading, self.statuses.clone())
    }
}

/// Keeps what was told, and how each part of it fares.
struct Keep<'a> {
    statuses: &'a mut BTreeMap<String, CollectorStatus>,
    at: ToldAt,
    duration_seconds: f64,
}

impl Keep<'_> {
    fn told<T>(&mut self, name: &str, told: Result<T, String>) -> Option<Held<T>> {
        let status = self.statuses.entry(name.to_owned()).or_default();
        status.duration_seconds = Some(self.duration_seconds);
        status.success = told.is_ok();
        match told {
            Ok(value) => {
                status.error = None;
                status.timestamp_seconds = Some(self.at.timestamp_seconds);
                Some(Held {
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
