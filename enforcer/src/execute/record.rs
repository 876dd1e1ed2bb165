//! The audit lines of an executor.

use super::audit::{self, AuditAction, AuditRecord};
use super::{Cause, Executor, evidence};
use crate::config::Mode;
use crate::plan::words::thousands;
use crate::plan::{Outcome, Target, Violation};

/// Refusals remembered at once.
const MAX_REFUSALS: usize = 10_000;

impl Executor {
    /// An audit line about an action, without its outcome.
    pub(super) fn record(&mut self, action: AuditAction, target: &Target, cause: &Cause<'_>) -> AuditRecord {
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

    /// Writes to the audit that a user has too many records or violations.
    pub(crate) fn report_too_many(&mut self, violation: &Violation, outcome: &Outcome) {
        let why = violation.reason();
        let cause = Cause { rule: &violation.key.rule, why: &why };
        let mut record = self.blank(AuditAction::Report, &cause);
        record.username.clone_from(&violation.username);
        record.uid = violation.uid;
        record.result = match outcome {
            Outcome::Would => audit::AuditResult::Would,
            _ => audit::AuditResult::Done,
        };
        if let Some(hostname) = &violation.hostname {
            record.hostname.clone_from(hostname);
        }
        self.write_lines(vec![record]);
    }

    /// Ends a cycle: writes the lines that stand for further ones.
    pub(crate) fn end_cycle(&mut self) {
        let mut records = self.audit_limit.end();
        for record in &mut records {
            record.id = self.position.next_id();
            let more = thousands(record.more.unwrap_or_default());
            record.reason = Some(format!("and {more} more of this user in this cycle"));
        }
        self.write_lines(records);
    }

    fn write_lines(&mut self, records: Vec<AuditRecord>) {
        if records.is_empty() {
            return;
        }
        let _lock = self.lock();
        for record in records {
            let time = audit::time(self.now());
            let record = AuditRecord { time, ..record };
            if let Err(error) = self.audit.conclude(&self.directory, record) {
                tracing::error!(%error, "what a user has too many of is not in the audit");
            }
        }
    }

    fn blank(&mut self, action: AuditAction, cause: &Cause<'_>) -> AuditRecord {
        AuditRecord {
            time: String::new(),
            id: self.position.next_id(),
            result: audit::AuditResult::Intended,
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

    /// Writes the intention of an action to the audit. Without this line the action is not done.
    pub(super) fn intend(&mut self, record: &mut AuditRecord) -> Result<(), Outcome> {
        record.result = audit::AuditResult::Intended;
        record.time = audit::time(self.now());
        let written = self.audit.write(&self.directory, record);
        written.map_err(|error| evidence::refuse_for_now(error.to_string()))
    }

    /// Writes an outcome to the audit. A refusal with an unchanged reason is not written again.
    pub(super) fn conclude(&mut self, mut record: AuditRecord, target: Target, outcome: &Outcome) {
        let (result, reason) = match outcome {
            Outcome::Done => (audit::AuditResult::Done, None),
            Outcome::Would => (audit::AuditResult::Would, None),
            Outcome::Refused { reason, .. } => (audit::AuditResult::Refused, Some(reason)),
            Outcome::Failed { reason } => (audit::AuditResult::Failed, Some(reason)),
        };
        record.result = result;
        record.reason = reason.cloned();
        // A line about an intention or a request needs a second line with the outcome.
        let was_begun = !record.time.is_empty();
        let is_done = !matches!(result, audit::AuditResult::Refused | audit::AuditResult::Would);
        if !is_done && !was_begun && !self.audit_limit.take(&record) {
            return;
        }
        let key = (record.rule.clone(), record.action, target);
        match reason {
            Some(reason) if result == audit::AuditResult::Refused => {
                let last = self.refused.insert(key, reason.clone());
                if last.as_ref() == Some(reason) && !was_begun {
                    return;
                }
                if self.refused.len() > MAX_REFUSALS {
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
