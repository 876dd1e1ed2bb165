//! A host whose sources and clock a test sets.

use std::collections::BTreeMap;

use super::*;
use crate::accounting::GpuReading;
use crate::collect::CollectOptions;
use crate::collect::clock::Moment;
use crate::collect::view::{Evidence, ProcessAnswer, Timed, View};
use crate::model::CollectorStatus;

/// A host whose sources answer with the values of the fields.
pub(super) struct Lab {
    pub(super) now_seconds: f64,
    /// Absent: the source does not answer, and its last values stay valid.
    pub(super) gpu: Option<GpuSample>,
    pub(super) state: Option<State>,
    pub(super) table: Option<ProcessTable>,
    evidence: Evidence,
    view: View,
}

pub(super) const UNIX: f64 = 1_900.0;

impl Lab {
    pub(super) fn new() -> Self {
        Self::with(&CollectOptions::default())
    }

    pub(super) fn with(options: &CollectOptions) -> Self {
        Self {
            now_seconds: 0.0,
            gpu: Some(sample(vec![gpu(0), gpu(1)])),
            state: Some(state(Vec::new(), Vec::new())),
            table: Some(ProcessTable::default()),
            evidence: Evidence::default(),
            view: View::new("lab".to_owned(), false, options),
        }
    }

    /// One cycle, this long after the last.
    pub(super) fn after(&mut self, seconds: f64) -> Snapshot {
        let mut snapshot = self.look(seconds);
        // The collectors' health is no part of the view.
        snapshot.collectors = BTreeMap::new();
        snapshot
    }

    /// The statuses of the collectors after a cycle without faults.
    pub(super) fn statuses(&mut self, seconds: f64) -> BTreeMap<String, CollectorStatus> {
        self.look(seconds).collectors
    }

    fn look(&mut self, seconds: f64) -> Snapshot {
        self.now_seconds += seconds;
        let now = self.now_seconds;
        let mut reading = GpuReading::default();
        if let Some(sample) = &mut self.gpu {
            reading.read_seconds = Some(now);
            reading.xid_events = std::mem::take(&mut sample.xid_events);
            self.evidence.gpu = Some(held(sample.clone(), now));
        }
        if let Some(state) = &self.state {
            self.evidence.state = Some(held(state.clone(), now));
        }
        if let Some(table) = &self.table {
            let answer = ProcessAnswer {
                table: table.clone(),
                usernames: [(1, "alice"), (2, "bob"), (3, "carol")].map(|(uid, name)| (uid, name.to_owned())).into(),
            };
            self.evidence.processes = Some(held(answer, now));
        }
        self.evidence.state_is_fresh = self.state.is_some() && self.table.is_some();
        let moment = Moment { seconds: now, timestamp_seconds: UNIX + now };
        let works = |success| CollectorStatus { success, ..CollectorStatus::default() };
        let collectors = [("gpu", self.gpu.is_some()), ("processes", true), ("state", true)];
        let collectors = collectors.map(|(name, success)| (name.to_owned(), works(success)));
        self.view.observe(moment, &mut self.evidence, reading, collectors.into())
    }

    pub(super) fn process(&mut self, pid: u32, uid: u32, claim: Claim) {
        add_process(self.table.as_mut().unwrap(), pid, uid, claim);
    }

    pub(super) fn device(&mut self, index: usize) -> &mut DeviceSample {
        &mut self.gpu.as_mut().unwrap().devices[index]
    }
}

fn held<T>(value: T, now: f64) -> Timed<T> {
    Timed { value, asked_seconds: now, read_seconds: now, timestamp_seconds: UNIX + now }
}

/// Alice's environment 10 with the shell 100 on device 0, and her process 101 there.
pub(super) fn alice_computes(lab: &mut Lab) {
    lab.state = Some(state(vec![environment("10", 1, &[100])], vec![attached(0, &[("10", Some(4 * GIB))])]));
    lab.process(100, 1, Claim::Absent);
    lab.process(101, 1, Claim::Named("10".to_owned()));
    lab.device(0).processes = Some(vec![on_gpu(101, Some(0.25))]);
}
