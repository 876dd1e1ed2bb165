//! How far a violation is: seen, `for`, warnings, the end.

use std::time::Duration;

use super::StepKind;
use super::history::ViolationHistory;
use crate::config::{Action, Rule};

/// Where a violation stands on its way to the end, relief aside.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rung {
    /// It is too young.
    Pending {
        /// Unix time.
        until_seconds: f64,
    },
    /// A warning is due now.
    Warning {
        step: StepKind,
        given: usize,
        /// Unix time of the action that the warning announces.
        end_seconds: f64,
    },
    /// All warnings that were due are given.
    Warned {
        given: usize,
        /// Unix time.
        end_seconds: f64,
    },
    /// The user could not be told, so that nothing may follow.
    NotWarned {
        /// Why.
        reason: String,
    },
    /// Its time is over.
    End,
}

/// Where a violation of `rule` stands that was seen for `seen_seconds` now.
pub(super) fn rung(rule: &Rule, history: Option<&ViolationHistory>, seen_seconds: f64, now_seconds: f64) -> Rung {
    let given = history.map_or(0, |history| history.warnings_given);
    let for_seconds = rule.for_duration.as_secs_f64();
    if given == 0 && seen_seconds < for_seconds {
        return Rung::Pending { until_seconds: now_seconds + (for_seconds - seen_seconds) };
    }
    if let Some(reason) = history.and_then(|history| history.not_warned.clone()) {
        return Rung::NotWarned { reason };
    }
    let follows = rule.action > Action::Warn;
    let warn: &[Duration] = match rule.action {
        Action::Report => &[],
        // Nothing comes after it.
        Action::Warn => &[Duration::ZERO],
        _ => &rule.warn,
    };
    // What was announced holds; a rule that was given warnings meanwhile announces an end with the next.
    let end_seen = history.and_then(|history| history.end_seen_seconds);
    let end_seconds = end_seen.map(|end_seen| now_seconds + (end_seen - seen_seconds));
    if let Some(next) = warn.get(given).map(Duration::as_secs_f64) {
        let due = end_seen.is_none_or(|end_seen| seen_seconds >= end_seen - next);
        // Who is warned late has their full time all the same.
        let latest = now_seconds + next;
        let end_seconds = end_seconds.map_or(latest, |end| if due { end.max(latest) } else { end });
        if !due {
            return Rung::Warned { given, end_seconds };
        }
        let step = StepKind::Warn { number: given + 1, of: warn.len(), end_seconds: follows.then_some(end_seconds) };
        return Rung::Warning { step, given, end_seconds };
    }
    match end_seconds {
        Some(end_seconds) if follows && end_seconds > now_seconds => Rung::Warned { given, end_seconds },
        _ => Rung::End,
    }
}
