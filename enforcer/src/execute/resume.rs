//! Unfinished actions of a killed program in the audit log.

use std::sync::Arc;

use genv_core::text::harmless;
use serde::{Deserialize, Serialize};

use super::Executor;
use super::audit::{self, AuditAction, AuditLine};
use crate::directory::FileError;
use crate::plan::{Outcome, ProcessTarget, Step, StepKind, Target};

/// A position in the audit log among the intentions of one run of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogPosition {
    /// Distinct for each run of a program.
    run: String,
    /// The number of intentions before the position.
    intentions: u64,
}

impl LogPosition {
    pub(super) fn begin(now_seconds: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "microseconds fit for thousands of centuries")]
        let microseconds = (now_seconds * 1e6) as i64;
        // In containers each run has the same pid.
        Self { run: format!("{microseconds}-{}", std::process::id()), intentions: 0 }
    }

    /// The `id` in the audit log for the next intention.
    pub(super) fn next_id(&mut self) -> String {
        self.intentions += 1;
        format!("{}-{}", self.run, self.intentions)
    }

    /// Whether the intention with this `id` is of the same run and after the position.
    pub(super) fn is_before(&self, id: &str) -> bool {
        let number = id
            .strip_prefix(&self.run)
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| number > self.intentions)
    }
}

/// What happened with a step that a program had begun when it was killed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InterruptedStep {
    /// The step. For a detached device it has only the processes that were signalled.
    pub step: Step,
    /// The outcome; absent if the step was not begun, can be tried again, or has an unknown outcome.
    pub outcome: Option<Outcome>,
    /// The processes of a device, detached or perhaps detached, that were not signalled.
    pub left: Vec<Arc<ProcessTarget>>,
}

impl Executor {
    /// The current position in the audit log.
    pub(crate) fn log_position(&self) -> LogPosition {
        self.position.clone()
    }

    /// Closes the last intention in the audit log if it has no outcome, and returns a text about it. Such an act counts as
    /// not done: its target is verified again in any case.
    ///
    /// # Errors
    /// The audit log cannot be written, or another program acts.
    pub(crate) fn close_interrupted_action(&mut self) -> Result<Option<String>, FileError> {
        let _lock = self.lock()?;
        let now = audit::time(self.now());
        let left = self.audit.close_interrupted(&self.directory, &now)?;
        Ok(left.map(|line| line.unknown()))
    }

    /// Finds in the audit log what happened with the steps that a program began at this position.
    pub(crate) fn interrupted_steps(
        &self,
        position: &LogPosition,
        steps: &[Step],
    ) -> Result<Vec<InterruptedStep>, FileError> {
        let lines = audit::lines(&self.directory, |id| position.is_before(id))?;
        Ok(steps.iter().map(|step| interrupted(step, &lines)).collect())
    }
}

fn interrupted(step: &Step, lines: &[AuditLine]) -> InterruptedStep {
    let mut interrupted = InterruptedStep { step: step.clone(), outcome: None, left: Vec::new() };
    let last = |action, target: &Target| {
        let about = |line: &&AuditLine| line.rule == step.key.rule && line.action == action && line.is_about(target);
        lines.iter().rev().find(about)
    };
    let done = match &step.kind {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Terminate(target) => last(AuditAction::Terminate, &Target::Process(target.clone())),
        StepKind::Kill(target) => last(AuditAction::Kill, &Target::Process(target.clone())),
        StepKind::Detach(target) => last(AuditAction::Detach, &Target::Attachment(target.clone())),
    };
    interrupted.outcome = done.and_then(AuditLine::outcome);
    if let (Some(line), StepKind::Detach(taken)) = (done, &mut interrupted.step.kind)
        && line.may_be_done()
    {
        let taken = Arc::make_mut(taken);
        let (begun, left): (Vec<_>, Vec<_>) = taken
            .processes
            .drain(..)
            .partition(|process| last(AuditAction::Terminate, &Target::Process(process.clone())).is_some());
        taken.processes = begun;
        interrupted.left = left;
    }
    interrupted
}

impl AuditLine {
    fn is_about(&self, target: &Target) -> bool {
        match target {
            Target::Process(target) => {
                self.hostname == target.hostname
                    && self.pid == Some(target.pid)
                    && self.start_time_ticks == Some(target.start_time_ticks)
            }
            Target::Attachment(target) => {
                self.hostname == target.hostname
                    && self.eid.as_ref() == Some(&target.eid)
                    && self.gpu == Some(target.gpu)
            }
        }
    }

    const fn may_be_done(&self) -> bool {
        use audit::AuditResult::{Dispatched, Done, Intended, Unknown};
        matches!(self.result, Dispatched | Done | Intended | Unknown)
    }

    /// The outcome, unless the step is planned again.
    fn outcome(&self) -> Option<Outcome> {
        match self.result {
            audit::AuditResult::Done | audit::AuditResult::Unkillable => Some(Outcome::Done),
            audit::AuditResult::Failed => Some(Outcome::Failed { reason: self.reason.clone().unwrap_or_default() }),
            audit::AuditResult::Intended
            | audit::AuditResult::Dispatched
            | audit::AuditResult::Would
            | audit::AuditResult::Refused
            | audit::AuditResult::Unknown => None,
        }
    }

    /// A text about an unknown outcome, for administrators.
    pub(super) fn unknown(&self) -> String {
        let text = match (self.action, self.pid, &self.eid) {
            (AuditAction::Terminate, Some(pid), _) => format!("SIGTERM to process {pid}"),
            (AuditAction::Kill, Some(pid), _) => format!("SIGKILL to process {pid}"),
            (_, _, Some(eid)) => {
                let gpu = self.gpu.unwrap_or_default();
                format!("taking device {gpu} from environment {eid}")
            }
            _ => "an act".to_owned(),
        };
        let text = format!(
            "{text} (id {} in the audit) was intended when the program was killed; whether it was done is not known, and \
             what is still due is looked at anew",
            self.id
        );
        harmless(&text)
    }
}
