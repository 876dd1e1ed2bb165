//! A limit of log lines per user and cycle. One line stands for all further ones.

use std::collections::BTreeMap;

use super::log;
use crate::config::Mode;
use crate::execute::MAX_USER_LINES;
use crate::plan::words::{self, thousands};
use crate::plan::{Outcome, Step, Violation};

/// The number of lines in the current cycle, by user.
#[derive(Debug, Default)]
pub(super) struct LogLimit(BTreeMap<String, u64>);

impl LogLimit {
    /// Logs a step, unless its user is over the limit. A finished action is always logged.
    pub(super) fn step(&mut self, violation: &Violation, step: &Step, outcome: &Outcome, mode: Mode) {
        let is_done = *outcome == Outcome::Done && words::deed(&step.kind).is_some();
        if !is_done {
            let of_user = self.0.entry(violation.username.clone()).or_default();
            *of_user += 1;
            if *of_user > MAX_USER_LINES {
                return;
            }
        }
        log::step(violation, step, outcome, mode);
    }

    /// Ends the cycle: logs the number of further lines of each user.
    pub(super) fn end(&mut self) {
        for (username, lines) in std::mem::take(&mut self.0) {
            let more = lines.saturating_sub(MAX_USER_LINES);
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
