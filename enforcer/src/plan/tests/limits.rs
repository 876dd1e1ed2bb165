//! What each kind finds that has a limit of its own.

use super::daemon::*;
use super::kinds::*;
use super::lab::*;
use crate::config::*;

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
    assert_eq!(detached(kind(Scope::Host, limit(2)), &lab), ["alice: holds 3 devices | 2 by default | b:2 (10)"]);
    assert_eq!(
        detached(kind(Scope::Host, limit(1)), &lab),
        ["alice: holds 3 devices | 1 by default | b:2 (10), a:1, b:1"]
    );
    assert_eq!(detached(kind(Scope::AllHosts, limit(3)), &lab), ["alice: holds 4 devices | 3 by default | c:0"]);
    let mut limits = limit(1);
    limits.base.groups.insert("students".into(), 2);
    assert_eq!(
        detached(kind(Scope::Host, limits.clone()), &lab),
        ["alice: holds 3 devices | 2 for members of students | b:2 (10)"]
    );
    limits.base.groups.insert("staff".into(), 8);
    assert!(detached(kind(Scope::Host, limits.clone()), &lab).is_empty());
    limits.base.users.insert("alice".into(), 2);
    assert_eq!(detached(kind(Scope::Host, limits.clone()), &lab), ["alice: holds 3 devices | 2 for alice | b:2 (10)"]);
    limits.base.users.clear();
    let own = Limit { default: Some(0), groups: [("staff".to_owned(), 2)].into(), users: [].into() };
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
    let own = Limit { default: Some(1), groups: [].into(), users: [].into() };
    limits.overrides.push((HostSet(names(&["gpu01"])), own));
    let kind = RuleKind::MaxDevicesPerUser { limits, scope: Scope::Host };
    let mut lab = Lab::new(1, 4);
    for user in ["alice", "bob"] {
        lab = lab.environment("gpu01", user, user);
        for gpu in 0..4 {
            lab = lab.attach("gpu01", user, gpu, 100.0 - f64::from(gpu));
        }
    }
    assert_eq!(detached(kind, &lab), ["bob: holds 4 devices | 1 by default on gpu01 | bob:3, bob:2, bob:1"]);
}

#[test]
fn more_environments_of_a_user_that_hold_or_use_a_device() {
    let kind = |number| RuleKind::MaxEnvironmentsPerUser { limits: limit(number), scope: Scope::Host };
    let mut lab = Lab::new(1, 4);
    for (eid, age) in [("a", 100.0), ("b", 50.0), ("c", 200.0), ("d", 10.0)] {
        lab = lab.environment("gpu01", eid, "alice");
        lab.eid("gpu01", eid).created_timestamp_seconds = Some(NOON - age);
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
        ["alice: has 3 environments that hold or use a device | 2 by default | b:1 (10), b:2 (10), 11"]
    );
    let plan = Daemon::new(vec![rule(kind(2), Action::Detach)]).plan(&lab);
    assert_eq!(actions(&plan), ["detach b:1 (10)", "detach b:2", "terminate 11"]);
    // Where processes may stay, an environment whose processes use a device cannot be ended: a, without any, is.
    let keep = Rule { processes: DetachedProcesses::Keep, ..rule(kind(2), Action::Detach) };
    assert_eq!(said_by(keep, &lab), ["alice: has 3 environments that hold or use a device | 2 by default | a:0"]);
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
    assert_eq!(detached(kind, &lab), ["alice: holds devices on 2 hosts | 1 by default | b:0, b:1"]);
}

#[test]
fn more_processes_of_an_environment_that_use_a_device() {
    let kind = RuleKind::MaxProcessesPerEnvironment { limits: limit(2) };
    let lab = Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
        .process("gpu01", 11, "alice", Some("e1"), &[(0, GIB)])
        .process("gpu01", 12, "alice", Some("e1"), &[(1, GIB)]);
    assert_eq!(terminated(kind, &lab), ["alice: environment e1 has 3 processes on devices | 2 by default | 12"]);
}

#[test]
fn more_memory_of_a_user() {
    let kind = |gib: u64, per, scope| RuleKind::MaxMemoryPerUser { limits: limit(gib * GIB), per, scope };
    let lab = Lab::new(2, 2)
        .environment("gpu01", "e1", "alice")
        .process("gpu01", 10, "alice", Some("e1"), &[(0, 50 * GIB), (1, 10 * GIB)])
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
    let kind = RuleKind::MaxAge { limits: limit(1800), leases: false };
    let mut lab = Lab::new(1, 2)
        .environment("gpu01", "new", "alice")
        .environment("gpu01", "old", "alice")
        .environment("gpu01", "unused", "alice")
        .attach("gpu01", "new", 0, 10.0)
        .attach("gpu01", "old", 0, 10.0)
        .attach("gpu01", "old", 1, 20.0)
        .process("gpu01", 10, "alice", Some("old"), &[(0, GIB)]);
    lab.eid("gpu01", "new").created_timestamp_seconds = Some(NOON - 1800.0);
    assert_eq!(
        detached(kind, &lab),
        ["alice: environment old is 1h old and has devices | 30m by default | old:0 (10), old:1"]
    );
}

#[test]
fn environments_of_which_the_lease_has_ended() {
    let kind = |limits| RuleKind::MaxAge { limits, leases: true };
    let mut lab = Lab::new(1, 5);
    for (gpu, eid) in (0..).zip(["ended", "goes-on", "none", "too-long", "unused"]) {
        lab = lab.environment("gpu01", eid, "alice");
        if eid != "unused" {
            lab = lab.attach("gpu01", eid, gpu, 10.0);
        }
    }
    let mut lease = |eid: &str, created: f64, end: f64| {
        let environment = lab.eid("gpu01", eid);
        environment.created_timestamp_seconds = Some(NOON + created);
        environment.lease_end_timestamp_seconds = Some(NOON + end);
    };
    lease("ended", -600.0, -300.0);
    lease("goes-on", -600.0, 0.0);
    lease("too-long", -3600.0, 7200.0);
    lease("unused", -600.0, -300.0);
    let ended = "alice: the lease of environment ended ended 5m ago, and it has devices | devices until the end of the lease | ended:0";
    assert_eq!(detached(kind(Limits::none()), &lab), [ended]);
    assert_eq!(
        detached(kind(limit(1800)), &lab),
        [
            ended,
            "alice: environment none is 1h old and has devices | 30m by default | none:2",
            "alice: environment too-long is 1h old and has devices; its lease is longer than the limit | 30m by default | too-long:3",
        ]
    );
    let without = RuleKind::MaxAge { limits: limit(7200), leases: false };
    assert_eq!(detached(without, &lab), [""; 0]);
}

#[test]
fn what_is_on_a_host_with_its_own_limit_is_held_against_it_besides_the_sum() {
    let mut limits = limit(3);
    let own = Limit { default: Some(1), groups: [].into(), users: [].into() };
    limits.overrides.push((HostSet(names(&["gpu01"])), own));
    let kind = RuleKind::MaxDevicesPerUser { limits, scope: Scope::AllHosts };
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
    assert_eq!(detached(kind.clone(), &lab(2)), ["alice: holds 4 devices | 3 by default | b:1", on_host]);
    // Four on the other are too many in sum, and no other limit is theirs alone.
    assert_eq!(detached(kind, &lab(4)), ["alice: holds 6 devices | 3 by default | b:3, b:2, b:1", on_host]);
}
