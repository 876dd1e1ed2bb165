//! The enforcer's metric families, and the counters behind them.
//!
//! To add a metric, add a [`Family`] to [`FAMILIES`], and its line to `docs/metrics.md`
//! (`UPDATE_DOCS=1 cargo test -p genv-enforcer documentation` writes it).

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::NOBODY;
use genv_web::metrics::{self, Family, Kind, MetricFamily, OwnProcess, Samples, exposition};

use crate::config::{Action, Mode, Rule};
use crate::plan::{Outcome, Plan, StepKind, Violation};
use crate::tell::words;

/// Users with series of their own; whoever may write genv's state may invent any number of users.
const MOST_USERS: usize = 1000;

/// Stands for the users beyond them.
const OTHER_USERS: &str = "(other)";

/// Stands for the host where all count together.
pub const ALL_HOSTS: &str = "(all)";

/// What a warning or an action is counted under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    rule: String,
    hostname: String,
    username: String,
    action: &'static str,
    mode: &'static str,
    result: &'static str,
}

/// A counter that is shown as 0 before it rises, so that its first rise is seen.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    value: u64,
    shown: bool,
}

/// Everything that is counted while the daemon runs.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    warnings: BTreeMap<Labels, Count>,
    actions: BTreeMap<Labels, Count>,
    unkillable: BTreeMap<String, Count>,
    users: BTreeSet<String>,
}

/// What is shown after a cycle.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// How many violations there are, by rule, host and user.
    pub violations: BTreeMap<(String, String, String), u64>,
    /// How many of them are at which stage, by rule, host, user and stage.
    pub stages: BTreeMap<(String, String, String, &'static str), u64>,
    /// Processes of which nobody knows where they belong, by host.
    pub unknown_processes: BTreeMap<String, u64>,
    /// Unix time of the cycle's end.
    pub last_cycle_seconds: f64,
    /// How long it took.
    pub cycle_duration_seconds: f64,
    /// Whether the breaker is open.
    pub breaker_open: bool,
    /// The mode in force.
    pub mode: Mode,
    /// Unix time until which everything waits.
    pub paused_until_seconds: Option<f64>,
    /// SHA-256 of the configuration in force.
    pub config_hash: String,
    /// Whether the file as it is now is in force.
    pub reload_successful: bool,
    /// Unix time at which the configuration was read.
    pub reload_success_seconds: f64,
    /// What is wrong with the enforcer itself.
    pub faults: usize,
    /// What was counted.
    pub counters: Counters,
}

/// The word of a mode.
#[must_use]
pub const fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::DryRun => "dry-run",
        Mode::Enforce => "enforce",
    }
}

impl Counters {
    /// Begins the counters of the rules at 0, on these hosts, and those of the users who break one.
    pub fn begin<'a>(
        &mut self,
        rules: &[Rule],
        hostnames: impl Iterator<Item = &'a str>,
        plan: &Plan,
        mode: Mode,
    ) {
        let by_name: BTreeMap<&str, &Rule> = rules
            .iter()
            .map(|rule| (rule.name.as_str(), rule))
            .collect();
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
            self.warnings
                .entry(labels(words::action(rule.action), results[0]))
                .or_default();
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
        self.actions
            .entry(labels("report", results[0]))
            .or_default();
    }

    /// Counts how a step went.
    pub fn count(&mut self, violation: &Violation, step: &StepKind, outcome: &Outcome, mode: Mode) {
        let labels = Labels {
            rule: violation.key.rule.clone(),
            hostname: host(violation).to_owned(),
            username: self.username(&violation.username),
            action: match words::deed(step) {
                Some((deed, _)) => deed,
                None if matches!(step, StepKind::Report) => "report",
                None => words::action(violation.action),
            },
            mode: mode_word(mode),
            result: result(outcome),
        };
        let counters = if matches!(step, StepKind::Warn { .. }) {
            &mut self.warnings
        } else {
            &mut self.actions
        };
        counters.entry(labels).or_default().value += 1;
    }

    /// Counts processes that did not end by SIGKILL.
    pub fn count_unkillable(&mut self, hostname: &str) {
        self.unkillable
            .entry(hostname.to_owned())
            .or_default()
            .value += 1;
    }

    /// Notes that everything is shown once.
    pub fn shown(&mut self) {
        let all = self.warnings.values_mut().chain(self.actions.values_mut());
        for count in all.chain(self.unkillable.values_mut()) {
            count.shown = true;
        }
    }

    fn username(&mut self, username: &str) -> String {
        if self.users.contains(username) {
            return username.to_owned();
        }
        if self.users.len() < MOST_USERS {
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

/// The word of an outcome.
#[must_use]
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

/// How many violations there are by rule, host and user; each rule is there on each host.
#[must_use]
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
        let key = (
            violation.key.rule.clone(),
            host(violation).to_owned(),
            username.to_owned(),
        );
        *counts.entry(key).or_default() += 1;
    }
    counts
}

/// How many violations are at which stage, by rule, host, user and stage; what is not there is none.
#[must_use]
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

/// How many processes there are on each host of which nobody knows where they belong; of hosts without fresh facts that is
/// not known.
#[must_use]
pub fn unknown_processes<'a>(
    plan: &Plan,
    hostnames: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, u64> {
    let known = hostnames.filter(|hostname| !plan.missing_hosts.contains(*hostname));
    known
        .map(|hostname| {
            let count = plan.unknown_processes.get(hostname);
            (hostname.to_owned(), count.copied().unwrap_or(0))
        })
        .collect()
}

/// Violations, with the username under which they are counted.
fn with_username(plan: &Plan) -> impl Iterator<Item = (&Violation, &str)> {
    let mut users = BTreeSet::new();
    plan.violations.iter().map(move |violation| {
        let username = violation.username.as_str();
        let known = users.contains(username) || users.len() < MOST_USERS;
        let username = if known { username } else { OTHER_USERS };
        users.insert(username);
        (violation, username)
    })
}

/// The exposition of all families.
#[must_use]
pub fn render(measured: &Measured) -> String {
    let process = OwnProcess::read();
    let own = metrics::of_build(&BUILD_INFO).into_iter();
    let own = own.chain(metrics::of_process(&process));
    exposition(own.chain(families(measured)))
}

/// All families about enforcement that have a sample.
pub fn families(measured: &Measured) -> impl Iterator<Item = MetricFamily> {
    FAMILIES.iter().filter_map(move |family| {
        let mut samples = Samples::new(family.kind, family.labels);
        (family.samples)(measured, &mut samples);
        samples.into_family(family.name, family.help)
    })
}

/// A family about enforcement.
pub type EnforcerFamily = Family<fn(&Measured, &mut Samples)>;

/// What the enforcer was built from.
pub const BUILD_INFO: Family<()> = Family {
    name: "genv_enforcer_build_info",
    kind: Kind::Largest,
    labels: &["version", "revision", "rustversion"],
    help: "Always 1; the labels tell from what the enforcer was built.",
    samples: (),
};

fn counted(counts: &BTreeMap<Labels, Count>, out: &mut Samples) {
    for (labels, count) in counts {
        out.of_host(&labels.hostname);
        out.add(
            &[
                &labels.rule,
                &labels.username,
                &labels.action,
                &labels.mode,
                &labels.result,
            ],
            count.seen(),
        );
    }
}

const fn number(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

const COUNTED: &[&str] = &["rule", "username", "action", "mode", "result"];

/// All families about enforcement, in the order in which they are written.
pub const FAMILIES: &[EnforcerFamily] = &[
    Family {
        name: "genv_enforcer_violations",
        kind: Kind::Gauge,
        labels: &["rule", "username"],
        help: "Violations of the rule, also those that are too young, waived or held; hostname (all) where all hosts count together, username (none) with 0 of each rule.",
        samples: |measured, out| {
            for ((rule, hostname, username), count) in &measured.violations {
                out.of_host(hostname);
                out.add(&[rule, username], *count as f64);
            }
        },
    },
    Family {
        name: "genv_enforcer_violation_stages",
        kind: Kind::Gauge,
        labels: &["rule", "username", "stage"],
        help: "Violations by how far they are: pending (too young), warned, due (the action can be taken any moment), acted (it was taken, or in dry-run would have been) or held (waived, paused or out of its time); absent where there is none.",
        samples: |measured, out| {
            for ((rule, hostname, username, stage), count) in &measured.stages {
                out.of_host(hostname);
                out.add(&[rule, username, stage], *count as f64);
            }
        },
    },
    Family {
        name: "genv_enforcer_warnings_total",
        kind: Kind::Counter,
        labels: COUNTED,
        help: "Warnings, by the action that the rule takes in the end; in dry-run those that would have been given.",
        samples: |measured, out| counted(&measured.counters.warnings, out),
    },
    Family {
        name: "genv_enforcer_actions_total",
        kind: Kind::Counter,
        labels: COUNTED,
        help: "Actions (report, detach, terminate or kill), by how they went (done, would, refused or failed).",
        samples: |measured, out| counted(&measured.counters.actions, out),
    },
    Family {
        name: "genv_enforcer_unkillable_processes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Processes that did not end by SIGKILL.",
        samples: |measured, out| {
            for (hostname, count) in &measured.counters.unkillable {
                out.of_host(hostname);
                out.add(&[], count.seen());
            }
        },
    },
    Family {
        name: "genv_enforcer_unknown_processes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Processes on devices that are never acted upon because nobody knows where they belong; absent of hosts without fresh facts.",
        samples: |measured, out| {
            for (hostname, count) in &measured.unknown_processes {
                out.of_host(hostname);
                out.add(&[], *count as f64);
            }
        },
    },
    Family {
        name: "genv_enforcer_last_cycle_timestamp_seconds",
        kind: Kind::Largest,
        labels: &[],
        help: "When the last cycle ended, in seconds of Unix time.",
        samples: |measured, out| out.add(&[], measured.last_cycle_seconds),
    },
    Family {
        name: "genv_enforcer_cycle_duration_seconds",
        kind: Kind::Largest,
        labels: &[],
        help: "How long the last cycle took from its facts to its end, in seconds.",
        samples: |measured, out| out.add(&[], measured.cycle_duration_seconds),
    },
    Family {
        name: "genv_enforcer_breaker_open",
        kind: Kind::Largest,
        labels: &[],
        help: "Whether the breaker has tripped, so that nothing is done until it is reset: 1 if it has, 0 if not.",
        samples: |measured, out| out.add(&[], number(measured.breaker_open)),
    },
    Family {
        name: "genv_enforcer_mode",
        kind: Kind::Largest,
        labels: &["mode"],
        help: "Which mode (dry-run or enforce) is in force: 1 of that one, 0 of the other.",
        samples: |measured, out| {
            for mode in [Mode::DryRun, Mode::Enforce] {
                out.add(&[&mode_word(mode)], number(measured.mode == mode));
            }
        },
    },
    Family {
        name: "genv_enforcer_paused_until_timestamp_seconds",
        kind: Kind::Largest,
        labels: &[],
        help: "Until when everything waits, in seconds of Unix time; absent unless the enforcer is paused.",
        samples: |measured, out| out.add(&[], measured.paused_until_seconds),
    },
    Family {
        name: "genv_enforcer_faults",
        kind: Kind::Gauge,
        labels: &[],
        help: "What is wrong with the enforcer itself, such as a file that it cannot write; 'genv-enforcer status' says what.",
        samples: |measured, out| out.add(&[], measured.faults as f64),
    },
    Family {
        name: "genv_enforcer_config_info",
        kind: Kind::Largest,
        labels: &["sha256"],
        help: "Always 1; the label tells which configuration is in force.",
        samples: |measured, out| out.add(&[&measured.config_hash], 1.0),
    },
    Family {
        name: "genv_enforcer_config_last_reload_successful",
        kind: Kind::Largest,
        labels: &[],
        help: "Whether the configuration as it is now is in force: 1 if it is, 0 if it was refused and the last good one is.",
        samples: |measured, out| out.add(&[], number(measured.reload_successful)),
    },
    Family {
        name: "genv_enforcer_config_last_reload_success_timestamp_seconds",
        kind: Kind::Largest,
        labels: &[],
        help: "When the configuration in force was read, in seconds of Unix time.",
        samples: |measured, out| out.add(&[], measured.reload_success_seconds),
    },
];

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
        let told = unknown_processes(&plan, ["a", "b", "c"].into_iter());
        let wanted = [("a".to_owned(), 2), ("b".to_owned(), 0)];
        assert!(told.into_iter().eq(wanted));
    }
}
