use genv_core::model::{DeviceIndex, Process};

use super::*;
use crate::config::{Action, Rule};
use crate::plan::tests::daemon::*;
use crate::plan::*;

/// alice holds device 0 of three and has a process there of which tests say how busy it is.
fn lab(utilization: f64) -> Lab {
    let mut lab = Lab::new(1, 3).holder("e1", "alice", &[(0, 3600.0)]).runs(10, "alice", Some("e1"), &[(0, GIB)]);
    lab.utilize(10, &[Some(utilization)]);
    lab
}

fn first_action(daemon: &mut Daemon, lab: &Lab, seconds: u64) -> Option<f64> {
    let mut steps = daemon.run(lab, seconds).into_iter();
    steps.find(|(_, kind)| *kind != StepKind::Report).map(|(at, _)| at)
}

#[test]
fn a_device_is_idle_when_a_whole_window_was_observed_below_the_bound() {
    assert_eq!(first_action(&mut Daemon::new(vec![idle(Action::Detach)]), &lab(0.049), 2000), Some(600.0));
    assert_eq!(first_action(&mut Daemon::new(vec![idle(Action::Detach)]), &lab(0.05), 2000), None);
    let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
    daemon.run(&lab(0.0), 600);
    let plan = daemon.plan(&lab(0.0));
    assert_eq!(plan.violations[0].found(), "holds device 0, used at 0% over the last 10m");
    assert_eq!(plan.violations[0].allowed(), "at least 5% over 10m");
    assert_eq!(
        plan.violations[0].remedy(),
        "use device 0, or give it back: in environment e1 run 'genv detach --index 0'"
    );
    assert_eq!(actions(&plan), ["detach e1:0 (10)"]);
}

#[test]
fn a_device_that_is_not_measured_while_it_works_is_not_idle() {
    let unmeasured = |lab: &mut Lab| lab.utilize(10, &[None]);
    let lost = |lab: &mut Lab| lab.hosts[0].devices[0].up = false;
    let changes: [&dyn Fn(&mut Lab); 3] = [&unmeasured, &lost, &|lab: &mut Lab| lab.fail("gpu")];
    for (number, change) in changes.iter().enumerate() {
        let mut working = lab(0.0);
        change(&mut working);
        // The device rests for 2 minutes and works for 4, again and again.
        let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
        for _ in 0..12 {
            assert_eq!(first_action(&mut daemon, &lab(0.0), 120), None, "{number}");
            assert_eq!(first_action(&mut daemon, &working, 240), None, "{number}");
        }
        // An idle device is found once it is measured again.
        let found = first_action(&mut daemon, &lab(0.0), 900);
        assert!(found.is_some(), "{number}");
    }
    // The finding names the time without a measurement.
    let mut short = lab(0.0);
    unmeasured(&mut short);
    let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
    assert_eq!(first_action(&mut daemon, &lab(0.0), 300), None);
    assert_eq!(first_action(&mut daemon, &short, 10), None);
    assert_eq!(first_action(&mut daemon, &lab(0.0), 310), None);
    assert_eq!(
        daemon.plan(&lab(0.0)).violations[0].found(),
        "holds device 0, used at 0% in the 10m that were measured of the last 10m 20s"
    );
}

#[test]
fn unmeasured_is_never_idle() {
    let changes: [fn(&mut Lab); 6] = [
        |lab| lab.utilize(10, &[None]),
        |lab| lab.hosts[0].devices[0].up = false,
        |lab| {
            lab.hosts[0].processes.clear();
            lab.hosts[0].devices[0].processes_measured = false;
        },
        |lab| {
            *lab = lab.clone().runs(11, "alice", None, &[(0, GIB)]);
            lab.hide(11, "zombie");
        },
        // A part is not told.
        |lab| {
            lab.hosts[0].processes.clear();
            lab.hosts[0].devices[0].mig_parent = true;
            lab.hosts[0].devices[0].processes_measured = false;
            let mut part = lab.hosts[0].devices[1].clone();
            (part.index, part.processes_measured) = (DeviceIndex::mig(0, 0), false);
            lab.hosts[0].devices.push(part);
        },
        |lab| {
            lab.hosts[0].processes.clear();
            lab.hosts[0].devices[0].use_unexplained = true;
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut unmeasured = lab(0.0);
        change(&mut unmeasured);
        let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
        assert_eq!(first_action(&mut daemon, &unmeasured, 2000), None, "{number}");
        // One such moment stops the time, and forgets nothing.
        let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
        assert_eq!(first_action(&mut daemon, &lab(0.0), 590), None);
        assert_eq!(first_action(&mut daemon, &unmeasured, 10), None, "{number}");
        assert_eq!(first_action(&mut daemon, &lab(0.0), 2000), Some(620.0), "{number}");
        // After a time as long as the window nothing of it is left.
        let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
        assert_eq!(first_action(&mut daemon, &lab(0.0), 590), None);
        assert_eq!(first_action(&mut daemon, &unmeasured, 610), None, "{number}");
        assert_eq!(first_action(&mut daemon, &lab(0.0), 2000), Some(1800.0), "{number}");
    }
}

#[test]
fn a_split_gpu_without_processes_is_idle_if_all_its_parts_say_so() {
    let mut split = lab(0.0);
    split.hosts[0].processes.clear();
    split.hosts[0].devices[0].mig_parent = true;
    split.hosts[0].devices[0].processes_measured = false;
    for mig in 0..2 {
        let mut part = split.hosts[0].devices[1].clone();
        part.index = DeviceIndex::mig(0, mig);
        split.hosts[0].devices.push(part);
    }
    assert_eq!(first_action(&mut Daemon::new(vec![idle(Action::Detach)]), &split, 2000), Some(600.0));
}

#[test]
fn only_those_who_are_idle_lose_a_shared_device() {
    let mut shared = lab(0.9).holder("e2", "bob", &[(0, 3600.0)]).runs(20, "bob", Some("e2"), &[(0, GIB)]);
    shared.utilize(20, &[Some(0.0)]);
    assert_eq!(idle_actions(&shared), ["detach e2:0 (20)"]);
}

/// Idle for ten minutes, while fewer than two devices are free.
fn idle_while_few_are_free() -> Rule {
    rule(Idle { below: 0.05, over: seconds(600), only_if_free_devices_below: Some(2) }, Action::Detach)
}

#[test]
fn while_others_are_free_an_idle_device_may_be_kept() {
    // Two of three are free.
    let mut daemon = Daemon::new(vec![idle_while_few_are_free()]);
    daemon.run(&lab(0.0), 600);
    let plan = daemon.plan(&lab(0.0));
    assert!(plan.steps.is_empty());
    assert_eq!(plan.violations[0].stage, Stage::Held { why: "2 devices are free on its host".to_owned() });
    let busy = lab(0.0).holder("e2", "bob", &[(1, 60.0)]);
    assert_eq!(actions(&daemon.plan(&busy)), ["detach e1:0 (10)"]);
    // No CUDA program runs on a GPU in MIG mode that is not split.
    let mut unsplit = lab(0.0);
    unsplit.hosts[0].devices[1].mig_unsplit = true;
    assert_eq!(actions(&daemon.plan(&unsplit)), ["detach e1:0 (10)"]);
}

#[test]
fn a_device_that_nobody_holds_counts_as_free_while_it_does_not_answer() {
    let mut daemon = Daemon::new(vec![idle_while_few_are_free()]);
    daemon.run(&lab(0.0), 600);
    let mut silent = lab(0.0);
    for (gpu, why) in [
        (1, "2 devices are free on its host, counting 1 that does not answer"),
        (2, "2 devices are free on its host, counting 2 that do not answer"),
    ] {
        let device = &mut silent.hosts[0].devices[gpu];
        (device.up, device.processes_measured) = (false, false);
        let plan = daemon.plan(&silent);
        assert!(plan.steps.is_empty(), "{:?}", plan.steps);
        assert_eq!(plan.violations[0].stage, Stage::Held { why: why.to_owned() });
    }
    // One that is held is not free.
    let held = silent.holder("e2", "bob", &[(1, 60.0)]);
    assert_eq!(actions(&daemon.plan(&held)), ["detach e1:0 (10)"]);
}

#[test]
fn whose_an_unknown_process_is_decides_whose_use_it_hides() {
    let both: &[_] = &["detach e1:0 (10)", "detach e2:0"];
    type Change = fn(&mut Process);
    let changes: [(Change, &[&str]); 5] = [
        (|_| (), &both[..1]),
        (|it| (it.uid, it.username) = (Some(0), Some("root".to_owned())), both),
        (
            |it| {
                (it.uid, it.username) = (Some(0), Some("root".to_owned()));
                it.container_id = Some("3f4e".to_owned());
            },
            &[],
        ),
        (|it| (it.uid, it.username) = (None, None), &[]),
        // On another device it hides nothing.
        (|it| it.devices[0].index = DeviceIndex::gpu(1), both),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        // bob holds the device too.
        let mut lab = lab(0.0).holder("e2", "bob", &[(0, 3600.0)]).runs(11, "bob", None, &[(0, GIB)]);
        lab.hide(11, "environ_empty");
        change(lab.pid("gpu01", 11));
        assert_eq!(idle_actions(&lab), expected, "{number}");
    }
}

#[test]
fn a_contradictory_device_is_idle_only_if_its_measurement_is_known_to_be_stuck() {
    let contradictory = |measurement_stuck: bool| {
        let mut lab = lab(0.0);
        lab.hosts[0].processes.clear();
        let device = &mut lab.hosts[0].devices[0];
        device.measurements.utilization_ratio = Some(1.0);
        (device.processes_measured, device.use_unexplained) = (false, true);
        (device.contradictory, device.measurement_stuck) = (true, measurement_stuck);
        lab
    };
    let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
    assert_eq!(first_action(&mut daemon, &contradictory(false), 2000), None);
    // The time before counts as use, so that a whole window follows.
    assert_eq!(first_action(&mut daemon, &contradictory(true), 600), None);
    assert!(first_action(&mut daemon, &contradictory(true), 600).is_some());
}
