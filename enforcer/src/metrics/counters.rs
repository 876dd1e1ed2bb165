//! The counters of the daemon.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::NOBODY;
use genv_web::metrics::Samples;

use super::{MAX_USERS, OTHER_USERS, host, mode_word, result};
use crate::config::{Action, Mode, Rule};
use crate::plan::words;
use crate::plan::{Outcome, Plan, StepKind, Violation};

/// The labels of the counters, in addition to the host.
pub(super) const COUNTED: &[&str] = &["rule", "username", "action", "mode", "result"];

/// The labels of a warning or an action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    rule: String,
    hostname: String,
    username: String,
    action: &'static str,
    mode: &'static str,
    result: &'static str,
}

/// A counter that is exposed as 0 before it rises, so that `increase()` sees the first rise.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    value: u64,
    shown: bool,
}

/// All counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    warnings: BTreeMap<Labels, Count>,
    actions: BTreeMap<Labels, Count>,
    unkillable: BTreeMap<String, Count>,
    users: BTreeSet<String>,
}

impl Counters {
    /// Starts the counters of all rules on these hosts, and of all users with a violation, at 0.
    pub fn begin<'a>(&mut self, rules: &[Rule], hostnames: impl Iterator<Item = &'a str>, plan: &Plan, mode: Mode) {
        let by_name: BTreeMap<&str, &Rule> = rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
        for hostname in hostnames {
            for rule in rules {
                self.begin_at_zero(rule, hostname, NOBODY, mode);
            }
            self.unkillable.entry(hostname.to_owned()).or_default();
        }
        for violation in &plan.violations {
            if let Some(rule) = by_name.get(violation.key.rule.as_str()) {
                let username = self.username(&violation.username);
                self.begin_at_zero(rule, host(violation), &username, mode);
            }
        }
    }

    fn begin_at_zero(&mut self, rule: &Rule, hostname: &str, username: &str, mode: Mode) {
        let results: &[&'static str] = match mode {
            Mode::DryRun => &["would", "refused"],
            Mode::Enforce => &["done", "refused", "failed"],
        };
        let labels = |action, result| Labels {
            rule: rule.name.clone(),
            hostname: hostname.to_owned(),
            username: username.to_owned(),
            action,
            mode: mode_word(mode),
            result,
        };
        if !matches!(rule.action, Action::Report) {
            let failed = (mode == Mode::Enforce).then_some("failed");
            for result in [results[0]].into_iter().chain(failed) {
                let labels = labels(rule.action.word(), result);
                self.warnings.entry(labels).or_default();
            }
        }
        let deeds: &[&'static str] = match rule.action {
            Action::Report | Action::Warn => &[],
            Action::Detach => &["detach"],
            Action::Terminate => &["terminate"],
            Action::Kill => &["terminate", "kill"],
        };
        for deed in deeds {
            for result in results {
                self.actions.entry(labels(deed, result)).or_default();
            }
        }
        self.actions.entry(labels("report", results[0])).or_default();
    }

    /// Counts the outcome of a step.
    pub fn count(&mut self, violation: &Violation, step: &StepKind, outcome: &Outcome, mode: Mode) {
        let labels = Labels {
            rule: violation.key.rule.clone(),
            hostname: host(violation).to_owned(),
            username: self.username(&violation.username),
            action: match words::deed(step) {
                Some((deed, _)) => deed,
                None if matches!(step, StepKind::Report) => "report",
                None => violation.action.word(),
            },
            mode: mode_word(mode),
            result: result(outcome),
        };
        let counters = if matches!(step, StepKind::Warn { .. }) { &mut self.warnings } else { &mut self.actions };
        counters.entry(labels).or_default().value += 1;
    }

    /// Counts processes that did not end by SIGKILL.
    pub(crate) fn count_unkillable(&mut self, hostname: &str) {
        self.unkillable.entry(hostname.to_owned()).or_default().value += 1;
    }

    /// Notes that all counters were exposed once.
    pub fn shown(&mut self) {
        let all = self.warnings.values_mut().chain(self.actions.values_mut());
        for count in all.chain(self.unkillable.values_mut()) {
            count.shown = true;
        }
    }

    /// Writes the warnings, with [`COUNTED`] as labels.
    pub(super) fn write_warnings(&self, out: &mut Samples) {
        write(&self.warnings, out);
    }

    /// Writes the actions, with [`COUNTED`] as labels.
    pub(super) fn write_actions(&self, out: &mut Samples) {
        write(&self.actions, out);
    }

    /// Writes the processes that did not end by SIGKILL.
    pub(super) fn write_unkillable(&self, out: &mut Samples) {
        for (hostname, count) in &self.unkillable {
            out.of_host(hostname);
            out.add(&[], count.seen());
        }
    }

    fn username(&mut self, username: &str) -> String {
        if self.users.contains(username) {
            return username.to_owned();
        }
        if self.users.len() < MAX_USERS {
            self.users.insert(username.to_owned());
            return username.to_owned();
        }
        OTHER_USERS.to_owned()
    }
}

impl Count {
    fn seen(self) -> f64 {
        if self.shown { self.value as f64 } else { 0.0 }
    }
}

fn write(counts: &BTreeMap<Labels, Count>, out: &mut Samples) {
    for (labels, count) in counts {
        out.of_host(&labels.hostname);
        out.add(&[&labels.rule, &labels.username, &labels.action, &labels.mode, &labels.result], count.seen());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_beyond_a_number_are_counted_together() {
        let mut counters = Counters::default();
        let names: Vec<String> = (0..=MAX_USERS).map(|user| format!("user{user}")).collect();
        let labels: Vec<String> = names.iter().map(|it| counters.username(it)).collect();
        assert_eq!(labels[..MAX_USERS], names[..MAX_USERS]);
        assert_eq!(labels[MAX_USERS], OTHER_USERS);
        assert_eq!(counters.username("user0"), "user0", "a known user keeps the label");
    }
}
