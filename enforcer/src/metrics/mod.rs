//! The enforcer's metrics after a cycle.

mod counters;
mod families;
mod instruments;

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::NOBODY;

use crate::config::{Action, Mode, Rule};
use crate::plan::words;
use crate::plan::{Key, Outcome, Plan, Violation};

pub use counters::Counters;
pub use families::{BUILD_INFO, EnforcerFamily, FAMILIES, families, render};
pub use instruments::Instruments;

/// The largest number of users with series of their own: a user who may write genv's state can invent any number of users.
const MAX_USERS: usize = 1000;

/// The label of all further users.
const OTHER_USERS: &str = "(other)";

/// The label of all hosts together.
pub const ALL_HOSTS: &str = "(all)";

/// The values of a cycle.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The number of violations, by rule, host and user.
    pub violations: BTreeMap<(String, String, String), u64>,
    /// The number of violations, by rule, host, user and stage.
    pub stages: BTreeMap<(String, String, String, &'static str), u64>,
    /// Processes with unknown attribution, by host.
    pub unknown_processes: BTreeMap<String, u64>,
    /// The same by host and user; absent where there is none.
    pub unknown_user_processes: BTreeMap<(String, String), u64>,
    /// Unix time of the cycle's end.
    pub last_cycle_seconds: f64,
    /// The duration of the cycle.
    pub cycle_duration_seconds: f64,
    /// The actions of the cycle on this host with their durations in seconds.
    pub actions: Vec<(&'static str, f64)>,
    /// Whether the breaker is open.
    pub breaker_open: bool,
    /// The mode in force.
    pub mode: Mode,
    /// The end of the pause, Unix time.
    pub paused_until_seconds: Option<f64>,
    /// SHA-256 of the configuration in force.
    pub config_hash: String,
    /// Whether the current file is in force.
    pub reload_successful: bool,
    /// Unix time at which the configuration was read.
    pub reload_success_seconds: f64,
    /// What is wrong with the enforcer itself.
    pub faults: usize,
    /// Disputed records of environments, by host.
    pub disputed_records: BTreeMap<String, u64>,
    /// Whether each source shows nothing, by host and source.
    pub blind: BTreeMap<(String, String), bool>,
    /// Whether no device can be taken because the lock of genv's state is held.
    pub lock_is_held: bool,
    /// Violations with an undelivered last warning, by host and rule.
    pub undelivered: BTreeMap<(String, String), u64>,
    /// The counters.
    pub counters: Counters,
}

pub(crate) const fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::DryRun => "dry-run",
        Mode::Enforce => "enforce",
    }
}

/// The word of an outcome.
pub const fn result(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Would => "would",
        Outcome::Refused { .. } => "refused",
        Outcome::Failed { .. } => "failed",
    }
}

fn host(violation: &Violation) -> &str {
    violation.hostname.as_deref().unwrap_or(ALL_HOSTS)
}

/// Counts violations by rule, host and user. The result has each rule on each host.
pub fn violations<'a>(
    plan: &Plan,
    rules: &[Rule],
    hostnames: impl Iterator<Item = &'a str>,
) -> BTreeMap<(String, String, String), u64> {
    let mut counts = BTreeMap::new();
    for hostname in hostnames {
        for rule in rules {
            let key = (rule.name.clone(), hostname.to_owned(), NOBODY.to_owned());
            counts.insert(key, 0);
        }
    }
    for (violation, username) in with_username(plan) {
        let key = (violation.key.rule.clone(), host(violation).to_owned(), username.to_owned());
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// Counts violations by rule, host, user and stage. An absent entry means 0.
pub fn stages(plan: &Plan) -> BTreeMap<(String, String, String, &'static str), u64> {
    let mut counts = BTreeMap::new();
    for (violation, username) in with_username(plan) {
        let key = (
            violation.key.rule.clone(),
            host(violation).to_owned(),
            username.to_owned(),
            words::stage(&violation.stage),
        );
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// Counts violations with an undelivered last warning, by host and rule. The result has each rule that warns.
pub(crate) fn undelivered(
    undelivered: &BTreeSet<Key>,
    rules: &[Rule],
    hostname: &str,
) -> BTreeMap<(String, String), u64> {
    let warns = rules.iter().filter(|rule| rule.action != Action::Report);
    let mut counts: BTreeMap<(String, String), u64> =
        warns.map(|rule| ((hostname.to_owned(), rule.name.clone()), 0)).collect();
    for key in undelivered {
        let place = (hostname.to_owned(), key.rule.clone());
        *counts.entry(place).or_default() += 1;
    }
    counts
}

/// Counts processes with unknown attribution by host. A host without fresh facts is absent.
pub fn unknown_processes<'a>(plan: &Plan, hostnames: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let known = hostnames.filter(|hostname| !plan.missing_hosts.contains(*hostname));
    known
        .map(|hostname| {
            let count = plan.unknown_processes.get(hostname);
            (hostname.to_owned(), count.copied().unwrap_or(0))
        })
        .collect()
}

/// Counts these processes by host and user. Users beyond 1,000 of a host are counted together.
pub fn unknown_user_processes(plan: &Plan) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for (hostname, users) in &plan.unknown_processes_by_user {
        for (position, (username, count)) in users.iter().enumerate() {
            let username = if position < MAX_USERS { username } else { OTHER_USERS };
            *counts.entry((hostname.clone(), username.to_owned())).or_default() += count;
        }
    }
    counts
}

/// The violations with their label `username`.
fn with_username(plan: &Plan) -> impl Iterator<Item = (&Violation, &str)> {
    let mut users = BTreeSet::new();
    plan.violations.iter().map(move |violation| {
        let username = violation.username.as_str();
        let known = users.contains(username) || users.len() < MAX_USERS;
        let username = if known { username } else { OTHER_USERS };
        users.insert(username);
        (violation, username)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_processes_are_0_where_there_are_none_and_absent_where_nothing_is_known() {
        let plan = Plan {
            unknown_processes: BTreeMap::from([("a".to_owned(), 2)]),
            missing_hosts: BTreeSet::from(["c".to_owned()]),
            ..Plan::default()
        };
        let counts = unknown_processes(&plan, ["a", "b", "c"].into_iter());
        let wanted = [("a".to_owned(), 2), ("b".to_owned(), 0)];
        assert!(counts.into_iter().eq(wanted));
    }
}
