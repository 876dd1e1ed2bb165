//! Devices whose utilization stays high without a process and without memory in use.

use std::time::Duration;

use super::lab::Lab;
use super::*;
use crate::collect::CollectOptions;
use crate::proc::INITIAL_PID_NAMESPACE;

/// A host in the machine's pid namespace.
fn lab() -> Lab {
    let contradictory_after = Duration::from_secs(90);
    let mut lab = Lab::with(&CollectOptions { contradictory_after, ..CollectOptions::default() });
    lab.table.as_mut().unwrap().pid_namespace = Some(INITIAL_PID_NAMESPACE);
    lab
}

/// GPU 0 without a process, with this utilization and memory in use.
fn show(lab: &mut Lab, utilization: f64, used_mib: u64) {
    let used_bytes = used_mib << 20;
    let memory = DeviceMemory { total_bytes: 16 * GIB, used_bytes, free_bytes: GIB, reserved_bytes: None };
    let device = lab.device(0);
    *device = gpu(0);
    (device.measurements.utilization_ratio, device.measurements.memory) = (Some(utilization), Some(memory));
}

/// Whether GPU 0 is contradictory, and whether its measurement is stuck, after a sample.
fn next(lab: &mut Lab) -> (bool, bool) {
    next_after(lab, 10.0)
}

fn next_after(lab: &mut Lab, seconds: f64) -> (bool, bool) {
    let snapshot = lab.after(seconds);
    (device(&snapshot, 0).contradictory, device(&snapshot, 0).measurement_stuck)
}

#[test]
fn a_high_utilization_without_a_process_and_memory_is_stuck_only_if_nobody_can_be_hidden() {
    type Change = fn(&mut Lab);
    let cases: [(&str, Change, u64, (bool, bool)); 8] = [
        ("nothing is hidden", |_| {}, 3, (true, true)),
        ("another pid namespace", |lab| lab.table.as_mut().unwrap().pid_namespace = Some(1), 3, (true, false)),
        ("no pid namespace", |lab| lab.table.as_mut().unwrap().pid_namespace = None, 3, (true, false)),
        ("a vGPU guest", |lab| lab.gpu.as_mut().unwrap().serves_one_machine = false, 3, (true, false)),
        ("memory as some drivers keep", |_| {}, 300, (true, false)),
        (
            "memory as this driver keeps",
            |lab| {
                show(lab, 0.0, 300);
                lab.device(0).processes = Some(vec![on_gpu(7, Some(0.0))]);
                lab.after(0.0);
                show(lab, 0.0, 300);
                lab.after(1.0);
                lab.after(10.0);
            },
            300,
            (true, true),
        ),
        (
            "memory that was in use while no process was ever listed",
            |lab| {
                show(lab, 0.0, 300);
                lab.after(0.0);
                lab.after(10.0);
            },
            300,
            (true, false),
        ),
        ("memory in use", |_| {}, 2000, (false, false)),
    ];
    for (case, change, used_mib, expected) in cases {
        let mut lab = lab();
        change(&mut lab);
        show(&mut lab, 1.0, used_mib);
        for _ in 0..9 {
            assert_eq!(next(&mut lab), (false, false), "{case}");
        }
        assert_eq!(next(&mut lab), expected, "{case}");
    }
}

#[test]
fn an_unanswered_question_leaves_a_device_contradictory_and_proves_nothing() {
    type Fail = fn(&mut Lab);
    let failures: [(&str, Fail); 8] = [
        ("no list", |lab| lab.device(0).processes = None),
        ("half a list", |lab| lab.device(0).processes_incomplete = true),
        ("a list that the driver does not support", |lab| lab.device(0).lists_answered = false),
        ("no memory", |lab| lab.device(0).measurements.memory = None),
        ("no utilization", |lab| lab.device(0).measurements.utilization_ratio = None),
        ("lost", |lab| *lab.device(0) = lost(&gpu(0))),
        ("not listed", |lab| drop(lab.gpu.as_mut().unwrap().devices.remove(0))),
        ("no driver", |lab| lab.gpu = None),
    ];
    for (failure, fails) in failures {
        let mut lab = lab();
        show(&mut lab, 1.0, 3);
        for _ in 0..3 {
            next(&mut lab);
        }
        let whole = lab.gpu.clone();
        fails(&mut lab);
        assert_eq!(next(&mut lab), (false, false), "{failure}");
        lab.gpu = whole;
        for _ in 0..5 {
            assert_eq!(next(&mut lab), (false, false), "{failure}");
        }
        for _ in 0..4 {
            assert_eq!(next(&mut lab), (true, false), "{failure}");
        }
        assert_eq!(next(&mut lab), (true, true), "{failure}");
    }
}

#[test]
fn only_ten_samples_without_a_gap_of_more_than_a_minute_prove_that_nobody_uses_a_device() {
    for (interval_seconds, first_stuck) in [(10.0, Some(9)), (60.0, Some(9)), (61.0, None)] {
        let mut lab = lab();
        show(&mut lab, 1.0, 3);
        let stuck = (0..20).position(|_| next_after(&mut lab, interval_seconds).1);
        assert_eq!(stuck, first_stuck, "{interval_seconds}");
        assert!(next_after(&mut lab, interval_seconds).0);
    }
}

#[test]
fn whatever_explains_the_utilization_ends_the_contradiction() {
    type Change = fn(&mut Lab);
    let changes: [(&str, Change); 8] = [
        ("rest", |lab| show(lab, 0.05, 3)),
        ("a process", |lab| lab.device(0).processes = Some(vec![on_gpu(7, Some(1.0))])),
        ("memory", |lab| show(lab, 1.0, 2000)),
        ("parts", |lab| lab.device(0).mig_parent = true),
        ("another GPU", |lab| lab.device(0).uuid = "GPU-9".to_owned()),
        ("another driver", |lab| lab.gpu.as_mut().unwrap().driver_version = Some("580.1".to_owned())),
        ("the driver loaded anew", |lab| lab.gpu.as_mut().unwrap().session += 1),
        ("a long silence", |lab| {
            lab.gpu = None;
            lab.now_seconds += 600.0;
        }),
    ];
    for (change, explains) in changes {
        let mut lab = lab();
        show(&mut lab, 1.0, 3);
        for _ in 0..9 {
            next(&mut lab);
        }
        assert_eq!(next(&mut lab), (true, true), "{change}");
        let whole = lab.gpu.clone();
        explains(&mut lab);
        assert_eq!(next(&mut lab), (false, false), "{change}");
        lab.gpu = whole;
        assert_eq!(next(&mut lab), (false, false), "{change}");
    }
}
