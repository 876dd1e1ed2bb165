//! How many lines of the log one user can cause in a cycle: what is beyond that is one line.

use std::collections::BTreeMap;

use super::log;
use crate::config::Mode;
use crate::execute::MOST_LINES_OF_A_USER;
use crate::plan::words::{self, thousands};
use crate::plan::{Outcome, Step, Violation};

/// The lines of the current cycle, by user.
#[derive(Debug, Default)]
pub(super) struct Lines(BTreeMap<String, u64>);

impl Lines {
    /// Logs a step, unless its user has caused many lines in this cycle. What was done is always logged.
    pub(super) fn step(&mut self, violation: &Violation, step: &Step, outcome: &Outcome, mode: Mode) {
        let is_done = *outcome == Outcome::Done && words::deed(&step.kind).is_some();
        if !is_done {
            let of_user = self.0.entry(violation.username.clone()).or_default();
            *of_user += 1;
            if *of_user > MOST_LINES_OF_A_USER {
                return;
            }
        }
        log::step(violation, step, outcome, mode);
    }

    /// Ends the cycle: says how many lines each user would have caused besides.
    pub(super) fn end(&mut self) {
        for (username, lines) in std::mem::take(&mut self.0) {
            let more = lines.saturating_sub(MOST_LINES_OF_A_USER);
            if more > 0 {
                tracing::warn!(
                    event = "violation",
                    username = username.as_str(),
                    "and {} more of this user in this cycle: 'genv-enforcer status'",
                    thousands(more)
                );
            }
        }
    }
}
