//! Entries in the driver's lists of processes that show no use of a device: 0 bytes of memory and no utilization.

use super::daemon::*;
use crate::config::*;

/// alice holds device 0 of two. Her process 10 is on device 0. Device 1 lists process 10 too, and bob's process 11,
/// which is in no environment.
fn lab(memory_bytes: Option<u64>, utilization_ratio: Option<f64>) -> Lab {
    let mut lab = Lab::new(1, 2)
        .holder("e1", "alice", &[(0, 3600.0)])
        .runs(10, "alice", Some("e1"), &[(0, GIB), (1, 0)])
        .runs(11, "bob", None, &[(1, 0)]);
    lab.utilize(10, &[Some(0.0)]);
    for pid in [10, 11] {
        let listed = lab.pid("gpu01", pid).devices.last_mut().unwrap();
        listed.memory_used_bytes = memory_bytes.into();
        listed.utilization_ratio = utilization_ratio.into();
    }
    lab
}

fn ended(kind: &RuleKind, lab: &Lab) -> Vec<String> {
    let mut daemon = Daemon::new(vec![rule(kind.clone(), Action::Terminate)]);
    actions(&daemon.cycle(lab))
}

#[test]
fn a_process_that_is_listed_on_a_device_without_memory_and_utilization_uses_another_one_only() {
    let elsewhere = RuleKind::from(EnvDevices);
    let outside = RuleKind::from(NonEnvProcesses);
    let environments = max_environments_per_user(0, Scope::Host);
    let processes = RuleKind::from(MaxProcessesPerEnvironment { limits: limit(0) });
    for utilization in [Some(0.0), None] {
        let lab = lab(Some(0), utilization);
        assert_eq!(ended(&elsewhere, &lab), [""; 0]);
        assert_eq!(ended(&outside, &lab), [""; 0]);
        let detach = ["detach e1:0 (10)"];
        assert_eq!(ended(&environments, &lab), detach);
    }
    for shown in [lab(None, Some(0.0)), lab(Some(1 << 20), Some(0.0)), lab(Some(0), Some(0.5))] {
        assert_eq!(ended(&elsewhere, &shown), ["terminate 10"]);
        assert_eq!(ended(&outside, &shown), ["terminate 11"]);
    }
    // Process 10 shows no use on any device.
    let mut nowhere = lab(Some(0), Some(0.0));
    nowhere.pid("gpu01", 10).devices.remove(0);
    assert_eq!(ended(&processes, &lab(Some(0), Some(0.0))), ["terminate 10"]);
    assert_eq!(ended(&processes, &nowhere), [""; 0]);
    assert_eq!(ended(&environments, &nowhere), ["detach e1:0"]);
}

#[test]
fn a_device_on_which_a_process_is_listed_is_not_free() {
    let kind = RuleKind::from(Idle { below: 0.05, over: seconds(20), only_if_free_devices_below: Some(1) });
    let mut daemon = Daemon::new(vec![rule(kind, Action::Detach)]);
    let lab = lab(Some(0), Some(0.0));
    daemon.run(&lab, 20);
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0 (10)"]);
    let mut free = lab;
    free.pid("gpu01", 10).devices.pop();
    free.hosts[0].processes.retain(|process| process.pid == 10);
    assert_eq!(actions(&daemon.plan(&free)), [""; 0]);
}
