//! How far a violation is: seen, `for`, warnings, the end.

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
pub(super) fn rung(
    rule: &Rule,
    history: Option<&ViolationHistory>,
    seen_seconds: f64,
    now_seconds: f64,
) -> Rung {
    let given = history.map_or(0, |history| history.warnings_given);
    let for_seconds = rule.for_duration.as_secs_f64();
    if given == 0 && seen_seconds < for_seconds {
        return Rung::Pending {
            until_seconds: now_seconds + (for_seconds - seen_seconds),
        };
    }
    let warn: Vec<f64> = match rule.action {
        Action::Report => Vec::new(),
        // Telling the user is all that it does.
        Action::Warn if rule.warn.is_empty() => vec![0.0],
        _ => rule.warn.iter().map(|warn| warn.as_secs_f64()).collect(),
    };
    if let Some(reason) = history.and_then(|history| history.not_warned.as_ref()) {
        return Rung::NotWarned {
            reason: reason.clone(),
        };
    }
    let last = warn.last().copied().unwrap_or(0.0);
    let warned = history.map_or(0.0, |history| history.warned_seen_seconds);
    let announced = history.and_then(|history| history.end_seen_seconds);
    // Without an announced end, as of warnings that nothing follows, they keep their distances.
    let before = given.checked_sub(1).and_then(|given| warn.get(given));
    let end_seen = announced.unwrap_or_else(|| warned + before.copied().unwrap_or(0.0));
    let end_seconds = now_seconds + (end_seen - seen_seconds);

    if let Some(&next) = warn.get(given) {
        if given > 0 && seen_seconds < end_seen - next {
            return Rung::Warned { given, end_seconds };
        }
        // Who is warned late has his full time all the same.
        let end_seconds = match given {
            0 => now_seconds + next,
            _ => end_seconds.max(now_seconds + next),
        };
        let follows = rule.action > Action::Warn;
        return Rung::Warning {
            step: StepKind::Warn {
                number: given + 1,
                of: warn.len(),
                end_seconds: follows.then_some(end_seconds),
            },
            given,
            end_seconds,
        };
    }
    let waits = rule.action > Action::Warn && !warn.is_empty();
    // A configuration that was reloaded may have fewer warnings than were given.
    let end_seen = if announced.is_some() {
        end_seen
    } else {
        warned + last
    };
    if waits && seen_seconds < end_seen {
        return Rung::Warned { given, end_seconds };
    }
    Rung::End
}
