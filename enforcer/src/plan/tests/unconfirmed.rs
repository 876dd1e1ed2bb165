//! Attachments that nothing shows to be their user's doing: they help, and a rule takes back them alone.

use std::sync::Arc;

use super::daemon::*;
use crate::config::*;
use crate::execute::surprise::Expected;
use crate::plan::*;

fn devices(most: u64) -> RuleKind {
    max_devices_per_user(most, Scope::Host)
}

/// alice holds device 0, which she uses, and was attached to device 1 by nobody knows whom, long before that as the files
/// have it; her process uses both.
fn lab() -> Lab {
    let lab = Lab::new(1, 3).holder("e1", "alice", &[(0, 60.0)]).force_on("gpu01", "e1", 1, 7200.0);
    lab.runs(10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
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
    assert_eq!(terminated(EnvDevices, &lab()), [""; 0]);
    let mut lab = lab();
    Arc::make_mut(&mut lab.hosts[0].devices[1].attachments)[0].memory_bytes = Some(1);
    assert_eq!(terminated(EnvMemory, &lab), [""; 0]);
    // What she configured bounds what she attached.
    lab.eid("gpu01", "e1").gpu_memory_bytes = Some(1);
    let said = terminated(EnvMemory, &lab);
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("on device 0"), "{said:?}");
}

#[test]
fn an_environment_that_has_nothing_else_goes_before_her_own() {
    let environments = max_environments_per_user(1, Scope::Host);
    let mut lab = Lab::new(1, 2)
        .holder("e1", "alice", &[(0, 60.0)])
        .environment("gpu01", "forged", "alice")
        .force_on("gpu01", "forged", 1, 7200.0)
        .runs(10, "alice", Some("e1"), &[(0, GIB)]);
    lab.eid("gpu01", "forged").created_timestamp_seconds = Some(NOON - 86400.0);
    let said = terminated(environments, &lab);
    let expected = "alice: has 2 environments that hold or use a device | 1 by default | forged:1";
    assert_eq!(said, [expected]);
}

#[test]
fn an_environment_that_is_taken_apart_ends_the_processes_that_it_would_end_without() {
    let age = RuleKind::from(MaxAge { limits: limit(60), leases: false });
    // Its process uses device 1 without an attachment of hers.
    let lab = Lab::new(1, 2).environment("gpu01", "e1", "alice").runs(10, "alice", Some("e1"), &[(1, GIB)]);
    let without = terminated(age.clone(), &lab);
    let with = terminated(age, &lab.force_on("gpu01", "e1", 1, 7200.0));
    assert!(without[0].ends_with("| 10"), "{without:?}");
    assert!(with[0].ends_with("| e1:1, 10"), "{with:?}");
}

#[test]
fn what_is_taken_back_from_many_users_opens_no_breaker() {
    let mut lab = Lab::new(1, 8);
    for (number, user) in ["alice", "bob", "carol", "dave"].into_iter().enumerate() {
        lab = lab.environment("gpu01", user, user).force_on("gpu01", user, number as u32, 60.0);
    }
    let plan = Daemon::new(vec![rule(devices(0), Action::Detach)]).plan(&lab);
    assert_eq!(actions(&plan).len(), 4);
    assert!(Expected::default().hits(&plan).users().is_empty());
}

#[test]
fn what_is_taken_back_comes_after_all_else_and_its_user_has_nothing_to_do() {
    let lab = lab().runs(20, "bob", None, &[(2, GIB)]);
    let rules = vec![rule(devices(1), Action::Detach), rule(NonEnvProcesses, Action::Terminate)];
    let plan = Daemon::new(rules).plan(&lab);
    assert_eq!(actions(&plan), ["terminate 20", "detach e1:1"]);
    let remedy = plan.violations[0].remedy();
    assert!(remedy.starts_with("nothing has to be done: another user"), "{remedy}");
}

fn warned_idle() -> Daemon {
    Daemon::new(vec![idle(Action::Detach).timed(0, &[60], 600)])
}

fn own(gpu: u32, since: f64, utilization: Option<f64>) -> Lab {
    let lab = Lab::new(1, 3).holder("e1", "alice", &[(gpu, -since)]);
    let Some(utilization) = utilization else {
        return lab;
    };
    let mut lab = lab.runs(10, "alice", Some("e1"), &[(gpu, GIB)]);
    lab.utilize(10, &[Some(utilization)]);
    lab
}

fn forced(gpu: u32) -> Lab {
    Lab::new(1, 3).environment("gpu01", "e1", "alice").force_on("gpu01", "e1", gpu, 3600.0)
}

/// All steps but reports.
fn deeds(steps: &[(f64, StepKind)]) -> Vec<String> {
    lines(steps).into_iter().filter(|line| !line.ends_with("report")).collect()
}

#[test]
fn the_idle_time_of_a_forced_device_never_counts_for_its_user() {
    // It is taken back, or alice bears it out meanwhile.
    for gone in [50, 0] {
        let mut daemon = warned_idle();
        let before = daemon.run(&forced(1), 650);
        assert_eq!(deeds(&before), ["600 warn 1/1"]);
        daemon.run(&Lab::new(1, 3), gone);
        let since = if gone > 0 { 690.0 } else { -3600.0 };
        let steps = daemon.run(&own(1, since, None), 800);
        let begin = 650 + gone;
        let expected = [format!("{} warn 1/1", begin + 600), format!("{} detach e1:1", begin + 660)];
        assert_eq!(deeds(&steps), expected, "{gone}");
    }
}

#[test]
fn a_forced_device_hides_no_idle_time_of_its_user() {
    let mut daemon = warned_idle();
    let mut steps = daemon.run(&own(1, -60.0, None), 580);
    steps.extend(daemon.run(&forced(1), 20));
    steps.extend(daemon.run(&own(1, 600.0, None), 200));
    let detached = steps.iter().find(|it| matches!(it.1, StepKind::Detach(_)));
    let at = detached.map(|it| it.0);
    assert!(at.is_some_and(|at| (680.0..750.0).contains(&at)), "{at:?}");
}

#[test]
fn who_attaches_an_idle_device_again_and_works_keeps_it() {
    let taken = |loads: u64, utilization: f64| {
        let mut daemon = warned_idle();
        let taken = daemon.run(&own(1, -60.0, None), 670);
        assert_eq!(deeds(&taken), ["600 warn 1/1", "660 detach e1:1"]);
        daemon.run(&Lab::new(1, 3), 100);
        let mut steps = daemon.run(&own(1, 770.0, Some(0.0)), loads);
        steps.extend(daemon.run(&own(1, 770.0, Some(utilization)), 2000));
        steps.extend(daemon.run(&Lab::new(1, 3), 10));
        deeds(&steps)
    };
    assert_eq!(taken(0, 0.9), [""; 0]);
    assert_eq!(taken(0, 0.06), [""; 0]);
    assert_eq!(taken(40, 0.9), [""; 0]);
    // The warnings were given, and the window is not begun anew.
    assert_eq!(taken(0, 0.04), ["820 detach e1:1 (10)"]);
}

#[test]
fn what_was_forced_uses_up_no_warning_of_its_user() {
    let rule = rule(devices(1), Action::Terminate).timed(60, &[60], 600);
    let lab = |own: bool, since: f64| {
        let lab = Lab::new(1, 3).holder("e1", "alice", &[(0, 60.0)]);
        if own { lab.attach("gpu01", "e1", 1, NOON - since) } else { lab.force_on("gpu01", "e1", 1, NOON - since) }
    };
    let none = Lab::new(1, 3);
    for gone in [0, 50] {
        let mut daemon = Daemon::new(vec![rule.clone()]);
        let steps = daemon.run(&lab(false, NOON), 130);
        assert_eq!(deeds(&steps), ["60 warn 1/1", "120 detach e1:1"]);
        daemon.run(&none, gone);
        let lab_now = lab(true, daemon.now_seconds);
        let steps = daemon.run(&lab_now, 130);
        let begin = 130 + gone;
        let expected = [format!("{} warn 1/1", begin + 60), format!("{} detach e1:1", begin + 120)];
        assert_eq!(deeds(&steps), expected, "{gone}");
        // What is forced again is taken back without new warnings, and so is what the user attaches again.
        for own in [false, true] {
            daemon.run(&none, 50);
            let lab_now = lab(own, daemon.now_seconds);
            let steps = daemon.run(&lab_now, 10);
            assert_eq!(deeds(&steps).len(), 1, "{gone} {own}: {steps:?}");
        }
    }
}

#[test]
fn forced_devices_of_users_who_do_not_exist_take_no_memory_of_progress() {
    let rule = rule(devices(0), Action::Detach).timed(60, &[60], 3600);
    let rules = (0..11).map(|number| Rule { name: format!("rule{number}"), ..rule.clone() });
    let mut daemon = Daemon::new(rules.collect());
    let mut lab = Lab::new(1, 2);
    for number in 0..1000 {
        let (eid, user) = (format!("e{number}"), format!("u{number}"));
        lab = lab.environment("gpu01", &eid, &user).force_on("gpu01", &eid, 0, 60.0);
    }
    daemon.run(&lab, 10);
    let alice = |since: f64| Lab::new(1, 2).holder("alice", "alice", &[(1, -since)]);
    daemon.run(&alice(10.0), 80);
    daemon.run(&Lab::new(1, 2), 50);
    let steps = daemon.run(&alice(140.0), 100);
    let ends = steps.iter().find(|it| matches!(it.1, StepKind::Detach(_)));
    let at = ends.map(|it| it.0);
    assert!(at.is_some_and(|at| (180.0..200.0).contains(&at)), "{at:?}");
}
