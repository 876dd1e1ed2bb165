//! The metric families, and their exposition.
//!
//! To add a metric, add a [`Family`] to [`FAMILIES`], and its line to `docs/metrics.md`
//! (`UPDATE_DOCS=1 cargo test -p genv-tests --test monitoring documents` writes it).

use genv_web::metrics::{self, Family, Kind, MetricFamily, OwnProcess, Samples};

use super::counters::COUNTED;
use super::{Measured, mode_word};
use crate::config::Mode;

/// The exposition of all families.
pub fn render(measured: &Measured) -> String {
    let process = OwnProcess::read();
    let (mut samples, mut text) = (Samples::default(), String::new());
    let mut each = |family: &MetricFamily| text.push_str(family.text());
    each(metrics::of_build(&BUILD_INFO, &mut samples));
    metrics::of_process(&process, &mut samples, &mut each);
    families(measured, &mut samples, each);
    text
}

/// All families about enforcement that have a sample.
pub fn families(measured: &Measured, samples: &mut Samples, mut each: impl FnMut(&MetricFamily)) {
    for family in FAMILIES {
        let family = samples.of(family, |samples| (family.samples)(measured, samples));
        if !family.is_empty() {
            each(family);
        }
    }
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

const fn number(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

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
        samples: |measured, out| measured.counters.write_warnings(out),
    },
    Family {
        name: "genv_enforcer_undelivered_warnings",
        kind: Kind::Gauge,
        labels: &["rule"],
        help: "Violations on the enforcer's own host of which the last warning has reached neither a terminal nor 'genv why' nor the notifier; 0 of each other rule that warns.",
        samples: |measured, out| {
            for ((hostname, rule), count) in &measured.undelivered {
                out.of_host(hostname);
                out.add(&[rule], *count as f64);
            }
        },
    },
    Family {
        name: "genv_enforcer_actions_total",
        kind: Kind::Counter,
        labels: COUNTED,
        help: "Actions (report, detach, terminate or kill), by how they went (done, would, refused or failed).",
        samples: |measured, out| measured.counters.write_actions(out),
    },
    Family {
        name: "genv_enforcer_unkillable_processes_total",
        kind: Kind::Counter,
        labels: &[],
        help: "Processes that did not end by SIGKILL.",
        samples: |measured, out| measured.counters.write_unkillable(out),
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
        name: "genv_enforcer_unknown_user_processes",
        kind: Kind::Gauge,
        labels: &["username"],
        help: "Those of genv_enforcer_unknown_processes by user, (unknown) where that is not known either; absent of users without any.",
        samples: |measured, out| {
            for ((hostname, username), count) in &measured.unknown_user_processes {
                out.of_host(hostname);
                out.add(&[username], *count as f64);
            }
        },
    },
    Family {
        name: "genv_enforcer_blind",
        kind: Kind::Gauge,
        labels: &["source"],
        help: "1 while a source of a host shows nothing, so that nothing is done by what it would show: gpu, processes, state, or host where it does not answer at all; and while it does not show all: devices, that are not shown or of which the processes are not known, and records that are left out.",
        samples: |measured, out| {
            for ((hostname, source), blind) in &measured.blind {
                out.of_host(hostname);
                out.add(&[source], number(*blind));
            }
        },
    },
    Family {
        name: "genv_enforcer_state_lock_held",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 while no device can be taken because a process holds the lock of genv's state, 0 otherwise.",
        samples: |measured, out| out.add(&[], number(measured.lock_is_held)),
    },
    Family {
        name: "genv_state_disputed_records",
        kind: Kind::Gauge,
        labels: &[],
        help: "Records of environments that were changed otherwise than by their users, so that not all of them counts as the state file has it; absent of hosts without fresh facts.",
        samples: |measured, out| {
            for (hostname, count) in &measured.disputed_records {
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
