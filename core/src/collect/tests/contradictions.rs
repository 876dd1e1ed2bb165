//! Devices that are in use although no process is listed.

use super::lab::{Lab, alice_computes};
use super::*;

/// GPU 0 with this utilization and memory, and no process.
fn unused(lab: &mut Lab, utilization: f64, used_mib: u64) {
    let device = lab.device(0);
    device.processes = Some(Vec::new());
    device.measurements.utilization_ratio = Some(utilization);
    device.measurements.memory = Some(DeviceMemory {
        total_bytes: 16 * GIB,
        used_bytes: used_mib << 20,
        free_bytes: GIB,
        reserved_bytes: None,
    });
}

fn known(snapshot: &Snapshot) -> bool {
    assert_eq!(
        snapshot.processes_known(0),
        device(snapshot, 0).processes_measured
    );
    snapshot.processes_known(0)
}

#[test]
fn a_device_that_works_without_a_process_is_unknown_after_ten_seconds_and_two_samples() {
    let mut lab = Lab::new();
    unused(&mut lab, 0.06, 100);
    assert!(known(&lab.after(0.0)));
    assert!(known(&lab.after(9.0)));
    assert!(!known(&lab.after(1.0)));
    // It is known again as soon as nothing contradicts the list.
    unused(&mut lab, 0.05, 100);
    assert!(known(&lab.after(1.0)));
    unused(&mut lab, 0.98, 100);
    assert!(known(&lab.after(1.0)));
    // A long time, but one sample.
    lab.gpu = None;
    assert!(known(&lab.after(20.0)));
}

#[test]
fn memory_beyond_what_the_driver_keeps_makes_a_device_without_a_process_unknown() {
    for (empty_mib, used_mib, is_known) in [
        (None, 1024 + 64, true),
        (None, 1024 + 65, false),
        (Some(3), 3 + 64, true),
        (Some(3), 3 + 65, false),
        (Some(4096), 1024 + 65, false),
    ] {
        let mut lab = Lab::new();
        if let Some(empty) = empty_mib {
            unused(&mut lab, 0.0, empty);
            lab.after(0.0);
        }
        unused(&mut lab, 0.0, used_mib);
        lab.after(1.0);
        let case = format!("{used_mib} MiB used, {empty_mib:?} when empty");
        assert_eq!(known(&lab.after(10.0)), is_known, "{case}");
    }
}

#[test]
fn a_listed_process_explains_what_a_device_does() {
    let mut lab = Lab::new();
    unused(&mut lab, 0.98, 8000);
    lab.device(0).processes = Some(vec![on_gpu(7, Some(0.98))]);
    lab.after(0.0);
    assert!(known(&lab.after(10.0)));
}

#[test]
fn a_list_that_fails_now_and_then_does_not_put_off_what_contradicts_it() {
    let mut lab = Lab::new();
    unused(&mut lab, 0.0, 8000);
    assert!(known(&lab.after(0.0)));
    for _ in 0..3 {
        lab.device(0).processes = None;
        assert!(!known(&lab.after(4.0)));
        lab.device(0).processes = Some(Vec::new());
        lab.after(4.0);
    }
    assert!(!known(&lab.after(1.0)));
}

#[test]
fn another_driver_may_keep_more() {
    let mut lab = Lab::new();
    unused(&mut lab, 0.0, 3);
    lab.after(0.0);
    unused(&mut lab, 0.0, 600);
    lab.gpu.as_mut().unwrap().driver_version = Some("580.1".to_owned());
    lab.after(1.0);
    assert!(known(&lab.after(10.0)));
}

#[test]
fn the_time_of_a_holder_on_a_contradicted_device_is_unmeasured() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    unused(&mut lab, 0.9, 100);
    lab.after(0.0);
    for _ in 0..14 {
        lab.after(1.0);
    }
    let counters = lab.after(1.0).counters;
    let of_alice = counters
        .user_device_use
        .iter()
        .find(|it| it.username == "alice");
    let seconds = of_alice.unwrap().device_seconds.unwrap();
    // Nor are the first ten seconds, in which it is not decided yet.
    assert_eq!((seconds.busy, seconds.idle), (0.0, 0.0));
    assert_eq!(seconds.unmeasured, 15.0 / 4.0);
}
