//! What an executor writes down of each step.

use super::audit::{self, Action, Record};
use super::{Cause, Executor, evidence};
use crate::config::Mode;
use crate::plan::words::thousands;
use crate::plan::{Outcome, Target, Violation};

/// Refusals remembered at once.
const MOST_REFUSALS: usize = 10_000;

impl Executor {
    /// A line of the audit, of which the details are still to be filled in.
    pub(super) fn record(&mut self, action: Action, target: &Target, cause: &Cause<'_>) -> Record {
        let mut record = self.blank(action, cause);
        match target {
            Target::Process(target) => {
                record.username.clone_from(&target.username);
                record.uid = Some(target.uid);
                record.pid = Some(target.pid);
                record.start_time_ticks = Some(target.start_time_ticks);
                record.comm.clone_from(&target.comm);
                record.eid.clone_from(&target.eid);
            }
            Target::Attachment(target) => {
                record.username.clone_from(&target.username);
                record.eid = Some(target.eid.clone());
                record.gpu = Some(target.gpu);
            }
        }
        record
    }

    /// Writes down that a user has too many of something.
    pub(crate) fn report_too_many(&mut self, violation: &Violation, outcome: &Outcome) {
        let why = format!("{}; allowed: {}", violation.found, violation.allowed);
        let cause = Cause { rule: &violation.key.rule, why: &why };
        let mut record = self.blank(Action::Report, &cause);
        record.username.clone_from(&violation.username);
        record.uid = violation.uid;
        record.result = match outcome {
            Outcome::Would => audit::Result::Would,
            _ => audit::Result::Done,
        };
        if let Some(hostname) = &violation.hostname {
            record.hostname.clone_from(hostname);
        }
        self.write_lines(vec![record]);
    }

    /// Ends a cycle: writes down how many lines stand for the others of their users.
    pub(crate) fn end_cycle(&mut self) {
        let mut records = self.lines.end();
        for record in &mut records {
            record.id = self.position.next_id();
            let more = thousands(record.more.unwrap_or_default());
            record.reason = Some(format!("and {more} more of this user in this cycle"));
        }
        self.write_lines(records);
    }

    fn write_lines(&mut self, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        let _lock = self.lock();
        for record in records {
            let time = audit::time(self.now());
            let record = Record { time, ..record };
            if let Err(error) = self.audit.conclude(&self.directory, record) {
                tracing::error!(%error, "what a user has too many of is not in the audit");
            }
        }
    }

    fn blank(&mut self, action: Action, cause: &Cause<'_>) -> Record {
        Record {
            time: String::new(),
            id: self.position.next_id(),
            result: audit::Result::Intended,
            reason: None,
            action,
            mode: match self.policy.mode {
                Mode::DryRun => "dry-run",
                Mode::Enforce => "enforce",
            },
            rule: cause.rule.to_owned(),
            why: cause.why.to_owned(),
            hostname: self.hostname.clone(),
            asked_by: self.requested_by.clone(),
            username: String::new(),
            uid: None,
            pid: None,
            start_time_ticks: None,
            comm: None,
            eid: None,
            gpu: None,
            more: None,
        }
    }

    /// Writes down what is about to be done; without that nothing is.
    pub(super) fn intend(&mut self, record: &mut Record) -> Result<(), Outcome> {
        record.result = audit::Result::Intended;
        record.time = audit::time(self.now());
        let written = self.audit.write(&self.directory, record);
        written.map_err(|error| evidence::later(error.to_string()))
    }

    /// Writes down how it went. A refusal that is the same as in the last cycle was written then.
    pub(super) fn conclude(&mut self, mut record: Record, target: Target, outcome: &Outcome) {
        let (result, reason) = match outcome {
            Outcome::Done => (audit::Result::Done, None),
            Outcome::Would => (audit::Result::Would, None),
            Outcome::Refused { reason, .. } => (audit::Result::Refused, Some(reason)),
            Outcome::Failed { reason } => (audit::Result::Failed, Some(reason)),
        };
        record.result = result;
        record.reason = reason.cloned();
        // A line about an intention or a request needs a second line with the outcome.
        let was_begun = !record.time.is_empty();
        let is_done = !matches!(result, audit::Result::Refused | audit::Result::Would);
        if !is_done && !was_begun && !self.lines.take(&record) {
            return;
        }
        let key = (record.rule.clone(), record.action, target);
        match reason {
            Some(reason) if result == audit::Result::Refused => {
                let last = self.refused.insert(key, reason.clone());
                if last.as_ref() == Some(reason) && !was_begun {
                    return;
                }
                if self.refused.len() > MOST_REFUSALS {
                    self.refused.clear();
                }
            }
            _ => {
                self.refused.remove(&key);
            }
        }
        record.time = audit::time(self.now());
        if let Err(error) = self.audit.conclude(&self.directory, record) {
            // It is written before the next intention, which until then is refused for the same cause.
            tracing::error!(%error, "what was done is not in the audit");
        }
    }
}
