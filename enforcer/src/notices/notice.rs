//! A notice: one step of a violation, and the users who get it.

use std::collections::BTreeSet;

use super::notifier::NotifierViolation;
use crate::config::{Config, Undelivered};
use crate::plan::words;
use crate::plan::{Outcome, StepKind, Violation};

/// The largest number of targets in a message to the notifier.
const MAX_TARGETS: usize = 10;

/// A step and its violation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice<'a> {
    pub(crate) violation: &'a Violation,
    pub(crate) step: &'a StepKind,
}

impl Notice<'_> {
    /// The outcome of a warning for its rule.
    pub(crate) fn outcome(&self, delivered: &Result<(), String>, config: &Config) -> Outcome {
        let mut rules = config.rules.iter();
        let rule = rules.find(|rule| rule.name == self.violation.key.rule);
        // Where others attached the device, the user loses nothing: the step does not wait for an absent user.
        let holds = !self.violation.unconfirmed && rule.is_some_and(|rule| rule.undelivered == Undelivered::Hold);
        match delivered {
            Err(reason) if holds => Outcome::Refused { reason: reason.clone(), again: true },
            _ => Outcome::Done,
        }
    }

    /// The uids of the user who breaks the rule and of the owners of the affected processes.
    pub(super) fn recipients(&self) -> BTreeSet<u32> {
        let owners = match words::step_target(self.step) {
            Some(target) => words::victims([&target]),
            None => words::victims(&self.violation.targets),
        };
        owners.into_iter().chain(self.violation.uid).collect()
    }

    pub(super) fn notifier_violation(&self) -> NotifierViolation {
        let violation = self.violation;
        let target = words::step_target(self.step);
        let targets = match &target {
            Some(target) => std::slice::from_ref(target),
            None => &violation.targets[..],
        };
        NotifierViolation {
            rule: violation.key.rule.clone(),
            username: violation.username.clone(),
            hostname: violation.hostname.clone(),
            subject: words::subject(&violation.key.subject),
            found: violation.found(),
            allowed: violation.allowed(),
            remedy: violation.remedy(),
            action: violation.action.word().to_owned(),
            end_timestamp_seconds: match self.step {
                StepKind::Warn { end_seconds, .. } => *end_seconds,
                _ => None,
            },
            targets: targets.iter().take(MAX_TARGETS).map(words::target).collect(),
        }
    }
}
