//! The log of cycles.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::enforcement::{Blind, DisputedRecord};

use crate::config::Mode;
use crate::metrics::{self, mode_word};
use crate::plan::words;
use crate::plan::{Key, Outcome, Plan, Step, StepKind, Violation};

/// Lasting conditions that are already in the log.
#[derive(Debug, Default)]
pub(super) struct LoggedConditions {
    faults: BTreeSet<String>,
    /// Blind sources, by host.
    blind: BTreeSet<(String, String)>,
    /// Records that are disputed.
    disputes: BTreeSet<(String, String, String)>,
    /// Why the breaker is open.
    breaker: Option<String>,
    /// The reason of each refused step that is planned again, by violation, step and target.
    refusals: BTreeMap<(Key, &'static str, String), String>,
}

impl LoggedConditions {
    /// Logs that the breaker is open, or closed again.
    pub(super) fn breaker(&mut self, why: Option<&str>) {
        if why == self.breaker.as_deref() {
            return;
        }
        match why {
            Some(why) => tracing::error!(
                event = "breaker",
                why,
                "the breaker is open: nothing is done until 'genv-enforcer reset'"
            ),
            None => tracing::warn!(event = "breaker", "the breaker is closed again"),
        }
        self.breaker = why.map(str::to_owned);
    }

    /// Whether the last cycle refused the step for the same reason. A lasting refusal is logged once.
    pub(super) fn is_repeated_refusal(&mut self, step: &Step, outcome: &Outcome) -> bool {
        let (action, target) = match (&step.kind, words::deed(&step.kind)) {
            (_, Some(action)) => action,
            (StepKind::Warn { number, .. }, None) => ("warn", number.to_string()),
            _ => return false,
        };
        let refused = (step.key.clone(), action, target);
        match outcome {
            Outcome::Refused { reason, again: true } => {
                let last = self.refusals.insert(refused, reason.clone());
                last.as_ref() == Some(reason)
            }
            _ => {
                self.refusals.remove(&refused);
                false
            }
        }
    }

    /// The reason of a refused action that is planned again.
    pub(super) fn refusal(&self, key: &Key) -> Option<&str> {
        let mut from_key = self.refusals.range((key.clone(), "", String::new())..);
        let ((of, _, _), reason) = from_key.next()?;
        (of == key).then_some(reason)
    }

    /// Removes the refusals of steps that are no longer planned.
    pub(super) fn keep(&mut self, plan: &Plan) {
        let planned: BTreeSet<&Key> = plan.steps.iter().map(|step| &step.key).collect();
        self.refusals.retain(|(key, _, _), _| planned.contains(key));
    }

    /// Logs sources that become blind, and sources that work again.
    pub(super) fn blind(&mut self, blind: &[Blind]) {
        let is: BTreeSet<(String, String)> = blind.iter().map(|it| (it.hostname.clone(), it.source.clone())).collect();
        for it in blind {
            if !self.blind.contains(&(it.hostname.clone(), it.source.clone())) {
                tracing::error!(
                    event = "blind",
                    hostname = it.hostname.as_str(),
                    source = it.source.as_str(),
                    reason = it.why.as_str(),
                    "the enforcer is blind: a source shows nothing, or not all, and nothing is done by what it would show"
                );
            }
        }
        for (hostname, source) in self.blind.difference(&is) {
            let (hostname, source) = (hostname.as_str(), source.as_str());
            tracing::warn!(event = "blind", hostname, source, "the enforcer sees the source again");
        }
        self.blind = is;
    }

    /// Logs disputed records, each once per reason.
    pub(super) fn disputes(&mut self, disputed: &[DisputedRecord]) {
        let named = |it: &DisputedRecord| (it.hostname.clone(), it.eid.clone(), it.why.clone());
        for record in disputed.iter().filter(|it| !self.disputes.contains(&named(it))) {
            tracing::warn!(
                event = "record_disputed",
                hostname = record.hostname.as_str(),
                eid = record.eid.as_str(),
                username = record.username.as_str(),
                reason = record.why.as_str(),
                "a record of an environment was changed otherwise than by its user; the change does not count"
            );
        }
        self.disputes = disputed.iter().map(named).collect();
    }

    /// Logs faults, each once while it lasts.
    pub(super) fn faults(&mut self, faults: &[String]) {
        for fault in faults.iter().filter(|it| !self.faults.contains(*it)) {
            tracing::error!(event = "fault", fault = fault.as_str(), "something is wrong with the enforcer");
        }
        self.faults = faults.iter().cloned().collect();
    }
}

/// Logs the outcome of a step.
pub(super) fn step(violation: &Violation, step: &Step, outcome: &Outcome, mode: Mode) {
    let subject = words::subject(&violation.key.subject);
    let (rule, username) = (violation.key.rule.as_str(), violation.username.as_str());
    let hostname = violation.hostname.as_deref().unwrap_or(metrics::ALL_HOSTS);
    let (found, allowed) = (violation.found(), violation.allowed());
    let (found, allowed) = (found.as_str(), allowed.as_str());
    let (mode, result) = (mode_word(mode), metrics::result(outcome));
    let reason = match outcome {
        Outcome::Refused { reason, .. } | Outcome::Failed { reason } => reason.as_str(),
        Outcome::Done | Outcome::Would => "",
    };
    match &step.kind {
        StepKind::Report => tracing::warn!(
            event = "violation",
            rule,
            username,
            hostname,
            subject = subject.as_str(),
            found,
            allowed,
            mode,
            "a rule is broken"
        ),
        StepKind::Warn { number, of, end_seconds } => tracing::warn!(
            event = "warning",
            rule,
            username,
            hostname,
            subject = subject.as_str(),
            found,
            allowed,
            action = violation.action.word(),
            number,
            of,
            end_timestamp_seconds = end_seconds,
            mode,
            result,
            reason,
            "{}",
            match outcome {
                Outcome::Done => "a user is warned",
                Outcome::Would => "a user would be warned",
                Outcome::Refused { .. } => "a warning is not delivered yet",
                Outcome::Failed { .. } => "a warning is not delivered",
            }
        ),
        _ => {
            let (deed, target) = words::deed(&step.kind).unwrap_or_default();
            tracing::warn!(
                event = "action",
                rule,
                username,
                hostname,
                subject = subject.as_str(),
                found,
                allowed,
                action = deed,
                target = target.as_str(),
                mode,
                result,
                reason,
                "{}",
                sentence(outcome)
            );
        }
    }
}

/// The message about an action.
const fn sentence(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "an action is taken",
        Outcome::Would => "an action would be taken",
        Outcome::Refused { .. } => "an action is refused",
        Outcome::Failed { .. } => "an action failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Subject;
    use crate::plan::tests::lab::target;

    fn terminate(pid: u32) -> Step {
        let subject = Subject::Process { hostname: "gpu01".to_owned(), pid, start_time_ticks: 7 };
        let key = Key { rule: "outside".to_owned(), subject };
        Step { key, kind: StepKind::Terminate(target("alice", pid).into()) }
    }

    #[test]
    fn a_lasting_refusal_counts_once_and_another_reason_counts_again() {
        let refused = |reason: &str| Outcome::Refused { reason: reason.to_owned(), again: true };
        let (one, other) = (terminate(10), terminate(11));
        let mut logged = LoggedConditions::default();
        let mut still = |step: &Step, outcome: &Outcome| logged.is_repeated_refusal(step, outcome);
        assert!(!still(&one, &refused("full")));
        assert!(still(&one, &refused("full")));
        assert!(!still(&other, &refused("full")));
        assert!(!still(&one, &refused("too many")));
        assert_eq!(logged.refusal(&one.key), Some("too many"));
        assert_eq!(logged.refusal(&terminate(9).key), None);
        let mut still = |step: &Step, outcome: &Outcome| logged.is_repeated_refusal(step, outcome);
        assert!(!still(&one, &Outcome::Done));
        assert!(!still(&one, &refused("too many")));
        logged.keep(&Plan::default());
        assert!(!logged.is_repeated_refusal(&one, &refused("too many")));
    }
}
