//! What breaks each kind of rule, what is said about it, and what would be taken.

use std::collections::BTreeMap;

use genv_core::model::Attribution;

use super::daemon::*;
use super::lab::*;
use crate::config::*;
use crate::plan::*;

/// What a rule that acts at once says and does in a lab: `found | allowed | targets` of each violation.
pub(super) fn said(kind: RuleKind, action: Action, lab: &Lab) -> Vec<String> {
    said_by(rule(kind, action), lab)
}

pub(super) fn said_by(rule: Rule, lab: &Lab) -> Vec<String> {
    let plan = Daemon::new(vec![rule]).plan(lab);
    let line = |violation: &Violation| {
        let targets = targets(violation).join(", ");
        format!("{}: {} | {} | {targets}", violation.username, violation.found, violation.allowed)
    };
    plan.violations.iter().map(line).collect()
}

pub(super) fn terminated(kind: RuleKind, lab: &Lab) -> Vec<String> {
    said(kind, Action::Terminate, lab)
}

pub(super) fn detached(kind: RuleKind, lab: &Lab) -> Vec<String> {
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
        ["bob: process 11 (python) uses devices 0 and 1 outside any environment | processes in an environment | 11"]
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
        ["alice: process 11 (python) uses device 2, which its environment is not attached to | device 0 | 11"]
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
            .process("gpu01", 11, "alice", Some("e1"), &[(0, 5 * GIB), (1, 70 * GIB)])
            .process("gpu01", 12, "alice", Some("e1"), &[(0, 2 * GIB)])
    };
    let targets = |reserved| terminated(RuleKind::EnvMemory, &lab(reserved));
    assert!(targets(10).is_empty());
    for (reserved, expected) in [(9, "12"), (8, "12"), (7, "11"), (5, "11"), (4, "12, 11"), (1, "12, 11, 10")] {
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
        lab.eid("gpu01", "e1").gpu_memory_bytes = configured.map(|gib| gib * GIB);
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
    let kind = || max_environments_per_user(1, Scope::Host);
    let mut lab = Lab::new(1, 2)
        .environment("gpu01", "a", "alice")
        .environment("gpu01", "b", "alice")
        .attach("gpu01", "a", 0, 60.0)
        .attach("gpu01", "b", 1, 30.0)
        .process("gpu01", 10, "alice", Some("b"), &[(1, GIB)])
        .process("gpu01", 11, "alice", Some("b"), &[(1, GIB)]);
    lab.eid("gpu01", "a").created_timestamp_seconds = Some(NOON - 7200.0);
    let says = |targets| [format!("alice: has 2 environments that hold or use a device | 1 by default | {targets}")];
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
        .process("gpu01", 10, "alice", Some("e1"), &[(0, 6 * GIB), (1, 3 * GIB)])
        .process("gpu01", 11, "alice", Some("e1"), &[(1, 2 * GIB)]);
    let plan = Daemon::new(vec![rule(RuleKind::EnvMemory, Action::Terminate)]).plan(&lab);
    assert_eq!(plan.violations.len(), 2);
    assert_eq!(actions(&plan), ["terminate 10"]);
}

#[test]
fn unknown_processes_are_found_by_user_and_so_are_devices_that_they_hide_for_long() {
    let unknown = |lab: Lab, pid: u32, username: &str, gpu: u32| {
        let mut lab = lab.process("gpu01", pid, username, None, &[(gpu, GIB)]);
        lab.pid("gpu01", pid).attribution = Attribution::Unknown { reason: "environ_empty".to_owned() };
        lab
    };
    let kind = RuleKind::UnknownProcesses { over: seconds(600) };
    let lab = Lab::new(1, 2).environment("gpu01", "e1", "alice").attach("gpu01", "e1", 0, 3600.0).process(
        "gpu01",
        9,
        "alice",
        Some("e1"),
        &[(0, GIB)],
    );
    let mut hidden = unknown(unknown(lab.clone(), 10, "alice", 0), 11, "bob", 0);
    hidden = unknown(unknown(hidden, 12, "bob", 1), 13, "root", 1);
    let mut daemon = Daemon::new(vec![rule(kind, Action::Warn)]);
    let found = |plan: &Plan| -> Vec<String> {
        let found = plan.violations.iter();
        found.map(|it| format!("{}: {}", it.username, it.found)).collect()
    };
    let by_user = [
        "alice: has 1 process on device 0 of which it is not known where it belongs (pid 10)",
        "bob: has 2 processes on devices 0 and 1 of which it is not known where they belong (pid 11, 12)",
    ];
    let plan = daemon.cycle(&hidden);
    assert_eq!(found(&plan), by_user);
    assert_eq!(actions(&plan), ["warn 1/1", "warn 1/1"]);
    let counted = [("alice", 1), ("bob", 2), ("root", 1)];
    let counted = counted.map(|(name, count)| (name.to_owned(), count));
    assert_eq!(plan.unknown_processes_by_user["gpu01"], BTreeMap::from(counted));
    daemon.run(&hidden, 600);
    // bob hides nothing of alice's, and holds nothing himself.
    let for_long = "alice: holds device 0, and processes there of which it is not known where they belong hide for 10m whether it \
                    is idle";
    assert_eq!(found(&daemon.plan(&hidden))[1..], [by_user[1], for_long]);
    let hosts = hidden.at(daemon.now_seconds);
    let explanation = explain(&daemon.input(&hosts, &hidden), &daemon.history, "gpu01", 10);
    assert_eq!(explanation.unwrap().rules[0].violations.len(), 2);
    // A moment without the process, and the time begins anew; attaching anew changes nothing.
    let mut anew = hidden.clone();
    anew.hosts[0].devices[0].attachments[0].attached_timestamp_seconds = Some(daemon.now_seconds);
    assert_eq!(daemon.plan(&anew).violations.len(), 3);
    daemon.run(&lab, 10);
    daemon.run(&hidden, 10);
    assert_eq!(found(&daemon.plan(&hidden)), by_user);
}
