//! What an earlier program left when it was ended in the middle of something.

use std::sync::Arc;

use genv_core::text::harmless;
use serde::{Deserialize, Serialize};

use super::Executor;
use super::audit::{self, Action, Line};
use crate::directory::FileError;
use crate::plan::{Outcome, ProcessTarget, Step, StepKind, Target};

/// A place in the order of all that one program intends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    /// Distinct for each run of a program.
    run: String,
    /// Its intentions so far.
    intentions: u64,
}

impl Mark {
    pub(super) fn begin(now_seconds: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "microseconds fit for thousands of centuries")]
        let microseconds = (now_seconds * 1e6) as i64;
        // In containers each run has the same pid.
        Self { run: format!("{microseconds}-{}", std::process::id()), intentions: 0 }
    }

    /// The `id` in the audit of what is intended next.
    pub(super) fn next_id(&mut self) -> String {
        self.intentions += 1;
        format!("{}-{}", self.run, self.intentions)
    }

    /// Whether this was intended after the mark, in the same run.
    pub(super) fn is_before(&self, id: &str) -> bool {
        let number = id
            .strip_prefix(&self.run)
            .and_then(|rest| rest.strip_prefix('-'))
            .and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| number > self.intentions)
    }
}

/// What became of a step that a program was about to carry out when it was ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Became {
    /// The step, of a device that was taken without the processes that were not signalled.
    pub step: Step,
    /// How it went; nothing if it was not begun, may be tried again, or is not known.
    pub outcome: Option<Outcome>,
    /// Processes that were to end with a device that was taken, or may have been, and that nobody came to.
    pub left: Vec<Arc<ProcessTarget>>,
}

impl Executor {
    /// Where its intentions are now.
    #[must_use]
    pub(crate) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// Closes the last intention of the audit if nothing says how it went, and tells which it was. Such an act counts as
    /// not done: who would be hit is verified anew in any case.
    ///
    /// # Errors
    /// The audit cannot be written, or another program acts.
    pub(crate) fn take_up_audit(&mut self) -> Result<Option<String>, FileError> {
        let _lock = self.lock()?;
        let now = audit::time(self.now());
        let left = self.audit.take_up(&self.directory, &now)?;
        Ok(left.map(|line| line.unknown()))
    }

    /// What became of the steps that a program began at `mark`, as the audit tells.
    ///
    /// # Errors
    /// The audit cannot be read.
    pub(crate) fn what_became_of(&self, mark: &Mark, steps: &[Step]) -> Result<Vec<Became>, FileError> {
        let lines = audit::lines(&self.directory, |id| mark.is_before(id))?;
        Ok(steps.iter().map(|step| became(step, &lines)).collect())
    }
}

fn became(step: &Step, lines: &[Line]) -> Became {
    let mut became = Became { step: step.clone(), outcome: None, left: Vec::new() };
    let last = |action, target: &Target| {
        let about = |line: &&Line| line.rule == step.key.rule && line.action == action && line.is_about(target);
        lines.iter().rev().find(about)
    };
    let done = match &step.kind {
        StepKind::Report | StepKind::Warn { .. } => None,
        StepKind::Terminate(target) => last(Action::Terminate, &Target::Process(target.clone())),
        StepKind::Kill(target) => last(Action::Kill, &Target::Process(target.clone())),
        StepKind::Detach(target) => last(Action::Detach, &Target::Attachment(target.clone())),
    };
    became.outcome = done.and_then(Line::outcome);
    if let (Some(line), StepKind::Detach(taken)) = (done, &mut became.step.kind)
        && line.may_be_done()
    {
        let (begun, left): (Vec<_>, Vec<_>) = taken
            .processes
            .drain(..)
            .partition(|process| last(Action::Terminate, &Target::Process(process.clone())).is_some());
        taken.processes = begun;
        became.left = left;
    }
    became
}

impl Line {
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
        use audit::Result::{Asked, Done, Intended, Unknown};
        matches!(self.result, Done | Intended | Asked | Unknown)
    }

    /// How it went, if that need not be found out anew.
    fn outcome(&self) -> Option<Outcome> {
        match self.result {
            audit::Result::Done | audit::Result::Unkillable => Some(Outcome::Done),
            audit::Result::Failed => Some(Outcome::Failed { reason: self.reason.clone().unwrap_or_default() }),
            audit::Result::Intended
            | audit::Result::Asked
            | audit::Result::Would
            | audit::Result::Refused
            | audit::Result::Unknown => None,
        }
    }

    /// That nobody knows how it went, for people.
    pub(super) fn unknown(&self) -> String {
        let text = match (self.action, self.pid, &self.eid) {
            (Action::Terminate, Some(pid), _) => format!("SIGTERM to process {pid}"),
            (Action::Kill, Some(pid), _) => format!("SIGKILL to process {pid}"),
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
