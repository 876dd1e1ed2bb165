//! What breaks each kind of rule, what is said about it, and what would be taken.

use super::daemon::*;
use super::lab::*;
use crate::config::*;

/// What a rule that acts at once says and does in a lab: `found | allowed | targets` of each violation.
fn said(kind: RuleKind, action: Action, lab: &Lab) -> Vec<String> {
    said_by(rule(kind, action), lab)
}

fn said_by(rule: Rule, lab: &Lab) -> Vec<String> {
    let plan = Daemon::new(vec![rule]).plan(lab);
    let line = |violation: &crate::plan::Violation| {
        let targets = targets(violation).join(", ");
        format!(
            "{}: {} | {} | {targets}",
            violation.username, violation.found, violation.allowed
        )
    };
    plan.violations.iter().map(line).collect()
}

fn terminated(kind: RuleKind, lab: &Lab) -> Vec<String> {
    said(kind, Action::Terminate, lab)
}

fn detached(kind: RuleKind, lab: &Lab) -> Vec<String> {
    said(kind, Action::Detach, lab)
}

#[test]
fn processes_outside_any_environment() {
    let lab = Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB)])
        .process("gpu01", 11, "bob", None, &[(0, GIB), (1, GIB)])
        .process("gpu01", 12, "root", None, &[(0, GIB)])
        .process("gpu01", 13, "admin", None, &[(0, GIB)]);
    assert_eq!(
        terminated(RuleKind::NonEnvProcesses, &lab),
        [
            "bob: process 11 (python) uses devices 0 and 1 outside any environment | processes in an environment | 11"
        ]
    );
}

#[test]
fn processes_on_devices_that_their_environment_is_not_attached_to() {
    let lab = Lab::new(1, 3)
        .environment("gpu01", "e1", "alice")
        .attach("gpu01", "e1", 0, 60.0)
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB)])
        .process("gpu01", 11, "alice", Some("e1"), &[(0, GIB), (2, GIB)])
        .process("gpu01", 12, "bob", None, &[(1, GIB)]);
    assert_eq!(
        terminated(RuleKind::EnvDevices, &lab),
        [
            "alice: process 11 (python) uses device 2, which its environment is not attached to | device 0 | 11"
        ]
    );
}

#[test]
fn more_memory_than_an_attachment_has() {
    let lab = |reserved: u64| {
        Lab::new(1, 2)
            .environment("gpu01", "e1", "alice")
            .attach_memory("gpu01", "e1", 0, 60.0, Some(reserved * GIB))
            .attach("gpu01", "e1", 1, 60.0)
            .process("gpu01", 10, "alice", Some("e1"), &[(0, 3 * GIB)])
            .process(
                "gpu01",
                11,
                "alice",
                Some("e1"),
                &[(0, 5 * GIB), (1, 70 * GIB)],
            )
            .process("gpu01", 12, "alice", Some("e1"), &[(0, 2 * GIB)])
    };
    let targets = |reserved| terminated(RuleKind::EnvMemory, &lab(reserved));
    assert!(targets(10).is_empty());
    for (reserved, expected) in [
        (9, "12"),
        (8, "12"),
        (7, "11"),
        (5, "11"),
        (4, "12, 11"),
        (1, "12, 11, 10"),
    ] {
        assert_eq!(
            targets(reserved),
            [format!(
                "alice: environment e1 uses 10 GiB on device 0 | {reserved} GiB that it reserved there | {expected}"
            )]
        );
    }
}

#[test]
fn an_amount_that_was_configured_counts_where_the_attachment_has_none() {
    let lab = |reserved: Option<u64>, configured: Option<u64>| {
        let mut lab = Lab::new(1, 1)
            .environment("gpu01", "e1", "alice")
            .attach_memory("gpu01", "e1", 0, 60.0, reserved.map(|gib| gib * GIB))
            .process("gpu01", 10, "alice", Some("e1"), &[(0, 3 * GIB)]);
        lab.hosts[0].environments[0].gpu_memory_bytes = configured.map(|gib| gib * GIB);
        terminated(RuleKind::EnvMemory, &lab).len()
    };
    assert_eq!(lab(None, None), 0);
    assert_eq!(lab(None, Some(2)), 1);
    assert_eq!(lab(None, Some(3)), 0);
    assert_eq!(lab(Some(2), Some(8)), 1);
    assert_eq!(lab(Some(8), Some(2)), 0);
}

#[test]
fn an_environment_with_a_process_that_may_not_be_ended_is_not_taken_apart() {
    let kind = || RuleKind::MaxEnvironmentsPerUser {
        limits: limit(1),
        scope: Scope::Host,
    };
    let mut lab = Lab::new(1, 2)
        .environment("gpu01", "a", "alice")
        .environment("gpu01", "b", "alice")
        .attach("gpu01", "a", 0, 60.0)
        .attach("gpu01", "b", 1, 30.0)
        .process("gpu01", 10, "alice", Some("b"), &[(1, GIB)])
        .process("gpu01", 11, "alice", Some("b"), &[(1, GIB)]);
    lab.hosts[0].environments[0].created_timestamp_seconds = Some(NOON - 7200.0);
    let says = |targets| {
        [format!(
            "alice: has 2 environments that hold or use a device | 1 by default | {targets}"
        )]
    };
    assert_eq!(detached(kind(), &lab), says("b:1 (10 11)"));
    // Without b's last process it would still use a device: a is the one that can go.
    lab.pid("gpu01", 11).uid = Some(0);
    assert_eq!(detached(kind(), &lab), says("a:0"));
}

#[test]
fn a_process_that_is_ended_for_one_device_is_counted_on_the_other() {
    let lab = Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .attach_memory("gpu01", "e1", 0, 60.0, Some(4 * GIB))
        .attach_memory("gpu01", "e1", 1, 60.0, Some(4 * GIB))
        .process(
            "gpu01",
            10,
            "alice",
            Some("e1"),
            &[(0, 6 * GIB), (1, 3 * GIB)],
        )
        .process("gpu01", 11, "alice", Some("e1"), &[(1, 2 * GIB)]);
    let plan = Daemon::new(vec![rule(RuleKind::EnvMemory, Action::Terminate)]).plan(&lab);
    assert_eq!(plan.violations.len(), 2);
    assert_eq!(actions(&plan), ["terminate 10"]);
}

#[test]
fn more_devices_of_a_user_than_the_limit() {
    let kind = |scope, limits| RuleKind::MaxDevicesPerUser { limits, scope };
    let lab = Lab::new(2, 4)
        .member("alice", "students")
        .member("alice", "staff")
        .environment("gpu01", "a", "alice")
        .environment("gpu01", "b", "alice")
        .environment("gpu02", "c", "alice")
        .environment("gpu01", "x", "bob")
        .attach("gpu01", "a", 0, 300.0)
        .attach("gpu01", "a", 1, 100.0)
        .attach("gpu01", "b", 1, 200.0)
        .attach("gpu01", "b", 2, 150.0)
        .attach("gpu02", "c", 0, 50.0)
        .attach("gpu01", "x", 1, 10.0)
        .process("gpu01", 10, "alice", Some("b"), &[(2, GIB)])
        .process("gpu01", 11, "bob", Some("x"), &[(1, GIB)]);
    assert!(detached(kind(Scope::Host, limit(3)), &lab).is_empty());
    // Device 1 is shared by two of her environments and counts once.
    assert_eq!(
        detached(kind(Scope::Host, limit(2)), &lab),
        ["alice: holds 3 devices | 2 by default | b:2 (10)"]
    );
    assert_eq!(
        detached(kind(Scope::Host, limit(1)), &lab),
        ["alice: holds 3 devices | 1 by default | b:2 (10), a:1, b:1"]
    );
    assert_eq!(
        detached(kind(Scope::AllHosts, limit(3)), &lab),
        ["alice: holds 4 devices | 3 by default | c:0"]
    );
    let mut limits = limit(1);
    limits.base.groups.insert("students".into(), 2);
    assert_eq!(
        detached(kind(Scope::Host, limits.clone()), &lab),
        ["alice: holds 3 devices | 2 for members of students | b:2 (10)"]
    );
    limits.base.groups.insert("staff".into(), 8);
    assert!(detached(kind(Scope::Host, limits.clone()), &lab).is_empty());
    limits.base.users.insert("alice".into(), 2);
    assert_eq!(
        detached(kind(Scope::Host, limits.clone()), &lab),
        ["alice: holds 3 devices | 2 for alice | b:2 (10)"]
    );
    limits.base.users.clear();
    let own = Limit {
        default: Some(0),
        groups: [("staff".to_owned(), 2)].into(),
        users: [].into(),
    };
    limits.overrides.push((HostSet(names(&["gpu01"])), own));
    assert_eq!(
        detached(kind(Scope::Host, limits), &lab),
        [
            "alice: holds 3 devices | 2 for members of staff on gpu01 | b:2 (10)",
            "bob: holds 1 device | 0 by default on gpu01 | x:1 (11)",
        ]
    );
}

#[test]
fn what_is_left_open_by_a_host_is_the_base_s_limit() {
    let mut limits = limit(2);
    limits.base.users.insert("alice".into(), 4);
    let own = Limit {
        default: Some(1),
        groups: [].into(),
        users: [].into(),
    };
    limits.overrides.push((HostSet(names(&["gpu01"])), own));
    let kind = RuleKind::MaxDevicesPerUser {
        limits,
        scope: Scope::Host,
    };
    let mut lab = Lab::new(1, 4);
    for user in ["alice", "bob"] {
        lab = lab.environment("gpu01", user, user);
        for gpu in 0..4 {
            lab = lab.attach("gpu01", user, gpu, 100.0 - f64::from(gpu));
        }
    }
    assert_eq!(
        detached(kind, &lab),
        ["bob: holds 4 devices | 1 by default on gpu01 | bob:3, bob:2, bob:1"]
    );
}

#[test]
fn more_environments_of_a_user_that_hold_or_use_a_device() {
    let kind = |number| RuleKind::MaxEnvironmentsPerUser {
        limits: limit(number),
        scope: Scope::Host,
    };
    let mut lab = Lab::new(1, 4);
    for (eid, age) in [("a", 100.0), ("b", 50.0), ("c", 200.0), ("d", 10.0)] {
        lab = lab.environment("gpu01", eid, "alice");
        let environment = lab.hosts[0]
            .environments
            .iter_mut()
            .find(|it| it.eid == eid)
            .unwrap();
        environment.created_timestamp_seconds = Some(NOON - age);
    }
    // The newest, d, has no device and counts for nothing.
    let lab = lab
        .attach("gpu01", "a", 0, 90.0)
        .attach("gpu01", "b", 1, 40.0)
        .attach("gpu01", "b", 2, 30.0)
        .process("gpu01", 10, "alice", Some("b"), &[(1, GIB), (2, GIB)])
        .process("gpu01", 11, "alice", Some("b"), &[(3, GIB)])
        .process("gpu01", 12, "alice", Some("c"), &[(3, GIB)]);
    assert!(detached(kind(3), &lab).is_empty());
    assert_eq!(
        detached(kind(2), &lab),
        [
            "alice: has 3 environments that hold or use a device | 2 by default | b:1 (10), b:2 (10), 11"
        ]
    );
    let plan = Daemon::new(vec![rule(kind(2), Action::Detach)]).plan(&lab);
    assert_eq!(
        actions(&plan),
        ["detach b:1 (10)", "detach b:2", "terminate 11"]
    );
    // Where processes may stay, an environment whose processes use a device cannot be ended: a, without any, is.
    let keep = Rule {
        processes: DetachedProcesses::Keep,
        ..rule(kind(2), Action::Detach)
    };
    assert_eq!(
        said_by(keep, &lab),
        ["alice: has 3 environments that hold or use a device | 2 by default | a:0"]
    );
}

#[test]
fn more_hosts_on_which_a_user_holds_a_device() {
    let kind = RuleKind::MaxHostsPerUser { limits: limit(1) };
    let lab = Lab::new(3, 2)
        .environment("gpu01", "a", "alice")
        .environment("gpu02", "b", "alice")
        .environment("gpu03", "c", "alice")
        .attach("gpu01", "a", 0, 50.0)
        .attach("gpu02", "b", 0, 20.0)
        .attach("gpu02", "b", 1, 30.0)
        .process("gpu03", 10, "alice", Some("c"), &[(0, GIB)]);
    assert_eq!(
        detached(kind, &lab),
        ["alice: holds devices on 2 hosts | 1 by default | b:0, b:1"]
    );
}

#[test]
fn more_processes_of_an_environment_that_use_a_device() {
    let kind = RuleKind::MaxProcessesPerEnvironment { limits: limit(2) };
    let lab = Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
        .process("gpu01", 11, "alice", Some("e1"), &[(0, GIB)])
        .process("gpu01", 12, "alice", Some("e1"), &[(1, GIB)]);
    assert_eq!(
        terminated(kind, &lab),
        ["alice: environment e1 has 3 processes on devices | 2 by default | 12"]
    );
}

#[test]
fn more_memory_of_a_user() {
    let kind = |gib: u64, per, scope| RuleKind::MaxMemoryPerUser {
        limits: limit(gib * GIB),
        per,
        scope,
    };
    let lab = Lab::new(2, 2)
        .environment("gpu01", "e1", "alice")
        .process(
            "gpu01",
            10,
            "alice",
            Some("e1"),
            &[(0, 50 * GIB), (1, 10 * GIB)],
        )
        .process("gpu01", 11, "alice", None, &[(0, 20 * GIB)])
        .process("gpu02", 12, "alice", None, &[(0, 30 * GIB)])
        .process("gpu01", 13, "bob", None, &[(0, 60 * GIB)]);
    let (device, total) = (MemoryPer::Device, MemoryPer::Total);
    assert_eq!(
        terminated(kind(60, device, Scope::AllHosts), &lab),
        ["alice: uses 70 GiB on device 0 | 60 GiB by default | 11"]
    );
    assert_eq!(
        terminated(kind(60, total, Scope::Host), &lab),
        ["alice: uses 80 GiB in total | 60 GiB by default | 11"]
    );
    assert_eq!(
        terminated(kind(80, total, Scope::AllHosts), &lab),
        ["alice: uses 110 GiB in total | 80 GiB by default | 12"]
    );
}

#[test]
fn environments_that_are_too_old_and_have_devices() {
    let kind = RuleKind::MaxAge {
        limits: limit(1800),
    };
    let mut lab = Lab::new(1, 2)
        .environment("gpu01", "new", "alice")
        .environment("gpu01", "old", "alice")
        .environment("gpu01", "unused", "alice")
        .attach("gpu01", "new", 0, 10.0)
        .attach("gpu01", "old", 0, 10.0)
        .attach("gpu01", "old", 1, 20.0)
        .process("gpu01", 10, "alice", Some("old"), &[(0, GIB)]);
    lab.hosts[0].environments[0].created_timestamp_seconds = Some(NOON - 1800.0);
    assert_eq!(
        detached(kind, &lab),
        ["alice: environment old is 1h old and has devices | 30m by default | old:0 (10), old:1"]
    );
}

#[test]
fn what_is_on_a_host_with_its_own_limit_is_held_against_it_besides_the_sum() {
    let mut limits = limit(3);
    let own = Limit {
        default: Some(1),
        groups: [].into(),
        users: [].into(),
    };
    limits.overrides.push((HostSet(names(&["gpu01"])), own));
    let kind = RuleKind::MaxDevicesPerUser {
        limits,
        scope: Scope::AllHosts,
    };
    let lab = |elsewhere: u32| {
        let mut lab = Lab::new(2, 4)
            .environment("gpu01", "a", "alice")
            .environment("gpu02", "b", "alice")
            .attach("gpu01", "a", 0, 200.0)
            .attach("gpu01", "a", 1, 100.0);
        for gpu in 0..elsewhere {
            lab = lab.attach("gpu02", "b", gpu, 50.0);
        }
        lab
    };
    let on_host = "alice: holds 2 devices | 1 by default on gpu01 | a:1";
    assert_eq!(detached(kind.clone(), &lab(1)), [on_host]);
    assert_eq!(
        detached(kind.clone(), &lab(2)),
        ["alice: holds 4 devices | 3 by default | b:1", on_host]
    );
    // Four on the other are too many in sum, and no other limit is theirs alone.
    assert_eq!(
        detached(kind, &lab(4)),
        [
            "alice: holds 6 devices | 3 by default | b:3, b:2, b:1",
            on_host
        ]
    );
}
