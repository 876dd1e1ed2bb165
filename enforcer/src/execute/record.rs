//! What an executor writes down of each step.

use super::audit::{self, Action, Record};
use super::{Cause, Executor, evidence};
use crate::config::Mode;
use crate::plan::{Outcome, Target};

/// Refusals remembered at once.
const MOST_REFUSALS: usize = 10_000;

impl Executor {
    /// A line of the audit, of which the details are still to be filled in.
    pub(super) fn record(&mut self, action: Action, target: &Target, cause: &Cause<'_>) -> Record {
        let mut record = Record {
            time: String::new(),
            id: self.mark.next_id(),
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
            asked_by: self.asked_by.clone(),
            username: String::new(),
            uid: None,
            pid: None,
            start_time_ticks: None,
            comm: None,
            eid: None,
            gpu: None,
        };
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
        let key = (record.rule.clone(), record.action, target);
        match reason {
            Some(reason) if result == audit::Result::Refused => {
                let last = self.refused.insert(key, reason.clone());
                if last.as_ref() == Some(reason) {
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
        record.result = result;
        record.reason = reason.cloned();
        record.time = audit::time(self.now());
        if let Err(error) = self.audit.conclude(&self.directory, record) {
            // It is written before the next intention, which until then is refused for the same cause.
            tracing::error!(%error, "what was done is not in the audit");
        }
    }
}
