//! Devices that are in use although no process is listed.

use super::lab::{Lab, alice_computes};
use super::*;

/// GPU 0 with this utilization and memory, and no process.
fn unused(lab: &mut Lab, utilization: f64, used_mib: u64) {
    let device = lab.device(0);
    device.processes = Some(Vec::new());
    device.measurements.utilization_ratio = Some(utilization);
    device.measurements.memory =
        Some(DeviceMemory { total_bytes: 16 * GIB, used_bytes: used_mib << 20, free_bytes: GIB, reserved_bytes: None });
}

fn known(snapshot: &Snapshot) -> bool {
    assert_eq!(snapshot.processes_known(0), device(snapshot, 0).processes_measured);
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
            lab.after(10.0);
        }
        unused(&mut lab, 0.0, used_mib);
        lab.after(1.0);
        let case = format!("{used_mib} MiB used, {empty_mib:?} when empty");
        assert_eq!(known(&lab.after(10.0)), is_known, "{case}");
    }
}

#[test]
fn an_empty_list_that_no_other_answer_confirms_is_not_known() {
    for (utilization_ratio, used_mib, is_known) in
        [(None, None, false), (Some(0.0), None, true), (None, Some(100), true)]
    {
        let mut lab = Lab::new();
        unused(&mut lab, 0.0, used_mib.unwrap_or_default());
        let measurements = &mut lab.device(0).measurements;
        measurements.utilization_ratio = utilization_ratio;
        measurements.memory.take_if(|_| used_mib.is_none());
        assert_eq!(known(&lab.after(0.0)), is_known, "{used_mib:?}");
        // A listed process needs no such confirmation.
        lab.device(0).processes = Some(vec![on_gpu(7, Some(0.5))]);
        assert!(known(&lab.after(1.0)));
    }
}

#[test]
fn a_listed_process_explains_the_use_of_a_device() {
    let mut lab = Lab::new();
    unused(&mut lab, 0.98, 8000);
    lab.device(0).processes = Some(vec![on_gpu(7, Some(0.98))]);
    lab.after(0.0);
    assert!(known(&lab.after(10.0)));
}

#[test]
fn a_process_on_any_compute_instance_explains_the_memory_of_its_gpu_instance() {
    // The GPU instances of two MIG devices that show 8 GiB in use, the processes of the second, and whether all
    // processes are known.
    let process = || vec![on_gpu(7, None)];
    for (instances, processes, are_known) in [
        ([Some(2), Some(2)], Some(process()), true),
        ([Some(2), Some(2)], Some(Vec::new()), false),
        ([Some(2), Some(2)], None, false),
        ([Some(2), Some(3)], Some(process()), false),
        ([None, None], Some(process()), false),
    ] {
        let mut parts = [mig(0, 0), mig(0, 1)];
        for (part, instance) in parts.iter_mut().zip(instances) {
            part.gpu_instance = instance;
            part.measurements.memory = Some(DeviceMemory {
                total_bytes: 16 * GIB,
                used_bytes: 8 * GIB,
                free_bytes: 8 * GIB,
                reserved_bytes: None,
            });
        }
        parts[1].processes.clone_from(&processes);
        let mut devices = vec![DeviceSample { mig_parent: true, ..gpu(0) }];
        devices.extend(parts);
        let mut lab = Lab::new();
        lab.gpu = Some(sample(devices));
        lab.after(0.0);
        let snapshot = lab.after(10.0);
        assert_eq!(snapshot.processes_known(0), are_known, "{instances:?} {processes:?}");
        assert_eq!(snapshot.devices[1].processes_measured, are_known, "{instances:?} {processes:?}");
        assert_eq!(snapshot.devices[1].gpu_instance, instances[0]);
    }
}

#[test]
fn an_occasional_failed_list_does_not_end_a_contradiction() {
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
fn no_failed_reading_begins_the_ten_seconds_anew() {
    type Fail = fn(&mut Lab);
    let failures: [(&str, Fail); 6] = [
        ("lost", |lab| *lab.device(0) = lost(&gpu(0))),
        ("no reading", |lab| {
            lab.device(0).measurements = DeviceMeasurements::default();
        }),
        ("no memory", |lab| lab.device(0).measurements.memory = None),
        ("no version", |lab| {
            lab.gpu.as_mut().unwrap().driver_version = None;
        }),
        ("no uuid", |lab| lab.device(0).uuid.clear()),
        ("another session", |lab| {
            lab.gpu.as_mut().unwrap().session += 1;
        }),
    ];
    for (failure, fails) in failures {
        let mut lab = Lab::new();
        let whole = lab.gpu.clone();
        for second in 0..12 {
            let session = lab.gpu.as_ref().unwrap().session;
            lab.gpu.clone_from(&whole);
            lab.gpu.as_mut().unwrap().session = session;
            unused(&mut lab, 0.0, 8000);
            if second % 3 == 1 {
                fails(&mut lab);
            }
            lab.after(1.0);
        }
        lab.gpu.clone_from(&whole);
        unused(&mut lab, 0.0, 8000);
        assert!(!known(&lab.after(0.0)), "{failure}");
    }
}

#[test]
fn another_driver_or_a_new_session_of_the_same_may_keep_more() {
    for is_same_version in [false, true] {
        let mut lab = Lab::new();
        unused(&mut lab, 0.0, 3);
        lab.after(0.0);
        lab.after(10.0);
        unused(&mut lab, 0.0, 600);
        let sample = lab.gpu.as_mut().unwrap();
        if is_same_version {
            sample.session += 1;
        } else {
            sample.driver_version = Some("580.1".to_owned());
        }
        lab.after(1.0);
        assert!(known(&lab.after(10.0)), "{is_same_version}");
    }
}

#[test]
fn one_odd_reading_of_memory_is_not_what_the_driver_keeps() {
    for odd_mib in [0, 3, 900] {
        let mut lab = Lab::new();
        for second in 0..60 {
            let is_odd = second == 15;
            unused(&mut lab, 0.0, if is_odd { odd_mib } else { 300 });
            let snapshot = lab.after(2.0);
            assert!(known(&snapshot), "{odd_mib} MiB, {second}");
        }
        // The memory that the driver keeps is still known.
        unused(&mut lab, 0.0, 400);
        lab.after(1.0);
        assert!(!known(&lab.after(10.0)), "{odd_mib} MiB");
    }
}

/// Alice's process works at 30 %; the driver lists it in one second of ten.
#[test]
fn no_use_is_measured_while_a_device_contradicts_its_list_however_short() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    for second in 0..40 {
        let is_listed = second % 10 == 0;
        unused(&mut lab, 0.3, 2000);
        if is_listed {
            lab.device(0).processes = Some(vec![on_gpu(101, Some(0.3))]);
        }
        let snapshot = lab.after(1.0);
        let used = &snapshot.environments[0].devices[0];
        let expected = is_listed.then_some(0.3);
        assert_eq!(used.utilization_ratio, expected, "second {second}");
        assert_eq!(snapshot.use_measured(0), is_listed, "second {second}");
        // Each contradiction lasts nine seconds alone.
        assert!(known(&snapshot));
    }
    let counters = lab.after(0.0).counters;
    let mut of_all = counters.user_device_use.iter();
    let of_alice = of_all.find(|it| it.username == "alice").unwrap();
    assert_eq!(of_alice.device_seconds.unwrap().idle, 0.0);
}

#[test]
fn a_list_of_processes_that_all_rest_does_not_explain_a_device_at_work() {
    // The device's utilization, the utilization of another user's listed process, and whether the unlisted alice is
    // known to use nothing.
    for (device, other, is_measured) in [
        (0.95, Some(0.0), false),
        (0.95, Some(0.05), false),
        (0.95, Some(0.5), true),
        (0.95, None, true),
        (0.05, Some(0.0), true),
    ] {
        let mut lab = Lab::new();
        alice_computes(&mut lab);
        unused(&mut lab, device, 2000);
        lab.device(0).processes = Some(vec![on_gpu(7, other)]);
        let snapshot = lab.after(1.0);
        let used = &snapshot.environments[0].devices[0];
        let expected = is_measured.then_some(0.0);
        assert_eq!(used.utilization_ratio, expected, "{device} {other:?}");
        assert!(known(&snapshot));
    }
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
    let of_alice = counters.user_device_use.iter().find(|it| it.username == "alice");
    let seconds = of_alice.unwrap().device_seconds.unwrap();
    // The first ten seconds, before the decision, are unmeasured too.
    assert_eq!((seconds.busy, seconds.idle), (0.0, 0.0));
    assert_eq!(seconds.unmeasured, 15.0 / 4.0);
}
