//! What holds for any lab, any rules and any history.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::Attribution;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::lab::*;
use crate::config::*;
use crate::plan::*;

const USERS: [&str; 5] = ["alice", "bob", "carol", "admin", "root"];
const DEVICES: u32 = 3;

/// One process: host, user, environment or not, uses, and what is odd about it.
type ProcessSketch = (usize, usize, Option<usize>, Vec<(u32, u64)>, u8);

fn labs() -> impl Strategy<Value = Lab> {
    let environment = (
        0..2_usize,
        0..USERS.len(),
        subsequence((0..DEVICES).collect::<Vec<_>>(), 0..=3),
        prop::option::of(1..12_u64),
        0..7200_u32,
    );
    let uses = prop::collection::vec((0..DEVICES, 0..10_u64), 1..3);
    let process = (
        0..2_usize,
        0..USERS.len(),
        prop::option::weighted(0.7, 0..6_usize),
        uses,
        0..12_u8,
    );
    (
        prop::collection::vec(environment, 0..6),
        prop::collection::vec(process, 0..10),
        prop::bool::weighted(0.15),
    )
        .prop_map(|(environments, processes, one_is_silent)| {
            let mut lab = Lab::new(2, DEVICES)
                .member("alice", "staff")
                .member("bob", "staff");
            for user in USERS {
                lab.groups.entry(user.to_owned()).or_default();
            }
            for (number, (host, user, gpus, gib, age)) in environments.iter().enumerate() {
                let (host, eid) = (["gpu01", "gpu02"][*host], format!("e{number}"));
                lab = lab.environment(host, &eid, USERS[*user]);
                for &gpu in gpus {
                    let before = f64::from(*age) - f64::from(gpu);
                    lab = lab.attach_memory(host, &eid, gpu, before, gib.map(|gib| gib * GIB));
                }
            }
            for (number, sketch) in processes.iter().enumerate() {
                lab = with_process(lab, 10 + number as u32, sketch, &environments);
            }
            if one_is_silent {
                lab.silent.insert("gpu02".to_owned());
            }
            lab
        })
}

fn with_process<T>(
    lab: Lab,
    pid: u32,
    (host, user, eid, uses, odd): &ProcessSketch,
    environments: &[(usize, usize, T, Option<u64>, u32)],
) -> Lab {
    let eid = eid.filter(|&eid| eid < environments.len());
    // A process is on the host of its environment, and mostly its user's.
    let (host, user) = match eid {
        Some(eid) => (environments[eid].0, environments[eid].1),
        None => (*host, *user),
    };
    let hostname = ["gpu01", "gpu02"][host];
    let eid = eid.map(|eid| format!("e{eid}"));
    let mut uses: Vec<(u32, u64)> = uses.iter().map(|&(gpu, gib)| (gpu, gib * GIB)).collect();
    uses.sort_unstable();
    uses.dedup_by_key(|(gpu, _)| *gpu);
    let mut lab = lab.process(hostname, pid, USERS[user], eid.as_deref(), &uses);
    let process = lab.pid(hostname, pid);
    match odd {
        0 => {
            process.attribution = Attribution::Unknown {
                reason: "zombie".to_owned(),
            }
        }
        1 => process.start_time_ticks = None,
        2 => process.uid = None,
        3 => process.username = Some("root".to_owned()),
        4 => {
            process.uid = Some(0);
            process.container_id = Some("3f4e".to_owned());
        }
        5 => process.devices[0].memory_used_bytes = None,
        6 => process.devices[0].utilization_ratio = None,
        _ => process.devices[0].utilization_ratio = Some(0.01),
    }
    lab
}

fn limits() -> impl Strategy<Value = Limits<u64>> {
    let limit = |most: u64| {
        (
            prop::option::of(0..most),
            prop::option::of(0..most),
            prop::option::of(0..most),
        )
            .prop_map(|(default, staff, carol)| Limit {
                default,
                groups: staff
                    .map(|staff| ("staff".to_owned(), staff))
                    .into_iter()
                    .collect(),
                users: carol
                    .map(|carol| ("carol".to_owned(), carol))
                    .into_iter()
                    .collect(),
            })
    };
    (limit(4), prop::option::of(limit(4))).prop_map(|(base, own)| Limits {
        base,
        overrides: own
            .into_iter()
            .map(|own| (HostSet(names(&["gpu01"])), own))
            .collect(),
    })
}

fn times(limits: Limits<u64>, unit: u64) -> Limits<u64> {
    let of = |limit: Limit<u64>| Limit {
        default: limit.default.map(|value| value * unit),
        groups: limit
            .groups
            .into_iter()
            .map(|(name, value)| (name, value * unit))
            .collect(),
        users: limit
            .users
            .into_iter()
            .map(|(name, value)| (name, value * unit))
            .collect(),
    };
    Limits {
        base: of(limits.base),
        overrides: limits
            .overrides
            .into_iter()
            .map(|(hosts, limit)| (hosts, of(limit)))
            .collect(),
    }
}

fn kinds() -> impl Strategy<Value = RuleKind> {
    let scope = select(vec![Scope::Host, Scope::AllHosts]);
    let per = select(vec![MemoryPer::Device, MemoryPer::Total]);
    (0..10_u8, limits(), scope, per).prop_map(|(kind, limits, scope, per)| match kind {
        0 => RuleKind::NonEnvProcesses,
        1 => RuleKind::EnvDevices,
        2 => RuleKind::EnvMemory,
        3 => RuleKind::MaxDevicesPerUser { limits, scope },
        4 => RuleKind::MaxEnvironmentsPerUser { limits, scope },
        5 => RuleKind::MaxHostsPerUser { limits },
        6 => RuleKind::MaxProcessesPerEnvironment { limits },
        7 => RuleKind::MaxMemoryPerUser {
            limits: times(limits, 5 * GIB),
            per,
            scope,
        },
        8 => RuleKind::MaxAge {
            limits: times(limits, 1000),
        },
        _ => RuleKind::Idle {
            below: 0.05,
            over: seconds(20),
            only_if_free_devices_below: None,
        },
    })
}

/// What ends a violation of this kind, as the configuration allows.
fn ending(kind: &RuleKind) -> &'static [Action] {
    match kind {
        RuleKind::MaxDevicesPerUser { .. }
        | RuleKind::MaxEnvironmentsPerUser { .. }
        | RuleKind::MaxHostsPerUser { .. }
        | RuleKind::MaxAge { .. }
        | RuleKind::Idle { .. } => &[Action::Detach, Action::Terminate, Action::Kill],
        _ => &[Action::Terminate, Action::Kill],
    }
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let selector = (
        prop::option::weighted(0.2, subsequence(USERS.to_vec(), 1..4)),
        prop::option::weighted(0.2, subsequence(vec![0_u32, 1, 2], 1..3)),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(users, devices, groups, hosts)| Selector {
            users: users.map(|users| names(&users)),
            devices: devices.map(|devices| devices.into_iter().collect()),
            groups: groups.then(|| names(&["staff"])),
            except_hosts: HostSet(if hosts { names(&["gpu02"]) } else { names(&[]) }),
            ..Selector::default()
        });
    let warn = select(vec![
        vec![],
        vec![seconds(20)],
        vec![seconds(50), seconds(20)],
    ]);
    let rule = (
        kinds(),
        selector,
        warn,
        select(vec![0_u64, 10, 40]),
        any::<prop::sample::Index>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(kind, selector, warn, for_seconds, action, keep)| Rule {
            for_duration: seconds(for_seconds),
            warn,
            selector,
            grace: seconds(30),
            processes: if keep {
                DetachedProcesses::Keep
            } else {
                DetachedProcesses::Terminate
            },
            ..rule(kind.clone(), *action.get(ending(&kind)))
        });
    prop::collection::vec(rule, 1..4).prop_map(|mut rules| {
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.name = format!("rule-{number}");
        }
        rules
    })
}

/// Whether a process may be ended for a violation of a user.
fn assert_guilty(lab: &Lab, target: &ProcessTarget, violation: &Violation) {
    let host = lab
        .hosts
        .iter()
        .find(|host| host.hostname == target.hostname)
        .unwrap();
    let process = host
        .processes
        .iter()
        .find(|process| process.pid == target.pid)
        .unwrap();
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

fn processes(target: &Target) -> &[ProcessTarget] {
    match target {
        Target::Process(target) => std::slice::from_ref(target),
        Target::Attachment(target) => &target.processes,
    }
}

/// What is known of a violation while it lasts, in seconds that were observed.
#[derive(Clone, Debug, Default)]
struct Seen {
    since: f64,
    warned: Vec<f64>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nobody_unknown_never_listed_unwarned_or_innocent_is_a_victim(
        lab in labs(),
        rules in rules(),
        steps in prop::collection::vec(select(vec![10.0, 10.0, 10.0, 10.0, 30.0, 0.0, 0.5, -1.0, -3600.0, 31.0, 3600.0]), 25),
    ) {
        let mut daemon = Daemon::new(rules);
        let mut observed = 0.0;
        let mut lasting: BTreeMap<Key, Seen> = BTreeMap::new();
        let mut ended = BTreeSet::new();
        for step_seconds in steps {
            let plan = daemon.cycle(&lab);
            lasting.retain(|key, _| plan.violations.iter().any(|violation| violation.key == *key));
            for violation in &plan.violations {
                let new = || Seen { since: observed, warned: Vec::new() };
                lasting.entry(violation.key.clone()).or_insert_with(new);
                for target in violation.targets.iter().flat_map(processes) {
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
                        prop_assert_eq!(*number, seen.warned.len() + 1);
                        seen.warned.push(observed);
                        continue;
                    }
                    StepKind::Detach(target) => {
                        prop_assert_eq!(&target.username, &violation.username);
                        prop_assert!(!lab.silent.contains(&target.hostname));
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
                    assert_guilty(&lab, target, violation);
                    // Nobody is told twice.
                    prop_assert!(ended.insert((target.hostname.clone(), target.pid, signal)));
                }
            }
            daemon.now_seconds += step_seconds;
            if (0.0..=30.0).contains(&step_seconds) {
                observed += step_seconds;
            }
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
            0 => RuleKind::EnvMemory,
            1 => RuleKind::MaxProcessesPerEnvironment { limits },
            number => RuleKind::MaxMemoryPerUser {
                limits: times(limits, 5 * GIB),
                per: if number == 2 { MemoryPer::Device } else { MemoryPer::Total },
                scope: if number == 3 { Scope::Host } else { Scope::AllHosts },
            },
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

/// All processes of a user that may be ended.
fn within_reach(lab: &Lab, username: &str) -> Vec<Target> {
    let hosts = lab
        .hosts
        .iter()
        .filter(|host| !lab.silent.contains(&host.hostname));
    let targets = hosts.flat_map(|host| {
        let processes = host.processes.iter().filter(|process| {
            !matches!(process.attribution, Attribution::Unknown { .. })
                && host.user_of(process) == Some(username)
        });
        processes.filter_map(|process| {
            let container_id = process.container_id.clone();
            Some(ProcessTarget {
                hostname: host.hostname.clone(),
                pid: process.pid,
                start_time_ticks: process.start_time_ticks?,
                uid: process
                    .uid
                    .filter(|&uid| uid != 0 || container_id.is_some())?,
                username: process.username.clone().filter(|name| name != "root")?,
                comm: process.comm.clone(),
                eid: process.attribution.eid().map(ToOwned::to_owned),
                container_id,
            })
        })
    });
    targets.map(Target::Process).collect()
}

/// After a few cycles in which nothing was done, so that idle devices are known.
fn observed(lab: &Lab, rules: Vec<Rule>) -> Daemon {
    let mut daemon = Daemon::new(rules);
    for _ in 0..4 {
        daemon.cycle_with(lab, |_| Outcome::Refused {
            reason: "not yet".to_owned(),
            again: true,
        });
        daemon.now_seconds += 10.0;
    }
    daemon
}
