//! The values that a snapshot names as withheld.

use super::lab::{Lab, alice_computes};
use super::*;
use crate::model::{CollectorStatus, Withheld};
use crate::proc::MissingEvidence;

/// A GPU without a process, which rests.
fn rests(index: u32) -> DeviceSample {
    let mut device = gpu(index);
    device.measurements.utilization_ratio = Some(0.0);
    device
}

/// The collector of a host with this device alone, after this number of samples.
fn status_after(device: &DeviceSample, samples: u32) -> CollectorStatus {
    let mut lab = Lab::new();
    lab.gpu = Some(sample(vec![device.clone()]));
    let mut status = CollectorStatus::default();
    for _ in 0..samples {
        status = lab.statuses(10.0).remove("gpu").unwrap();
    }
    status
}

#[test]
fn every_value_that_a_sample_lacks_is_named_with_its_device() {
    type Change = fn(&mut DeviceSample);
    let cases: [(Change, u32, &[&str]); 12] = [
        (|_| {}, 3, &[]),
        (|it| *it = lost(it), 1, &["all values"]),
        (|it| it.processes = None, 1, &["processes"]),
        (|it| it.processes_incomplete = true, 1, &["processes"]),
        (|it| it.measurements = DeviceMeasurements::default(), 1, &["processes"]),
        (|it| it.processes = Some(vec![on_gpu(0, Some(0.0))]), 1, &["pid", "processes"]),
        (|it| it.processes = Some(vec![on_gpu(u32::MAX, Some(0.0))]), 1, &["pid", "processes"]),
        (
            |it| {
                let absurd = GpuProcess { memory_used_bytes: Some(400 * GIB), ..on_gpu(7, Some(0.0)) };
                it.processes = Some(vec![absurd]);
            },
            1,
            &["process_memory", "processes"],
        ),
        (|it| it.measurements.utilization_ratio = Some(7.0), 1, &["utilization", "processes"]),
        (|it| it.measurements.utilization_ratio = Some(0.5), 1, &[]),
        (|it| it.measurements.utilization_ratio = Some(0.5), 2, &["processes", "use"]),
        (
            |it| {
                it.measurements.utilization_ratio = Some(0.9);
                it.processes = Some(vec![on_gpu(7, Some(0.3)), on_gpu(8, Some(0.0))]);
            },
            2,
            &["process_utilization"],
        ),
    ];
    for (number, (change, samples, expected)) in cases.into_iter().enumerate() {
        let mut device = rests(3);
        change(&mut device);
        let status = status_after(&device, samples);
        let named: Vec<&str> = status.withheld.iter().map(|it| it.value.as_str()).collect();
        assert_eq!(named, expected, "case {number}");
        assert!(status.withheld.iter().all(|it| it.device == Some(DeviceIndex::gpu(3))));
        assert_eq!(status.fault(), None, "case {number}");
        assert_eq!(status.error.is_some(), !expected.is_empty(), "case {number}");
    }
    // The parts of a GPU with an impossible reading.
    let mut whole = DeviceSample { mig_parent: true, ..rests(3) };
    whole.measurements.utilization_ratio = Some(7.0);
    let mut lab = Lab::new();
    lab.gpu = Some(sample(vec![whole, mig(3, 0)]));
    let status = lab.statuses(10.0).remove("gpu").unwrap();
    let named: Vec<_> = status.withheld.iter().map(|it| (it.device, it.value.as_str())).collect();
    let expected = [(DeviceIndex::gpu(3), "utilization"), (DeviceIndex::mig(3, 0), Withheld::PROCESSES)];
    assert_eq!(named, expected.map(|(device, value)| (Some(device), value)));
}

#[test]
fn withheld_values_follow_the_fault_in_the_error_of_their_collector() {
    let mut lab = Lab::new();
    lab.gpu = Some(sample(vec![rests(0), rests(1)]));
    assert_eq!(lab.statuses(1.0)["gpu"].error, None);
    let read = lab.gpu.as_mut().unwrap();
    read.devices.pop();
    read.withheld = vec![Withheld::of(DeviceIndex::gpu(0), "nvmlDeviceGetTemperature", "no data")];
    let hidden = Withheld::of_host("other users", "hidden");
    lab.table.as_mut().unwrap().withheld = vec![hidden];
    let statuses = lab.statuses(1.0);
    let fault = statuses["gpu"].fault().unwrap();
    assert!(fault.contains("does not show GPU 1,"), "{fault}");
    let error = format!("{fault}; device 0: nvmlDeviceGetTemperature: no data");
    assert_eq!(statuses["gpu"].error, Some(error));
    assert_eq!(statuses["processes"].error.as_deref(), Some("other users: hidden"));
    assert_eq!(statuses["processes"].fault(), None);
}

#[test]
fn an_environ_that_may_not_be_read_withholds_the_environments_of_processes() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    assert_eq!(lab.statuses(1.0)["processes"].error, None);
    lab.process(102, 2, Claim::Missing(MissingEvidence::EnvironUnreadable));
    lab.device(0).processes = Some(vec![on_gpu(101, Some(0.25)), on_gpu(102, Some(0.25))]);
    let error = lab.statuses(1.0)["processes"].error.clone().unwrap();
    assert!(error.starts_with("environments of processes: the environ of process 102 may not be read"), "{error}");
}

#[test]
fn an_error_names_a_limited_number_of_values_and_is_no_fault() {
    let mut status = CollectorStatus { success: true, ..CollectorStatus::default() };
    status.withhold((0..20).map(|index| Withheld::of(DeviceIndex::gpu(index), "processes", "no data")).collect());
    let error = status.error.clone().unwrap();
    assert!(error.ends_with("device 15: processes: no data; and 4 more"), "{error}");
    assert_eq!(status.fault(), None);
}
