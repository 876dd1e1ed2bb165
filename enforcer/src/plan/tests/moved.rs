//! GPUs that change their index while the machine runs: an attachment by index then points to another GPU.

use std::sync::Arc;

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn rules() -> Vec<Rule> {
    vec![
        idle(Action::Detach),
        rule(EnvDevices, Action::Terminate),
        rule(EnvMemory, Action::Terminate),
        rule(max_devices_per_user(0, Scope::Host), Action::Detach),
    ]
}

/// alice holds device 1 of three, with 20 GiB, and has a process with 20 GiB.
fn lab(gpu: u32, utilization: f64) -> Lab {
    let mut lab = Lab::new(1, 3)
        .environment("gpu01", "e1", "alice")
        .attach_memory("gpu01", "e1", 1, 3600.0, Some(20 * GIB))
        .runs(10, "alice", Some("e1"), &[(gpu, 20 * GIB)]);
    lab.utilize(10, &[Some(utilization)]);
    lab
}

/// GPU 0 was taken out: the GPU that alice attached as 1 has index 0 now.
fn moved(gpu: u32) -> Lab {
    let mut lab = lab(gpu, 0.0);
    lab.hosts[0].devices.pop();
    for (index, device) in (1..).zip(&mut lab.hosts[0].devices) {
        device.uuid = format!("GPU-{index}");
    }
    lab
}

fn kinds(daemon: &mut Daemon, lab: &Lab, seconds: u64) -> Vec<String> {
    let steps = daemon.run(lab, seconds).into_iter();
    steps.map(|(_, kind)| format!("{kind:?}")).collect()
}

#[test]
fn nothing_is_done_about_an_environment_whose_devices_moved_also_after_a_restart() {
    let mut daemon = Daemon::new(rules()[..3].to_vec());
    assert_eq!(kinds(&mut daemon, &lab(1, 0.9), 100), [""; 0]);
    for gpu in [0, 1] {
        assert_eq!(kinds(&mut daemon, &moved(gpu), 2000), [""; 0], "{gpu}");
        let json = daemon.history.to_json().unwrap();
        daemon.history = History::parse(&json).unwrap();
    }
    // The GPU is back at its index: the time in between does not count.
    let again = daemon.run(&lab(1, 0.0), 2000);
    let begins = again.iter().map(|(at, _)| *at).next().unwrap();
    assert!(begins >= 4100.0 + 600.0, "{begins}");
}

#[test]
fn no_device_that_moved_is_taken_for_a_limit() {
    let mut daemon = Daemon::new(rules()[3..].to_vec());
    daemon.config.rules[0].for_duration = seconds(300);
    daemon.run(&lab(1, 0.9), 100);
    daemon.run(&moved(0), 2000);
    let plan = daemon.plan(&moved(0));
    assert_eq!(plan.violations.len(), 1);
    assert_eq!(actions(&plan), [""; 0]);
    // alice attaches device 1 anew.
    let mut anew = moved(0);
    Arc::make_mut(&mut anew.hosts[0].devices[1].attachments)[0].attached_timestamp_seconds = Some(NOON + 2095.0);
    assert_eq!(actions(&daemon.plan(&anew)), ["detach e1:1"]);
}

#[test]
fn a_violation_that_was_found_waits_while_the_devices_are_moved() {
    let mut daemon = Daemon::new(rules()[..2].to_vec());
    for rule in &mut daemon.config.rules {
        rule.for_duration = seconds(5000);
    }
    daemon.run(&lab(1, 0.0), 1000);
    daemon.run(&lab(2, 0.0), 10);
    assert_eq!(daemon.plan(&lab(2, 0.0)).violations.len(), 2);
    let plan = daemon.plan(&moved(0));
    assert!(plan.violations.is_empty());
    let why: Vec<&str> = plan.frozen.iter().map(|it| it.why.as_str()).collect();
    assert_eq!(why, ["the GPUs of the machine have other indices than when it attached them"; 2]);
}
