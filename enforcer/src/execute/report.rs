//! What genv 1.4.3 sends to the hosts that it enforces: `genv usage execute` with a report on stdin.
//!
//! The report names processes by bare pids. Each is identified here and now, and must then be what the report says: on a
//! device that it names, and in the environment that it names or in none.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::audit::Action;
use super::evidence::{ended, later};
use super::{Cause, CycleNotes, Executor};
use crate::plan::{AttachmentTarget, Outcome, ProcessTarget, Target};

/// The rule that the audit names.
const RULE: &str = "execute-report";

/// The reason that the audit gives.
const WHY: &str = "genv usage execute was told to";

/// What to do, as genv 1.4.3 writes it. Keys that it does not use are read past.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    terminate: Processes,
    /// By the index of the device.
    detach: BTreeMap<u32, Environments>,
}

#[derive(Clone, Debug, Deserialize)]
struct Processes {
    processes: Vec<Process>,
}

#[derive(Clone, Debug, Deserialize)]
struct Process {
    pid: u32,
    used_gpu_memory: Vec<Usage>,
    eid: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Usage {
    index: u32,
}

#[derive(Clone, Debug, Deserialize)]
struct Environments {
    envs: Vec<Environment>,
}

#[derive(Clone, Debug, Deserialize)]
struct Environment {
    eid: String,
    uid: u32,
}

/// A text that is no report.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read the report: {0}: give what 'genv remote enforce' of genv 1.4.3 sends, JSON with terminate and detach"
)]
pub(crate) struct ReportError(serde_json::Error);

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ReportError> {
        serde_json::from_slice(json).map_err(ReportError)
    }
}

/// One thing that a report asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Deed {
    /// What was to be ended or detached.
    pub target: Target,
    /// How it went.
    pub outcome: Outcome,
}

impl Deed {
    /// Whether nothing is left to be done.
    #[must_use]
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.outcome, Outcome::Done | Outcome::Would) || self.outcome == ended()
    }
}

impl Executor {
    /// Does what a report says, in its order: first processes, then devices. `all` are the users who use or hold a device.
    ///
    /// The notes say whether it was too much for the breaker.
    pub(crate) fn execute_report(&mut self, report: &Report, all: &BTreeSet<String>) -> (CycleNotes, Vec<Deed>) {
        let cause = Cause { rule: RULE, why: WHY };
        let mut deeds = Vec::new();
        let mut processes = Vec::new();
        for process in &report.terminate.processes {
            match self.identify(process) {
                Ok(target) => {
                    let gpus = process.used_gpu_memory.iter().map(|usage| usage.index);
                    processes.push((target, gpus.collect::<BTreeSet<u32>>()));
                }
                Err(deed) => deeds.push(*deed),
            }
        }
        let environments = report.detach.iter().flat_map(|(gpu, environments)| {
            let environments = environments.envs.iter();
            environments.map(move |environment| (*gpu, environment))
        });
        let attachments: Vec<AttachmentTarget> = environments
            .map(|(gpu, environment)| AttachmentTarget {
                hostname: self.hostname.clone(),
                eid: environment.eid.clone(),
                username: {
                    let processes = &mut self.evidence.processes;
                    let owner = processes.owner(environment.uid);
                    processes.username(owner)
                },
                gpu,
                uuid: None,
                attached_seconds: None,
                processes: Vec::new(),
                unconfirmed: false,
            })
            .collect();

        let users = processes.iter().map(|(target, _)| &target.username);
        let users = users.chain(attachments.iter().map(|target| &target.username));
        let notes = self.begin_cycle(&users.cloned().collect(), all);
        for (target, gpus) in processes {
            let outcome = self.locked(|executor| executor.signal(Action::Terminate, &target, Some(&gpus), &cause));
            let target = Target::Process(target.into());
            deeds.push(Deed { target, outcome });
        }
        for target in attachments {
            let outcome = self.locked(|executor| executor.detach(&target, &cause));
            let target = Target::Attachment(target);
            deeds.push(Deed { target, outcome });
        }
        self.end_cycle();
        (notes, deeds)
    }

    /// Who has a pid now; the deed that it could not be said is in the audit.
    fn identify(&mut self, process: &Process) -> Result<ProcessTarget, Box<Deed>> {
        let mut target = ProcessTarget {
            hostname: self.hostname.clone(),
            pid: process.pid,
            start_time_ticks: 0,
            uid: 0,
            username: String::new(),
            comm: None,
            eid: process.eid.clone(),
            container_id: None,
        };
        let outcome = match self.evidence.of(process.pid) {
            Ok(witnessed) => match witnessed.user {
                Some(uid) => {
                    target.start_time_ticks = witnessed.facts.start_time_ticks;
                    target.uid = uid;
                    target.username = witnessed.username;
                    target.comm = Some(witnessed.facts.comm);
                    target.container_id = witnessed.facts.container_id;
                    return Ok(target);
                }
                None => later("its user cannot be read".to_owned()),
            },
            Err(outcome) => outcome,
        };
        let cause = Cause { rule: RULE, why: WHY };
        let named = Target::Process(target.into());
        let outcome = self.locked(|executor| {
            let mut record = executor.record(Action::Terminate, &named, &cause);
            record.uid = None;
            record.start_time_ticks = None;
            executor.conclude(record, named.clone(), &outcome);
            outcome
        });
        Err(Box::new(Deed { target: named, outcome }))
    }
}
