use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::Attribution;
use proptest::prelude::*;
use proptest::sample::select;

use super::daemon::*;
use super::generated::*;
use crate::config::*;
use crate::plan::*;

fn assert_guilty(lab: &Lab, target: &ProcessTarget, violation: &Violation) {
    let host = lab.hosts.iter().find(|host| host.hostname == target.hostname).unwrap();
    let process = host.processes.iter().find(|process| process.pid == target.pid).unwrap();
    assert!(!lab.silent.contains(&target.hostname));
    assert!(!matches!(process.attribution, Attribution::Unknown { .. }));
    assert_eq!(process.start_time_ticks, Some(target.start_time_ticks));
    assert_eq!(process.uid, Some(target.uid));
    assert!(target.uid != 0 || target.container_id.is_some());
    assert!(!["root", "admin"].contains(&target.username.as_str()));
    assert!(!["root", "admin"].contains(&violation.username.as_str()));
    assert_eq!(host.user_of(process), Some(violation.username.as_str()));
    if let Some(hostname) = &violation.hostname {
        assert_eq!(*hostname, target.hostname);
    }
}

/// What is known of a violation while it lasts, in seconds that were observed.
#[derive(Clone, Debug, Default)]
struct Seen {
    since: f64,
    warned: Vec<f64>,
    /// Processes that it ended: when all that it was for are, others are warned of anew.
    ended: BTreeSet<u32>,
    /// Whether the enforcer took devices. The lab still shows them attached, which counts as a new attachment.
    took_devices: bool,
}

impl Seen {
    fn is_new(&self, target: &Target) -> bool {
        let mut processes = target.processes().iter();
        matches!(target, Target::Attachment(_)) || processes.any(|process| !self.ended.contains(&process.pid))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nobody_unknown_never_listed_unwarned_or_innocent_is_a_victim(
        lab in labs(),
        rules in rules(),
        steps in prop::collection::vec(select(vec![10.0, 10.0, 10.0, 10.0, 30.0, 0.0, 0.5, -1.0, -3600.0, 31.0, 3600.0]), 25),
    ) {
        // What is remembered of others of the same user has a property of its own.
        let forgetful = rules.into_iter().map(|rule| Rule { remember: seconds(0), ..rule });
        let mut daemon = Daemon::new(forgetful.collect());
        let mut observed = 0.0;
        let (mut shown_seconds, mut counted_until) = (f64::MIN, daemon.now_seconds);
        let mut lasting: BTreeMap<Key, Seen> = BTreeMap::new();
        let mut ended = BTreeSet::new();
        for step_seconds in steps {
            // A snapshot of before the last one shows nothing, and through a gap no time counts.
            if daemon.now_seconds > shown_seconds {
                let gap = daemon.now_seconds - counted_until;
                observed += if (0.0..=30.0).contains(&gap) { gap } else { 0.0 };
                counted_until = daemon.now_seconds;
            }
            shown_seconds = daemon.now_seconds;
            let plan = daemon.cycle(&lab);
            lasting.retain(|key, _| {
                // While a host is missing or a part of the evidence is not known, nobody can tell that what it showed is gone.
                daemon.history.remembers(key)
                    || plan.violations.iter().any(|violation| violation.key == *key)
            });
            for violation in &plan.violations {
                let new = || Seen { since: observed, ..Seen::default() };
                lasting.entry(violation.key.clone()).or_insert_with(new);
                for target in violation.targets.iter().flat_map(Target::processes) {
                    assert_guilty(&lab, target, violation);
                }
            }
            for step in &plan.steps {
                let rule = daemon.config.rules.iter().find(|rule| rule.name == step.key.rule).unwrap();
                let violation = plan.violations.iter().find(|it| it.key == step.key).unwrap();
                let seen = lasting.get_mut(&step.key).unwrap();
                prop_assert!(observed - seen.since >= rule.for_duration.as_secs_f64());
                let (targets, signal) = match &step.kind {
                    StepKind::Report => continue,
                    StepKind::Warn { number, .. } => {
                        if *number == 1 && (seen.took_devices || !seen.ended.is_empty()) {
                            prop_assert!(violation.targets.iter().any(|target| seen.is_new(target)));
                            *seen = Seen { since: seen.since, ..Seen::default() };
                        }
                        prop_assert_eq!(*number, seen.warned.len() + 1);
                        seen.warned.push(observed);
                        continue;
                    }
                    StepKind::Detach(target) => {
                        prop_assert_eq!(&target.username, &violation.username);
                        prop_assert!(!lab.silent.contains(&target.hostname));
                        seen.took_devices = true;
                        (&target.processes[..], "terminate")
                    }
                    StepKind::Terminate(target) => (std::slice::from_ref(target), "terminate"),
                    StepKind::Kill(target) => (std::slice::from_ref(target), "kill"),
                };
                prop_assert_eq!(seen.warned.len(), rule.warn.len());
                for (warned, before) in seen.warned.iter().zip(&rule.warn) {
                    prop_assert!(observed - warned >= before.as_secs_f64());
                }
                for target in targets {
                    seen.ended.insert(target.pid);
                    assert_guilty(&lab, target, violation);
                    // Nobody is told twice.
                    prop_assert!(ended.insert((target.hostname.clone(), target.pid, signal)));
                }
            }
            daemon.now_seconds += step_seconds;
        }
    }

    #[test]
    fn the_targets_end_the_violation_and_none_of_them_is_in_vain(lab in labs(), rules in rules()) {
        let daemon = observed(&lab, rules);
        for violation in daemon.plan(&lab).violations {
            let breaks = |without: &[Target]| {
                let plan = daemon.plan(&lab.clone().without(without));
                plan.violations.iter().any(|it| it.key == violation.key)
            };
            if violation.targets.is_empty() {
                continue;
            }
            prop_assert!(!breaks(&violation.targets), "{:?}", violation);
            for spared in 0..violation.targets.len() {
                let mut targets = violation.targets.clone();
                targets.remove(spared);
                prop_assert!(breaks(&targets), "{:?}", violation);
            }
        }
    }

    #[test]
    fn the_same_facts_once_more_cause_nothing(lab in labs(), rules in rules(), cycles in 1..8_usize) {
        let mut daemon = Daemon::new(rules);
        for _ in 0..cycles {
            let first = daemon.cycle(&lab);
            let history = daemon.history.clone();
            let again = daemon.cycle(&lab);
            prop_assert_eq!(&again.steps, &[]);
            let keys = |plan: &Plan| -> Vec<Key> {
                plan.violations.iter().map(|violation| violation.key.clone()).collect()
            };
            prop_assert_eq!(keys(&first), keys(&again));
            prop_assert_eq!(history, daemon.history.clone());
            daemon.now_seconds += 10.0;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_fewer_processes_would_end_it(lab in labs(), kind in 0..5_u8, limits in limits()) {
        let kind = match kind {
            0 => RuleKind::from(EnvMemory),
            1 => RuleKind::from(MaxProcessesPerEnvironment { limits }),
            number => RuleKind::from(MaxMemoryPerUser {
                limits: times(limits, 5 * GIB),
                per: if number == 2 { MemoryPer::Device } else { MemoryPer::Total },
                scope: if number == 3 { Scope::Host } else { Scope::AllHosts },
            }),
        };
        // Violations of a rule that only reports, so that none is relieved by what is done about another.
        let daemon = observed(&lab, vec![rule(kind, Action::Report)]);
        for violation in daemon.plan(&lab).violations {
            let own = within_reach(&lab, &violation.username);
            let ends = |set: u32| {
                let some: Vec<Target> = (0..own.len()).filter(|number| set & (1 << number) != 0).map(|number| own[number].clone()).collect();
                let plan = daemon.plan(&lab.clone().without(&some));
                plan.violations.iter().all(|it| it.key != violation.key)
            };
            let fewest = (0..1_u32 << own.len()).filter(|&set| ends(set)).map(u32::count_ones).min();
            let taken = (!violation.targets.is_empty()).then_some(violation.targets.len() as u32);
            prop_assert_eq!(taken, fewest, "{:?}", violation);
        }
    }
}

fn within_reach(lab: &Lab, username: &str) -> Vec<Target> {
    let hosts = lab.hosts.iter().filter(|host| !lab.silent.contains(&host.hostname));
    let targets = hosts.flat_map(|host| {
        let processes = host.processes.iter().filter(|process| {
            !matches!(process.attribution, Attribution::Unknown { .. }) && host.user_of(process) == Some(username)
        });
        processes.filter_map(|process| {
            let is_container = process.container_id.is_some();
            Some(ProcessTarget {
                hostname: host.hostname.clone(),
                start_time_ticks: process.start_time_ticks?,
                uid: process.uid.filter(|&uid| uid != 0 || is_container)?,
                ..target(process.username.as_deref().filter(|name| *name != "root")?, process.pid)
            })
        })
    });
    targets.map(|it| Target::Process(it.into())).collect()
}

/// After a few cycles in which nothing was done, so that idle devices are known.
fn observed(lab: &Lab, rules: Vec<Rule>) -> Daemon {
    let mut daemon = Daemon::new(rules);
    for _ in 0..4 {
        daemon.cycle_with(lab, |_| Outcome::Refused { reason: "not yet".to_owned(), again: true });
        daemon.now_seconds += 10.0;
    }
    daemon
}
