use std::sync::Arc;

use genv_core::model::DeviceIndex;

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

/// alice holds devices 0 and 1: 10 works on 0 and has a context on 1, where 11 is idle too.
fn lab() -> Lab {
    let mut lab = Lab::new(1, 3)
        .holder("e1", "alice", &[(0, 3600.0), (1, 3600.0)])
        .runs(10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
        .runs(11, "alice", Some("e1"), &[(1, GIB)]);
    lab.utilize(10, &[Some(0.98), Some(0.0)]);
    lab.utilize(11, &[Some(0.0)]);
    lab
}

/// The lab once device 1 is detached from e1, without the processes that were ended with it.
fn detached(lab: &Lab, plan: &Plan) -> Lab {
    let detach = plan.steps.iter().find_map(|step| match &step.kind {
        StepKind::Detach(target) => Some(Target::Attachment(target.clone())),
        _ => None,
    });
    lab.clone().without(&[detach.unwrap()])
}

#[test]
fn who_works_on_another_device_is_spared_whatever_the_action_and_the_others_end() {
    let (rule, lab) = at_once();
    for (processes, action, expected) in [
        (DetachedProcesses::Terminate, Action::Detach, "detach e1:1 (11)"),
        (DetachedProcesses::Terminate, Action::Terminate, "detach e1:1 (11)"),
        (DetachedProcesses::Terminate, Action::Kill, "terminate 11"),
        (DetachedProcesses::Keep, Action::Detach, "detach e1:1"),
        // Of a rule that ends processes there is nothing to keep.
        (DetachedProcesses::Keep, Action::Terminate, "detach e1:1 (11)"),
    ] {
        for mut rule in [rule.clone(), idle(action)] {
            (rule.processes, rule.action) = (processes, action);
            let mut daemon = Daemon::new(vec![rule]);
            let steps = daemon.run(&lab, 610);
            let deeds = steps.iter().map(|(_, step)| short(step));
            let deeds: Vec<String> = deeds.filter(|it| it != "report").collect();
            assert_eq!(deeds[0], expected, "{processes:?} {action:?}");
            assert!(!deeds.iter().any(|deed| deed.contains("10")), "{deeds:?}");
        }
    }
}

#[test]
fn what_is_not_measured_on_another_device_is_work() {
    let mut unmeasured = lab();
    unmeasured.utilize(10, &[None, Some(0.0)]);
    assert_eq!(idle_actions(&unmeasured), ["detach e1:1 (11)"]);
}

#[test]
fn while_a_held_device_does_not_answer_nobody_is_ended_for_another_device() {
    // Device 0 lists nothing, where 10 works; 11 may be there by now.
    let held_off = |lab: &Lab| {
        let mut lab = lab.clone();
        let device = &mut lab.hosts[0].devices[0];
        (device.up, device.processes_measured) = (false, false);
        lab.pid("gpu01", 10).devices.remove(0);
        lab
    };
    for action in [Action::Detach, Action::Terminate, Action::Kill] {
        let mut daemon = Daemon::new(vec![idle(action)]);
        daemon.run(&lab(), 600);
        assert_eq!(actions(&daemon.plan(&held_off(&lab()))), ["detach e1:1"]);
    }
    // A device that the environment does not hold may hide no work.
    let mut elsewhere = lab();
    let device = &mut elsewhere.hosts[0].devices[2];
    (device.up, device.processes_measured) = (false, false);
    assert_eq!(idle_actions(&elsewhere), ["detach e1:1 (11)"]);
    // Their contexts are left behind meanwhile.
    let left = lab().detached(&attachment("alice", "e1", 1, Vec::new()));
    let mut daemon = Daemon::new(vec![rule(EnvDevices, Action::Terminate).timed(60, &[], 0)]);
    daemon.run(&lab(), 50);
    assert_eq!(daemon.run(&held_off(&left), 3600), []);
    // The device answers again: 10, which rests in the first samples, goes on; 11 is not there.
    let mut resting = left;
    resting.utilize(10, &[Some(0.0), Some(0.0)]);
    let steps = daemon.run(&resting, 100);
    let deeds = steps.iter().map(|(_, step)| short(step));
    let deeds: Vec<String> = deeds.filter(|deed| deed != "report").collect();
    assert_eq!(deeds, ["terminate 11"]);
}

#[test]
fn who_works_where_the_environment_holds_nothing_or_loses_all_is_not_spared() {
    // It works on device 2, which its environment does not hold.
    let mut elsewhere = lab().runs(12, "alice", Some("e1"), &[(1, GIB), (2, GIB)]);
    elsewhere.utilize(12, &[Some(0.0), Some(0.9)]);
    assert_eq!(idle_actions(&elsewhere), ["detach e1:1 (11 12)"]);
    // Both devices go at once, by one violation or by two rules.
    let none = || rule(max_devices_per_user(0, Scope::Host), Action::Detach);
    let none_for = |device: u32| {
        let selector = Selector { devices: Some([device].into()), ..Selector::default() };
        Rule { name: format!("none-{device}"), selector, ..none() }
    };
    let plan = Daemon::new(vec![none()]).plan(&lab());
    assert_eq!(actions(&plan), ["detach e1:1 (10 11)", "detach e1:0"]);
    let plan = Daemon::new(vec![none_for(1), none_for(0)]).plan(&lab());
    assert_eq!(actions(&plan), ["detach e1:1 (11)", "detach e1:0 (10)"]);
}

#[test]
fn between_two_samples_a_training_still_works_and_after_its_time_it_does_not() {
    let (rule, lab) = at_once();
    let rule = rule.timed(60, &[], 0);
    let mut pausing = lab.clone();
    pausing.utilize(10, &[Some(0.0), Some(0.0)]);
    let mut daemon = Daemon::new(vec![rule.clone()]);
    daemon.run(&lab, 50);
    daemon.run(&pausing, 10);
    assert_eq!(actions(&daemon.plan(&pausing)), ["detach e1:1 (11)"]);
    let mut daemon = Daemon::new(vec![rule]);
    daemon.run(&pausing, 60);
    assert_eq!(actions(&daemon.plan(&pausing)), ["detach e1:1 (10 11)"]);
}

#[test]
fn what_others_left_of_a_device_makes_nobody_busy_there_after_a_detach() {
    // 10 is at 1 % of device 1, and bob leaves no more.
    let mut crowded = lab().runs(20, "bob", None, &[(1, GIB)]);
    crowded.utilize(10, &[Some(0.98), Some(0.01)]);
    crowded.utilize(20, &[Some(0.99)]);
    let elsewhere = rule(EnvDevices, Action::Terminate).timed(60, &[], 0);
    let mut daemon = Daemon::new(vec![elsewhere]);
    daemon.run(&crowded, 600);
    crowded.hosts[0].processes.retain(|process| process.pid != 11);
    let left = crowded.detached(&attachment("alice", "e1", 1, Vec::new()));
    let plan = daemon.plan(&left);
    assert_eq!(plan.violations, []);
    assert_eq!(plan.left_behind.len(), 1);
}

#[test]
fn what_a_detach_left_behind_breaks_no_rule_while_its_process_works() {
    let elsewhere = rule(EnvDevices, Action::Terminate).timed(60, &[], 0);
    let outside = rule(NonEnvProcesses, Action::Terminate);
    let mut daemon = Daemon::new(vec![idle(Action::Detach), elsewhere, outside]);
    daemon.run(&lab(), 600);
    let plan = daemon.cycle(&lab());
    daemon.now_seconds += 10.0;
    let mut left = detached(&lab(), &plan);
    assert_eq!(daemon.run(&left, 3600), []);
    let plan = daemon.plan(&left);
    assert_eq!(plan.violations, []);
    let [context] = &plan.left_behind[..] else {
        panic!("{:?}", plan.left_behind);
    };
    assert_eq!((context.pid, context.gpu, context.works_on), (10, 1, 0));
    let hosts = left.at(daemon.now_seconds);
    let input = daemon.input(&hosts, &left);
    let explanation = explain(&input, &daemon.history, "gpu01", 10).unwrap();
    assert_eq!(explanation.left_behind, [1]);
    // Once it works no more, it is on a device that its environment does not hold.
    left.utilize(10, &[Some(0.0), Some(0.0)]);
    let steps = daemon.run(&left, 300);
    assert_eq!(short(&steps.last().unwrap().1), "terminate 10");
}

#[test]
fn a_context_that_was_never_held_or_computes_or_whose_owner_detached_it_himself_is_told_apart() {
    let elsewhere = || Daemon::new(vec![rule(EnvDevices, Action::Report)]);
    let mut left = lab().without(&[]);
    left.hosts[0].processes.retain(|process| process.pid == 10);
    let held = left.clone();
    Arc::make_mut(&mut left.hosts[0].devices[1].attachments).clear();
    left.eid("gpu01", "e1").devices.remove(1);
    // Nobody saw it attached.
    let mut daemon = elsewhere();
    daemon.run(&left, 100);
    assert_eq!(daemon.plan(&left).violations.len(), 1);
    // alice detached it.
    let mut daemon = elsewhere();
    daemon.run(&held, 10);
    daemon.run(&left, 100);
    assert_eq!(daemon.plan(&left).violations, []);
    // Nobody can tell whether it computes there.
    let mut unmeasured = left.clone();
    unmeasured.utilize(10, &[Some(0.9), None]);
    assert_eq!(daemon.plan(&unmeasured).violations, []);
    // It computes there.
    let mut computes = left.clone();
    computes.utilize(10, &[Some(0.9), Some(0.9)]);
    assert_eq!(daemon.plan(&computes).violations.len(), 1);
    // A moment in which the driver does not tell forgets nothing.
    let mut silent = left.clone();
    silent.hosts[0].devices[1].processes_measured = false;
    silent.pid("gpu01", 10).devices.remove(1);
    daemon.run(&silent, 10);
    assert_eq!(daemon.plan(&left).violations, []);
    // A context that was opened after the last one was closed was not left behind.
    let mut closed = left.clone();
    closed.pid("gpu01", 10).devices.remove(1);
    daemon.run(&closed, 10);
    assert_eq!(daemon.plan(&left).violations.len(), 1);
    // Nor is another process by the same pid.
    let mut daemon = elsewhere();
    daemon.run(&held, 10);
    let mut other = left.clone();
    other.pid("gpu01", 10).start_time_ticks = Some(77);
    assert_eq!(daemon.plan(&other).violations.len(), 1);
}

#[test]
fn an_environment_that_lost_all_that_a_rule_looks_at_keeps_it_also_if_a_context_is_left() {
    let mut too_old = rule(MaxAge { limits: limit(1800), leases: false }, Action::Detach);
    too_old.selector.devices = Some([1].into());
    let mut daemon = Daemon::new(vec![too_old]);
    let plan = daemon.cycle(&lab());
    assert_eq!(actions(&plan), ["detach e1:1 (11)"]);
    daemon.now_seconds += 10.0;
    assert_eq!(daemon.plan(&detached(&lab(), &plan)).violations, []);
    // Who computes on the device too would use it on, so that taking it would end nothing.
    let mut busy = lab();
    busy.utilize(10, &[Some(0.9), Some(0.9)]);
    daemon.history = History::default();
    let plan = daemon.plan(&busy);
    assert_eq!(actions(&plan), [""; 0]);
    assert!(matches!(plan.violations[0].stage, Stage::Held { .. }));
}

/// Takes what is more than one device at once: alice's newest, which is device 1.
fn at_once() -> (Rule, Lab) {
    let mut lab = lab();
    Arc::make_mut(&mut lab.hosts[0].devices[1].attachments)[0].attached_timestamp_seconds = Some(NOON - 60.0);
    (rule(max_devices_per_user(1, Scope::Host), Action::Detach), lab)
}

#[test]
fn a_device_is_taken_without_its_processes_by_a_rule_that_keeps_them_beside_one_that_ends_them() {
    let lab = Lab::new(1, 1).holder("e1", "alice", &[(0, 60.0)]).runs(10, "alice", Some("e1"), &[(0, GIB)]);
    let none = |name: &str, processes| {
        let rule = rule(max_devices_per_user(0, Scope::Host), Action::Detach);
        Rule { name: name.to_owned(), processes, ..rule }
    };
    let keeps = none("keeps", DetachedProcesses::Keep);
    let ends = none("ends", DetachedProcesses::Terminate);
    for rules in [vec![keeps.clone(), ends.clone()], vec![ends, keeps]] {
        let plan = Daemon::new(rules).plan(&lab);
        let targets = plan.violations.iter().flat_map(|violation| &violation.targets);
        let pids = targets.map(|target| target.processes().iter().map(|it| it.pid).collect::<Vec<u32>>());
        let rules = plan.violations.iter().map(|violation| violation.key.rule.as_str());
        let mut ended: Vec<(&str, Vec<u32>)> = rules.zip(pids).collect();
        ended.sort();
        assert_eq!(ended, [("ends", vec![10]), ("keeps", Vec::new())]);
    }
}

#[test]
fn work_on_a_device_that_another_environment_of_the_user_holds_spares_nothing() {
    let (mut rule, lab) = at_once();
    // Process 12 of e1 works on device 2, which alice holds for e2.
    let mut lab = lab.holder("e2", "alice", &[(2, 1800.0)]).runs(12, "alice", Some("e1"), &[(1, GIB), (2, GIB)]);
    lab.utilize(12, &[Some(0.0), Some(0.9)]);
    rule.selector.devices = Some([0, 1].into());
    let plan = Daemon::new(vec![rule]).plan(&lab);
    assert_eq!(actions(&plan), ["detach e1:1 (11 12)"]);
}

#[test]
fn a_process_that_computes_on_a_mig_device_is_spared_and_a_split_gpu_is_never_idle() {
    let mut lab = lab();
    let device = &mut lab.hosts[0].devices[0];
    (device.mig_parent, device.processes_measured) = (true, false);
    let mut part = device.clone();
    (part.index, part.mig_parent, part.processes_measured) = (DeviceIndex::mig(0, 0), false, true);
    Arc::make_mut(&mut part.attachments).clear();
    lab.hosts[0].devices.push(part);
    let used = &mut lab.pid("gpu01", 10).devices[0];
    // The driver tells no use of a part.
    (used.index, used.utilization_ratio) = (DeviceIndex::mig(0, 0), None.into());
    assert_eq!(idle_actions(&lab), ["detach e1:1 (11)"]);
}
