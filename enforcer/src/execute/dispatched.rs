//! Steps that other hosts execute. The breaker, `GENV_TERMINATE_PROCESSES` and the audit log of this machine apply; the act
//! itself happens on the host.

use super::audit::{self, AuditRecord};
use super::evidence::{refuse_for_good, refuse_for_now};
use super::{Cause, Executor, LogPosition, act_of};
use crate::config::Mode;
use crate::directory::FileError;
use crate::plan::{Outcome, Step, StepKind, Target};

/// A step that is in the audit log and can be sent to its host.
#[derive(Debug)]
pub(crate) struct Dispatched {
    record: AuditRecord,
    target: Target,
    /// The user of each act that counts for the breaker.
    counted: Vec<String>,
}

impl Executor {
    /// Writes to the audit log that the host of the target is requested to execute a step. `why` is the violation in one
    /// clause.
    ///
    /// # Errors
    /// The step may not be sent: in dry-run, because of the breaker, or because the audit log cannot be written.
    pub(crate) fn dispatch(&mut self, step: &Step, why: &str) -> Result<Dispatched, Outcome> {
        let cause = Cause { rule: &step.key.rule, why };
        let (action, target) = act_of(&step.kind).ok_or_else(|| refuse_for_good("there is nothing to execute"))?;
        let lock = self.lock().map_err(|error| refuse_for_now(error.to_string()))?;
        let mut record = self.record(action, &target, &cause);
        target.hostname().clone_into(&mut record.hostname);
        let counted = match self.prepare_dispatch(step, &mut record) {
            Ok(counted) => counted,
            Err(outcome) => {
                self.conclude(record, target, &outcome);
                return Err(outcome);
            }
        };
        drop(lock);
        Ok(Dispatched { record, target, counted })
    }

    /// Returns the user of each act that counts for the breaker.
    fn prepare_dispatch(&mut self, step: &Step, record: &mut AuditRecord) -> Result<Vec<String>, Outcome> {
        if self.policy.mode == Mode::DryRun {
            return Err(Outcome::Would);
        }
        let no_processes: &[_] = &[];
        let (username, processes) = match &step.kind {
            StepKind::Terminate(_) | StepKind::Kill(_) if !self.may_signal => {
                return Err(refuse_for_now(
                    "GENV_TERMINATE_PROCESSES=0 keeps processes from being signalled".to_owned(),
                ));
            }
            StepKind::Terminate(target) | StepKind::Kill(target) => (&target.username, no_processes),
            StepKind::Detach(target) if self.may_signal => (&target.username, &target.processes[..]),
            StepKind::Detach(target) => (&target.username, no_processes),
            StepKind::Report | StepKind::Warn { .. } => {
                return Err(refuse_for_good("there is nothing to execute"));
            }
        };
        self.check_breaker()?;
        self.pace(username)?;
        record.result = audit::AuditResult::Dispatched;
        record.time = audit::time(self.now());
        let written = self.audit.write(&self.directory, record);
        written.map_err(|error| refuse_for_now(error.to_string()))?;
        self.count_acts(username, 1);
        let mut counted = vec![username.clone()];
        // The host has the same limit for the processes of a device.
        for process in processes {
            if self.pace(&process.username).is_ok() {
                self.count_acts(&process.username, 1);
                counted.push(process.username.clone());
            }
        }
        let saved = self.breaker.save(&self.directory);
        saved.map_err(|error| refuse_for_now(error.to_string()))?;
        Ok(counted)
    }

    /// Writes the outcome of a step to the audit log, or that it is not known.
    pub(crate) fn conclude_dispatched(&mut self, dispatched: &Dispatched, outcome: &Outcome, is_known: bool) {
        // The host may have executed the step: without the lock the outcome is written all the same.
        let _lock = self.lock();
        let Dispatched { record, target, counted } = dispatched;
        if is_known && matches!(outcome, Outcome::Refused { .. } | Outcome::Failed { .. }) {
            let counted: Vec<&str> = counted.iter().map(String::as_str).collect();
            self.uncount_acts(&counted);
        }
        match outcome {
            Outcome::Failed { reason } if !is_known => {
                self.add(record, audit::AuditResult::Unknown, reason.clone());
            }
            _ => {
                // The audit log has each request, and thus each outcome, also an outcome equal to the one before.
                let key = (record.rule.clone(), record.action, target.clone());
                self.refused.remove(&key);
                self.conclude(record.clone(), target.clone(), outcome);
            }
        }
    }

    /// Writes to the audit log that a process is running although its host has sent SIGKILL.
    pub(crate) fn note_unkillable(&mut self, dispatched: &Dispatched) {
        let _lock = self.lock();
        let reason = "it has not ended since SIGKILL: see what it waits for in the kernel";
        self.add(&dispatched.record, audit::AuditResult::Unkillable, reason.to_owned());
    }

    fn add(&mut self, record: &AuditRecord, result: audit::AuditResult, reason: String) {
        let record = AuditRecord { result, reason: Some(reason), time: audit::time(self.now()), ..record.clone() };
        if let Err(error) = self.audit.conclude(&self.directory, record) {
            tracing::error!(%error, "an outcome is not in the audit log");
        }
    }

    /// Closes the requests after this position whose outcome is not in the audit log. Returns a text about each.
    pub(crate) fn close_dispatched(&mut self, position: &LogPosition) -> Result<Vec<String>, FileError> {
        let _lock = self.lock()?;
        let now = audit::time(self.now());
        let closed = self.audit.close_dispatched(&self.directory, &now, position)?;
        Ok(closed.iter().map(audit::AuditLine::unknown).collect())
    }
}
