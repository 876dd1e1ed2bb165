//! The report that genv 1.4.3 sends to its hosts: the stdin of `genv usage execute`.
//!
//! The report names processes by bare pids. The executor identifies each process, and requires that the process uses a device of
//! the report and is in its environment, or in none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

use super::audit::AuditAction;
use super::evidence::{already_ended, refuse_for_now};
use super::{Cause, CycleNotes, Executor};
use crate::plan::{AttachmentTarget, Outcome, ProcessTarget, Target};

/// The rule that the audit names.
const RULE: &str = "execute-report";

/// The reason that the audit gives.
const WHY: &str = "genv usage execute was told to";

/// What to do, as genv 1.4.3 writes it. Keys that it does not use are read past.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    terminate: ReportProcesses,
    /// By the index of the device.
    detach: BTreeMap<u32, ReportEnvironments>,
}

#[derive(Clone, Debug, Deserialize)]
struct ReportProcesses {
    processes: Vec<ReportProcess>,
}

#[derive(Clone, Debug, Deserialize)]
struct ReportProcess {
    pid: u32,
    used_gpu_memory: Vec<ReportUsage>,
    eid: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct ReportUsage {
    index: u32,
}

#[derive(Clone, Debug, Deserialize)]
struct ReportEnvironments {
    envs: Vec<ReportEnvironment>,
}

#[derive(Clone, Debug, Deserialize)]
struct ReportEnvironment {
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
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ReportError> {
        serde_json::from_slice(json).map_err(ReportError)
    }
}

/// An action of a report, and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReportAction {
    /// The process or the attachment.
    pub target: Target,
    /// How it went.
    pub outcome: Outcome,
}

impl ReportAction {
    /// Whether the action needs no further try.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.outcome, Outcome::Done | Outcome::Would) || self.outcome == already_ended()
    }
}

impl Executor {
    /// Executes a report in its order: first processes, then devices. `all` are the users who use or hold a device.
    ///
    /// The notes have the reason if the breaker opened.
    pub(crate) fn execute_report(
        &mut self,
        report: &Report,
        all: &BTreeSet<String>,
    ) -> (CycleNotes, Vec<ReportAction>) {
        let cause = Cause { rule: RULE, why: WHY };
        let mut actions = Vec::new();
        let mut processes = Vec::new();
        for process in &report.terminate.processes {
            match self.identify(process) {
                Ok(target) => {
                    let gpus = process.used_gpu_memory.iter().map(|usage| usage.index);
                    processes.push((target, gpus.collect::<BTreeSet<u32>>()));
                }
                Err(action) => actions.push(*action),
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
            let outcome = self.locked(|executor| executor.signal(AuditAction::Terminate, &target, Some(&gpus), &cause));
            let target = Target::Process(target.into());
            actions.push(ReportAction { target, outcome });
        }
        for target in attachments.into_iter().map(Arc::new) {
            let outcome = self.locked(|executor| executor.detach(&target, &cause));
            let target = Target::Attachment(target);
            actions.push(ReportAction { target, outcome });
        }
        self.end_cycle();
        (notes, actions)
    }

    /// Identifies the process with a pid. A failure is in the audit, and is returned as the outcome of the action.
    fn identify(&mut self, process: &ReportProcess) -> Result<ProcessTarget, Box<ReportAction>> {
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
            Ok(current) => match current.user {
                Some(uid) => {
                    target.start_time_ticks = current.facts.start_time_ticks;
                    target.uid = uid;
                    target.username = current.username;
                    target.comm = Some(current.facts.comm);
                    target.container_id = current.facts.container_id;
                    return Ok(target);
                }
                None => refuse_for_now("its user cannot be read".to_owned()),
            },
            Err(outcome) => outcome,
        };
        let cause = Cause { rule: RULE, why: WHY };
        let named = Target::Process(target.into());
        let outcome = self.locked(|executor| {
            let mut record = executor.record(AuditAction::Terminate, &named, &cause);
            record.uid = None;
            record.start_time_ticks = None;
            executor.conclude(record, named.clone(), &outcome);
            outcome
        });
        Err(Box::new(ReportAction { target: named, outcome }))
    }
}
