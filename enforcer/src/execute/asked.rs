//! Steps that other hosts are asked to carry out: the breaker, `GENV_TERMINATE_PROCESSES` and the audit are those of here,
//! the deed is there.

use super::audit::{self, Record};
use super::evidence::{later, never};
use super::{Cause, Executor, Mark, act_of};
use crate::config::Mode;
use crate::directory::FileError;
use crate::plan::{Outcome, Step, StepKind, Target};

/// A step that is in the audit, and that a host is asked to carry out.
#[derive(Debug)]
pub(crate) struct Asked {
    record: Record,
    target: Target,
    /// The user of each counted act.
    counted: Vec<String>,
}

impl Executor {
    /// Writes down that the target's host is asked to carry out a step, for a violation that is told in one clause. It may
    /// be asked then.
    ///
    /// # Errors
    /// It is not to be asked: in dry-run, because of the breaker, or because it cannot be written down.
    pub(crate) fn ask(&mut self, step: &Step, why: &str) -> Result<Asked, Outcome> {
        let cause = Cause { rule: &step.key.rule, why };
        let (action, target) = act_of(&step.kind).ok_or_else(|| never("there is nothing to carry out"))?;
        let lock = self.lock().map_err(|error| later(error.to_string()))?;
        let mut record = self.record(action, &target, &cause);
        target.hostname().clone_into(&mut record.hostname);
        let counted = match self.prepare_asking(step, &mut record) {
            Ok(counted) => counted,
            Err(outcome) => {
                self.conclude(record, target, &outcome);
                return Err(outcome);
            }
        };
        drop(lock);
        Ok(Asked { record, target, counted })
    }

    /// Returns the user of each counted act.
    fn prepare_asking(&mut self, step: &Step, record: &mut Record) -> Result<Vec<String>, Outcome> {
        if self.policy.mode == Mode::DryRun {
            return Err(Outcome::Would);
        }
        let no_processes: &[_] = &[];
        let (username, processes) = match &step.kind {
            StepKind::Terminate(_) | StepKind::Kill(_) if !self.may_signal => {
                return Err(later("GENV_TERMINATE_PROCESSES=0 keeps processes from being signalled".to_owned()));
            }
            StepKind::Terminate(target) | StepKind::Kill(target) => (&target.username, no_processes),
            StepKind::Detach(target) if self.may_signal => (&target.username, &target.processes[..]),
            StepKind::Detach(target) => (&target.username, no_processes),
            StepKind::Report | StepKind::Warn { .. } => {
                return Err(never("there is nothing to carry out"));
            }
        };
        self.ask_breaker()?;
        self.pace(username)?;
        record.result = audit::Result::Asked;
        record.time = audit::time(self.now());
        let written = self.audit.write(&self.directory, record);
        written.map_err(|error| later(error.to_string()))?;
        self.count_acts(username, 1);
        let mut counted = vec![username.clone()];
        // The host ends no more of them at once, either.
        for process in processes {
            if self.pace(&process.username).is_ok() {
                self.count_acts(&process.username, 1);
                counted.push(process.username.clone());
            }
        }
        let saved = self.breaker.save(&self.directory);
        saved.map_err(|error| later(error.to_string()))?;
        Ok(counted)
    }

    /// Writes down how it went, or that nobody here knows.
    pub(crate) fn answered(&mut self, asked: &Asked, outcome: &Outcome, is_known: bool) {
        // Without the lock it is written all the same: it was done.
        let _lock = self.lock();
        let Asked { record, target, counted } = asked;
        if is_known && matches!(outcome, Outcome::Refused { .. } | Outcome::Failed { .. }) {
            let counted: Vec<&str> = counted.iter().map(String::as_str).collect();
            self.uncount_acts(&counted);
        }
        match outcome {
            Outcome::Failed { reason } if !is_known => {
                self.add(record, audit::Result::Unknown, reason.clone());
            }
            _ => {
                // The question is in the audit, and so is each answer, also one that was given before.
                let key = (record.rule.clone(), record.action, target.clone());
                self.refused.remove(&key);
                self.conclude(record.clone(), target.clone(), outcome);
            }
        }
    }

    /// Writes down that a process is there although its host killed it.
    pub(crate) fn note_unkillable(&mut self, asked: &Asked) {
        let _lock = self.lock();
        let reason = "it has not ended since SIGKILL: see what it waits for in the kernel";
        self.add(&asked.record, audit::Result::Unkillable, reason.to_owned());
    }

    fn add(&mut self, record: &Record, result: audit::Result, reason: String) {
        let record = Record { result, reason: Some(reason), time: audit::time(self.now()), ..record.clone() };
        if let Err(error) = self.audit.conclude(&self.directory, record) {
            tracing::error!(%error, "what came of something is not in the audit");
        }
    }

    /// Closes what hosts were asked since `mark` and nothing tells the outcome of; returns that in words.
    ///
    /// # Errors
    /// The audit cannot be read or written.
    pub(crate) fn close_asked(&mut self, mark: &Mark) -> Result<Vec<String>, FileError> {
        let _lock = self.lock()?;
        let now = audit::time(self.now());
        let closed = self.audit.close_asked(&self.directory, &now, mark)?;
        Ok(closed.iter().map(audit::Line::unknown).collect())
    }
}
