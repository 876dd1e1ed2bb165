use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::Attribution;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::daemon::*;
use crate::config::*;

pub(super) const USERS: [&str; 8] = ["alice", "alice", "alice", "bob", "bob", "carol", "admin", "root"];
const DEVICES: u32 = 3;

/// One process: host, user, environment or not, uses, and what is odd about it.
type ProcessSketch = (usize, usize, Option<usize>, Vec<(u32, u64)>, u8);

pub(super) fn labs() -> impl Strategy<Value = Lab> {
    let environment = (
        0..2_usize,
        0..USERS.len(),
        subsequence((0..DEVICES).collect::<Vec<_>>(), 0..=3),
        prop::option::weighted(0.8, 0..8_u64),
        0..7200_u32,
    );
    let uses = prop::collection::vec((0..DEVICES, 0..10_u64), 1..3);
    let process = (0..2_usize, 0..USERS.len(), prop::option::weighted(0.8, 0..6_usize), uses, 0..16_u8);
    (
        prop::collection::vec(environment, 0..7),
        prop::collection::vec(process, 0..14),
        prop::bool::weighted(0.15),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(environments, processes, one_is_silent, groups_are_unknown)| {
            let mut lab = Lab::new(2, DEVICES).member("alice", "staff").member("bob", "staff");
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
            if groups_are_unknown {
                lab.groups.remove("carol");
                lab.groups.remove("alice");
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
        0 | 7 => process.attribution = Attribution::Unknown { reason: "zombie".to_owned() },
        1 => process.start_time_ticks = None,
        2 => process.uid = None,
        3 => process.username = Some("root".to_owned()),
        4 => {
            process.uid = Some(0);
            process.container_id = Some("3f4e".to_owned());
        }
        5 => process.devices[0].memory_used_bytes = None.into(),
        6 => process.devices[0].utilization_ratio = None.into(),
        _ => process.devices[0].utilization_ratio = Some(0.01).into(),
    }
    lab
}

pub(super) fn limits() -> impl Strategy<Value = Limits<u64>> {
    let limit = |most: u64| {
        (
            prop::option::weighted(0.7, 0..most),
            prop::option::weighted(0.3, 0..most),
            prop::option::weighted(0.3, 0..most),
        )
            .prop_map(|(default, staff, carol)| Limit {
                default,
                groups: staff.map(|staff| ("staff".to_owned(), staff)).into_iter().collect(),
                users: carol.map(|carol| ("carol".to_owned(), carol)).into_iter().collect(),
            })
    };
    (limit(3), prop::option::weighted(0.3, limit(3))).prop_map(|(base, own)| Limits {
        base,
        overrides: own.into_iter().map(|own| (HostSet(names(&["gpu01"])), own)).collect(),
    })
}

pub(super) fn times(limits: Limits<u64>, unit: u64) -> Limits<u64> {
    let of = |limit: Limit<u64>| Limit {
        default: limit.default.map(|value| value * unit),
        groups: limit.groups.into_iter().map(|(name, value)| (name, value * unit)).collect(),
        users: limit.users.into_iter().map(|(name, value)| (name, value * unit)).collect(),
    };
    Limits {
        base: of(limits.base),
        overrides: limits.overrides.into_iter().map(|(hosts, limit)| (hosts, of(limit))).collect(),
    }
}

fn kinds() -> impl Strategy<Value = RuleKind> {
    let scope = select(vec![Scope::Host, Scope::AllHosts]);
    let per = select(vec![MemoryPer::Device, MemoryPer::Total]);
    (0..KINDS.len() as u8, limits(), scope, per).prop_map(|(kind, limits, scope, per)| {
        let kind = KINDS[usize::from(kind)];
        let limits = match kind.limit {
            Some(Quantity::Memory) => times(limits, 5 * GIB),
            Some(Quantity::Time) => times(limits, 1000),
            Some(Quantity::Number(_)) | None => limits,
        };
        let kind = small(kind, scope, per);
        kind.with_limits(limits).unwrap_or(kind)
    })
}

/// Actions that end a violation of this kind; reports and warnings of the kinds that none ends.
fn ending(kind: &RuleKind) -> Vec<Action> {
    let possible = |action: &Action| kind.definition().cannot(*action).is_none();
    let acting = [Action::Detach, Action::Terminate, Action::Kill].into_iter().filter(possible);
    let acting: Vec<Action> = acting.collect();
    if acting.is_empty() { vec![Action::Report, Action::Warn] } else { acting }
}

pub(super) fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let selector = (
        prop::option::weighted(0.2, subsequence(USERS.to_vec(), 2..6)),
        prop::option::weighted(0.2, subsequence(vec![0_u32, 1, 2], 2..3)),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(users, devices, groups, except_groups, hosts)| Selector {
            users: users.map(|users| names(&users)),
            devices: devices.map(|devices| devices.into_iter().collect()),
            groups: groups.then(|| names(&["staff"])),
            except_groups: if except_groups { names(&["students"]) } else { names(&[]) },
            except_hosts: HostSet(if hosts { names(&["gpu02"]) } else { names(&[]) }),
            ..Selector::default()
        });
    let warn = select(vec![vec![], vec![seconds(20)], vec![seconds(50), seconds(20)]]);
    let rule = (
        kinds(),
        selector,
        warn,
        select(vec![(0_u64, 0_u64), (10, 0), (40, 0), (0, 50), (40, 90)]),
        any::<prop::sample::Index>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(kind, selector, warn, (for_seconds, remember), action, keep)| Rule {
            for_duration: seconds(for_seconds),
            remember: seconds(remember),
            warn,
            selector,
            grace: seconds(30),
            processes: if keep { DetachedProcesses::Keep } else { DetachedProcesses::Terminate },
            ..rule(kind.clone(), *action.get(&ending(&kind)))
        });
    prop::collection::vec(rule, 1..5).prop_map(|mut rules| {
        for (number, rule) in rules.iter_mut().enumerate() {
            rule.name = format!("rule-{number}");
        }
        rules
    })
}

/// Properties hold for nothing if nothing comes to pass: of a few hundred labs, many must have what they are about.
#[test]
fn the_cases_that_the_properties_are_about_are_generated() {
    const LABS: u32 = 300;
    let mut runner = TestRunner::deterministic();
    let case = (labs(), rules());
    let mut met: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..LABS {
        let (lab, rules) = case.new_tree(&mut runner).unwrap().current();
        for what in cases(&lab, rules) {
            *met.entry(what).or_default() += 1;
        }
    }
    let acting = KINDS.iter().filter(|kind| kind.cannot(Action::Kill).is_none());
    let others = "pending warned due acted held report warn detach terminate kill several unknown never ungrouped";
    let others = others.split(' ');
    for what in acting.map(|kind| kind.word).chain(others) {
        let times = met.get(what).copied().unwrap_or_default();
        assert!(times >= LABS / 30, "{what}: {times} of {LABS}: {met:#?}");
    }
}

/// What comes to pass in a lab within some cycles: kinds with targets, stages, steps, several targets; and whether it has
/// processes of unknown attribution, of a user who is never a victim, and of a user of unknown groups.
fn cases(lab: &Lab, rules: Vec<Rule>) -> BTreeSet<String> {
    let mut met = BTreeSet::new();
    for process in lab.hosts.iter().flat_map(|host| &host.processes) {
        if matches!(process.attribution, Attribution::Unknown { .. }) {
            met.insert("unknown".to_owned());
        }
        if process.username.as_deref() == Some("admin") {
            met.insert("never".to_owned());
        }
        if process.username.as_ref().is_some_and(|username| !lab.groups.contains_key(username)) {
            met.insert("ungrouped".to_owned());
        }
    }
    let mut daemon = Daemon::new(rules);
    for _ in 0..20 {
        let plan = daemon.cycle(lab);
        for violation in &plan.violations {
            let stage = format!("{:?}", violation.stage).to_lowercase();
            met.insert(stage.split(' ').next().unwrap_or_default().to_owned());
            let mut rules = daemon.config.rules.iter();
            let rule = rules.find(|rule| rule.name == violation.key.rule).unwrap();
            if !violation.targets.is_empty() {
                met.insert(rule.kind.word().to_owned());
            }
            if violation.targets.len() > 1 {
                met.insert("several".to_owned());
            }
        }
        for step in &plan.steps {
            met.insert(short(&step.kind).split(' ').next().unwrap_or_default().to_owned());
        }
        daemon.now_seconds += 10.0;
    }
    met
}
