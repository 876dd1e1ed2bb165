//! Attachments that nothing shows to be their user's doing: they help, and a rule takes back them alone.

use super::daemon::*;
use super::kinds::*;
use super::lab::*;
use crate::config::*;
use crate::execute::surprise::Expected;
use crate::plan::*;

fn devices(most: u64) -> RuleKind {
    RuleKind::MaxDevicesPerUser {
        limits: limit(most),
        scope: Scope::Host,
    }
}

/// alice holds device 0, which she uses, and was attached to device 1 by nobody knows whom, long before that as the files
/// have it; her process uses both.
fn lab() -> Lab {
    Lab::new(1, 3)
        .environment("gpu01", "e1", "alice")
        .attach("gpu01", "e1", 0, 60.0)
        .force_on("gpu01", "e1", 1, 7200.0)
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
}

#[test]
fn what_was_forced_on_a_user_is_taken_first_and_ends_no_process() {
    for action in [Action::Detach, Action::Terminate, Action::Kill] {
        let said = said(devices(1), action, &lab());
        assert_eq!(said, ["alice: holds 2 devices | 1 by default | e1:1"]);
    }
    // What she attached later is her own, and as much as she may have.
    let lab = lab().attach("gpu01", "e1", 2, 10.0);
    let said = detached(devices(2), &lab);
    assert_eq!(said, ["alice: holds 3 devices | 2 by default | e1:1"]);
    let said = detached(devices(1), &lab);
    assert_eq!(said, ["alice: holds 3 devices | 1 by default | e1:1, e1:2"]);
}

#[test]
fn it_helps_and_sets_no_bound() {
    assert_eq!(terminated(RuleKind::EnvDevices, &lab()), [""; 0]);
    let mut lab = lab();
    lab.hosts[0].devices[1].attachments[0].memory_bytes = Some(1);
    assert_eq!(terminated(RuleKind::EnvMemory, &lab), [""; 0]);
    // What she configured bounds what she attached.
    lab.eid("gpu01", "e1").gpu_memory_bytes = Some(1);
    let said = terminated(RuleKind::EnvMemory, &lab);
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("on device 0"), "{said:?}");
}

#[test]
fn an_environment_that_has_nothing_else_goes_before_her_own() {
    let environments = max_environments_per_user(1, Scope::Host);
    let mut lab = Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .environment("gpu01", "forged", "alice")
        .attach("gpu01", "e1", 0, 60.0)
        .force_on("gpu01", "forged", 1, 7200.0)
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB)]);
    lab.eid("gpu01", "forged").created_timestamp_seconds = Some(NOON - 86400.0);
    let said = terminated(environments, &lab);
    let expected = "alice: has 2 environments that hold or use a device | 1 by default | forged:1";
    assert_eq!(said, [expected]);
}

#[test]
fn an_environment_that_is_taken_apart_ends_the_processes_that_it_would_end_without() {
    let age = RuleKind::MaxAge { limits: limit(60) };
    // Its process uses device 1 without an attachment of hers.
    let lab = Lab::new(1, 2).environment("gpu01", "e1", "alice").process(
        "gpu01",
        10,
        "alice",
        Some("e1"),
        &[(1, GIB)],
    );
    let without = terminated(age.clone(), &lab);
    let with = terminated(age, &lab.force_on("gpu01", "e1", 1, 7200.0));
    assert!(without[0].ends_with("| 10"), "{without:?}");
    assert!(with[0].ends_with("| e1:1, 10"), "{with:?}");
}

#[test]
fn what_is_taken_back_from_many_users_opens_no_breaker() {
    let mut lab = Lab::new(1, 8);
    for (number, user) in ["alice", "bob", "carol", "dave"].into_iter().enumerate() {
        let eid = format!("e{number}");
        lab = lab.environment("gpu01", &eid, user);
        lab = lab.force_on("gpu01", &eid, number as u32, 60.0);
    }
    let plan = Daemon::new(vec![rule(devices(0), Action::Detach)]).plan(&lab);
    let deeds = plan.steps.iter().filter(|it| it.kind != StepKind::Report);
    assert_eq!(deeds.count(), 4);
    assert!(Expected::default().hits(&plan).users().is_empty());
}
