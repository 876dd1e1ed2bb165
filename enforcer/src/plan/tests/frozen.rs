use std::sync::Arc;

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

/// alice holds devices 0 and 1 and has a process on 0 that does nothing; bob's process is outside.
fn lab() -> Lab {
    let mut lab = Lab::new(1, 3)
        .holder("e1", "alice", &[(0, 3600.0), (1, 1800.0)])
        .runs(10, "alice", Some("e1"), &[(0, 30 * GIB)])
        .runs(20, "bob", None, &[(2, GIB)]);
    lab.utilize(10, &[Some(0.0)]);
    lab
}

fn changed(change: impl FnOnce(&mut Lab)) -> Lab {
    let mut lab = lab();
    change(&mut lab);
    lab
}

const DAMAGE: &str = "devices.json: entry 1: it is \"?\", and is left out";

fn without_attachments(lab: &mut Lab) {
    lab.damage(DAMAGE);
    lab.hosts[0].devices.iter_mut().for_each(|it| it.attachments = Arc::default());
    lab.eid("gpu01", "e1").devices.clear();
}

fn without_environment(lab: &mut Lab) {
    lab.damage(DAMAGE);
    lab.hosts[0].environments.clear();
    lab.hide(10, "state_unreadable");
}

fn lost_devices(lab: &mut Lab) {
    untold_lists(lab);
    lab.hosts[0].devices.iter_mut().for_each(|it| it.up = false);
}

fn silent() -> Lab {
    Lab { silent: ["gpu01".to_owned()].into(), ..lab() }
}

/// The lab with processes that were not read, for this reason.
fn unread(pids: &[u32], reason: &str) -> Lab {
    let mut lab = lab();
    for &pid in pids {
        let process = lab.pid("gpu01", pid);
        (process.uid, process.username, process.start_time_ticks) = (None, None, None);
        lab.hide(pid, reason);
    }
    lab
}

fn untold_lists(lab: &mut Lab) {
    for device in &mut lab.hosts[0].devices {
        device.processes_measured = false;
    }
    lab.hosts[0].processes.clear();
}

fn unmeasured_use(lab: &mut Lab) {
    for pid in [10, 20] {
        for used in &mut lab.pid("gpu01", pid).devices {
            (used.utilization_ratio, used.memory_used_bytes) = (None.into(), None.into());
        }
    }
}

/// What can be unknown, the lab then, which of the rules below it freezes, and what is said of it.
type Case = (&'static str, Lab, &'static [&'static str], &'static str);

fn unknowns() -> Vec<Case> {
    let processes: &[_] = &["NonEnvProcesses", "EnvMemory", "Idle"];
    let all: &[_] = &["NonEnvProcesses", "EnvMemory", "MaxDevicesPerUser", "Idle"];
    vec![
        ("a silent host", silent(), all, "no fresh facts from gpu01"),
        ("a hung driver", changed(|lab| lab.fail("gpu")), processes, "no fresh facts from gpu01"),
        ("an unreadable state", changed(|lab| lab.fail("state")), all, "no fresh facts from gpu01"),
        ("unreadable processes", changed(|lab| lab.fail("processes")), all, "no fresh facts from gpu01"),
        ("a device left out", changed(without_attachments), &all[2..], "a record of genv's state is damaged"),
        ("an environment left out", changed(without_environment), &all[1..], "a record of genv's state is damaged"),
        ("lost devices", changed(lost_devices), processes, "the driver does not tell the processes on device"),
        ("untold lists", changed(untold_lists), processes, "the driver does not tell the processes on device"),
        ("unknown uids", unread(&[10, 20], "unreadable"), processes, "it is not known where"),
        ("unmeasured use", changed(unmeasured_use), &["EnvMemory", "Idle"], "device 0"),
    ]
}

/// After a minute, and a warning of a minute; nothing is remembered of a violation that is over.
fn rules() -> Vec<Rule> {
    let rules = [
        rule(NonEnvProcesses, Action::Terminate),
        rule(EnvMemory, Action::Terminate),
        rule(max_devices_per_user(1, Scope::Host), Action::Detach),
        idle(Action::Detach),
    ];
    rules.map(|rule| rule.timed(60, &[60], 0)).into()
}

/// alice's environment has little memory, so that it breaks the rule about it too.
fn with_little_memory(mut lab: Lab) -> Lab {
    let environments = &mut lab.hosts[0].environments;
    if let Some(environment) = environments.first_mut() {
        Arc::make_mut(environment).gpu_memory_bytes = Some(GIB);
    }
    lab
}

fn warnings(daemon: &Daemon) -> Vec<(String, usize)> {
    let all = daemon.history.violations.iter();
    all.map(|(key, known)| (key.rule.clone(), known.warnings_given)).collect()
}

#[test]
fn what_is_not_known_freezes_every_kind_of_violation_and_is_named() {
    let lab = with_little_memory(lab());
    for (what, unknown, frozen, said) in unknowns() {
        let unknown = with_little_memory(unknown);
        let mut daemon = Daemon::new(rules());
        // All are warned of, and none has come to its end.
        daemon.config.rules[..3].iter_mut().for_each(|rule| rule.for_duration = seconds(660));
        daemon.run(&lab, 680);
        let known = warnings(&daemon);
        assert_eq!(known.len(), 5, "{what}: {known:?}");
        for begin in [0, 200] {
            let steps = daemon.run(&unknown, 200);
            let is_deed = |step: &StepKind| !matches!(step, StepKind::Report | StepKind::Warn { .. });
            let deeds: Vec<_> = steps.iter().filter(|(_, step)| is_deed(step)).collect();
            let plan = daemon.plan(&unknown);
            for name in frozen {
                let of_rule: Vec<&Frozen> = plan.frozen.iter().filter(|it| it.key.rule == *name).collect();
                assert!(!of_rule.is_empty(), "{what}: {name}: {:?}", plan.frozen);
                for it in of_rule {
                    assert!(it.why.contains(said) || it.why.contains("not known"), "{what}: {}", it.why);
                    assert_eq!(it.unknown_since_seconds, NOON + 680.0, "{what} {begin}");
                }
            }
            if frozen.len() == 4 {
                assert!(deeds.is_empty(), "{what}: {deeds:?}");
            }
        }
        // The facts are known again: each violation goes on from its last position, idleness once it is measured for
        // long enough.
        let mut plan = daemon.cycle(&lab);
        let is_idleness = |it: &Frozen| it.key.rule == "Idle" && it.why.ends_with("for 10m");
        plan.frozen.retain(|it| !is_idleness(it));
        assert_eq!(plan.frozen, [], "{what}");
        for (rule, given) in known.into_iter().filter(|(rule, _)| frozen.contains(&&**rule)) {
            let now = warnings(&daemon);
            assert!(now.contains(&(rule.clone(), given)), "{what}: {rule}: {now:?}");
        }
    }
}

#[test]
fn a_silent_host_stops_the_window_of_idle_and_a_longer_silence_than_the_window_keeps_the_violation() {
    let idle = || Daemon::new(rules().split_off(3));
    // 590 of 600 s were seen; the first look after the silence adds none.
    let mut daemon = idle();
    daemon.run(&lab(), 600);
    assert_eq!(daemon.run(&silent(), 400), []);
    assert_eq!(daemon.plan(&lab()).violations.len(), 0);
    daemon.run(&lab(), 20);
    assert_eq!(daemon.plan(&lab()).violations.len(), 2);
    // A violation waits until the window is whole again, and is over if the device was used in it.
    for (is_used, given) in [(false, 1), (true, 0)] {
        let mut daemon = idle();
        daemon.run(&lab(), 680);
        daemon.run(&silent(), 3600);
        let after = changed(|lab| lab.utilize(10, &[Some(if is_used { 0.5 } else { 0.0 })]));
        daemon.run(&after, 300);
        let plan = daemon.plan(&after);
        assert_eq!((plan.violations.len(), plan.frozen.len()), (0, 2));
        let why = "the use of device 0 was not measured for a time, and is not yet for 10m";
        assert_eq!(plan.frozen[0].why, why);
        daemon.run(&after, 310);
        let plan = daemon.plan(&after);
        assert_eq!(plan.frozen, []);
        assert_eq!(plan.violations.len(), 1 + given);
    }
}

#[test]
fn a_process_that_was_told_to_end_keeps_its_grace_while_it_cannot_be_seen() {
    for (what, unknown, ..) in unknowns() {
        let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Kill)]);
        let steps = daemon.run(&lab(), 50);
        assert_eq!(short(&steps[1].1), "terminate 20", "{what}");
        daemon.run(&unknown, 300);
        let steps = daemon.run(&lab(), 200);
        let steps: Vec<String> = steps.iter().map(|(_, step)| short(step)).collect();
        assert!(!steps.contains(&"terminate 20".to_owned()), "{what}: {steps:?}");
        if !matches!(what, "a device left out" | "an environment left out" | "unmeasured use") {
            assert_eq!(steps, ["kill 20"], "{what}");
        }
    }
}

#[test]
fn what_is_known_of_a_context_stays_while_its_process_cannot_be_told() {
    let mut lab = lab().runs(11, "alice", Some("e1"), &[(0, GIB), (1, GIB)]);
    lab.utilize(11, &[Some(0.9), Some(0.0)]);
    let mut untold = lab.clone();
    untold.pid("gpu01", 11).start_time_ticks = None;
    let mut daemon = Daemon::new(vec![rule(EnvDevices, Action::Terminate)]);
    daemon.run(&lab, 50);
    daemon.run(&untold, 20);
    let plan = daemon.plan(&lab.detached(&attachment("alice", "e1", 1, Vec::new())));
    assert_eq!(plan.violations, []);
    assert_eq!(plan.left_behind.len(), 1);
}

#[test]
fn a_device_that_is_hidden_now_and_then_is_found_all_the_same() {
    let kind = RuleKind::from(UnknownProcesses { over: seconds(300) });
    let rule = rule(kind, Action::Warn).timed(0, &[], 60);
    // Two environments hold the device.
    let mut hidden = lab().holder("e2", "alice", &[(0, 60.0)]);
    hidden.hide(10, "environ_empty");
    let device = |plan: &Plan| {
        let subjects = plan.violations.iter().map(|it| &it.key.subject);
        subjects.filter(|it| matches!(it, Subject::UserDevice { .. })).count()
    };
    for (gap, found) in [(50, 1), (120, 0)] {
        let mut daemon = Daemon::new(vec![rule.clone()]);
        for _ in 0..3 {
            daemon.run(&hidden, 150);
            daemon.run(&lab(), gap);
        }
        assert_eq!(device(&daemon.plan(&hidden)), found, "{gap}");
    }
}

#[test]
fn a_listed_process_that_has_ended_freezes_for_ten_seconds_and_hides_nothing() {
    let mut daemon = Daemon::new(rules());
    daemon.run(&lab(), 30);
    let of_outsider = |plan: &Plan| {
        let mut frozen = plan.frozen.iter();
        frozen.any(|it| it.key.rule == "NonEnvProcesses")
    };
    let listed = unread(&[20], "vanished");
    let plan = daemon.cycle(&listed);
    assert!(of_outsider(&plan), "{:?}", plan.frozen);
    assert_eq!(plan.unknown_processes["gpu01"], 1);
    daemon.now_seconds += 10.0;
    let plan = daemon.cycle(&listed);
    assert!(!of_outsider(&plan), "{:?}", plan.frozen);
    assert_eq!(plan.unknown_processes.get("gpu01"), None);
    // The ended process did not hide the idle device 0.
    let steps = daemon.run(&listed, 900);
    let detached = |(_, step): &(f64, StepKind)| short(step).starts_with("detach e1:0");
    assert!(steps.iter().any(detached), "{steps:?}");
}

#[test]
fn where_no_listed_process_is_found_nothing_is_concluded_from_that() {
    let mut one_not_read = unread(&[10, 20], "vanished");
    one_not_read.hide(20, "not_read");
    for listed in [unread(&[10, 20], "vanished"), one_not_read] {
        let mut daemon = Daemon::new(rules());
        daemon.run(&lab(), 30);
        daemon.run(&listed, 300);
        let plan = daemon.plan(&listed);
        assert_eq!(plan.unknown_processes["gpu01"], 2);
        assert!(!plan.frozen.is_empty());
    }
}

#[test]
fn a_signalled_process_that_is_not_there_any_more_has_ended() {
    let rule = rule(NonEnvProcesses, Action::Terminate);
    let mut daemon = Daemon::new(vec![rule]);
    let steps = daemon.run(&lab(), 10);
    assert!(steps.iter().any(|(_, step)| short(step) == "terminate 20"));
    let all_vanished = unread(&[10, 20], "vanished");
    let plan = daemon.cycle(&all_vanished);
    assert_eq!(plan.frozen, []);
    // The driver goes on listing the process.
    daemon.run(&all_vanished, 60);
    let plan = daemon.plan(&all_vanished);
    assert_eq!(plan.unknown_processes_by_user["gpu01"].len(), 1);
    assert_eq!(plan.unknown_processes["gpu01"], 1, "the other one");
}
