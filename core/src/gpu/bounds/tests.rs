use super::*;
use crate::gpu::GpuProcess;
use crate::model::ProcessType;

/// A device with these measurements, and the time of the read in seconds.
fn device(measurements: DeviceMeasurements) -> DeviceSample {
    DeviceSample {
        lost: false,
        measurements,
        processes: Some(Vec::new()),
        ..DeviceSample::lost(DeviceIndex::gpu(0), "GPU-1".to_owned())
    }
}

fn apply(bounds: &mut Bounds, device: DeviceSample, at: f64) -> (DeviceSample, Vec<&'static str>) {
    let mut sample = GpuSample { devices: vec![device], ..GpuSample::default() };
    let distrusted = bounds.apply(&mut sample, at);
    let readings = distrusted.iter().map(|it| it.reading).collect();
    (sample.devices.swap_remove(0), readings)
}

fn memory(total_bytes: u64, used_bytes: u64, free_bytes: u64) -> DeviceMeasurements {
    DeviceMeasurements {
        memory: Some(DeviceMemory { total_bytes, used_bytes, free_bytes, reserved_bytes: None }),
        ..DeviceMeasurements::default()
    }
}

/// The credible energy of a device with a limit of 500 W.
fn energy(bounds: &mut Bounds, joules: f64, at: f64) -> Option<f64> {
    let measurements = DeviceMeasurements {
        energy_joules: Some(joules),
        power_limit_watts: Some(500.0),
        ..DeviceMeasurements::default()
    };
    apply(bounds, device(measurements), at).0.measurements.energy_joules
}

#[test]
fn possible_values_are_kept() {
    let measurements = DeviceMeasurements {
        utilization_ratio: Some(1.0),
        memory_controller_busy_ratio: Some(0.0),
        temperature_celsius: Some(92.0),
        temperature_limits_celsius: BTreeMap::from([("memory_max".to_owned(), 105.0)]),
        // A peak beyond the limit.
        power_watts: Some(900.0),
        power_limit_watts: Some(700.0),
        clocks_hertz: BTreeMap::from([("memory".to_owned(), 14.0e9)]),
        fan_speed_ratios: BTreeMap::from([(0, 1.1)]),
        throttled: Some(BTreeMap::from([("sw_power_cap".to_owned(), true), ("hw_slowdown".to_owned(), false)])),
        pcie_replays: Some(3),
        ..memory(80 << 30, 79 << 30, 1 << 30)
    };
    let given = device(measurements);
    let (applied, readings) = apply(&mut Bounds::default(), given.clone(), 0.0);
    assert_eq!((applied, readings), (given, Vec::new()));
}

#[test]
fn every_value_with_all_bits_set_is_removed() {
    let all = f64::from(u32::MAX);
    let named = |value: f64| BTreeMap::from([("some".to_owned(), value)]);
    let measurements = DeviceMeasurements {
        utilization_ratio: Some(all / 100.0),
        memory_controller_busy_ratio: Some(2.55),
        encoder_utilization_ratio: Some(f64::NAN),
        decoder_utilization_ratio: Some(-0.1),
        temperature_celsius: Some(all),
        temperature_limits_celsius: named(all),
        power_watts: Some(all / 1e3),
        power_limit_watts: Some(all / 1e3),
        energy_joules: Some(u64::MAX as f64 / 1e3),
        clocks_hertz: named(all * 1e6),
        fan_speed_ratios: BTreeMap::from([(0, all / 100.0)]),
        throttled: Some(BTreeMap::from([("a".to_owned(), true), ("b".to_owned(), true)])),
        ecc_errors: crate::model::EccErrors { corrected: Some(u64::MAX), uncorrected: Some(u64::MAX) },
        pcie_replays: Some(u64::from(u32::MAX)),
        ..memory(u64::MAX, u64::MAX, u64::MAX)
    };
    let mut given = device(measurements);
    given.minor = Some(u32::MAX);
    let (applied, readings) = apply(&mut Bounds::default(), given, 0.0);
    assert_eq!(applied.measurements, DeviceMeasurements::default());
    assert_eq!(applied.minor, None);
    assert_eq!(
        readings,
        [
            "utilization",
            "memory_controller",
            "encoder",
            "decoder",
            "memory",
            "temperature",
            "temperature_limit",
            "power_limit",
            "power",
            "energy",
            "clock",
            "fan",
            "throttled",
            "ecc_errors",
            "ecc_errors",
            "pcie_replays",
            "minor",
        ]
    );
}

#[test]
fn amounts_of_memory_have_to_agree() {
    for (total, used, free, holds) in [
        (80, 30, 50, true),
        (80, 30, 49, true),
        (80, 81, 0, false),
        (80, 0, 81, false),
        (80, 50, 50, false),
        (80, u64::MAX, 2, false),
        (0, 0, 0, false),
    ] {
        let (applied, _) = apply(&mut Bounds::default(), device(memory(total, used, free)), 0.0);
        assert_eq!(applied.measurements.memory.is_some(), holds, "{used} of {total}");
    }
}

#[test]
fn a_process_holds_no_more_than_its_device_has_and_works_for_no_more_than_all_the_time() {
    let process = |memory, utilization| GpuProcess {
        pid: 7,
        process_type: ProcessType::Compute,
        memory_used_bytes: Some(memory),
        utilization_ratio: Some(utilization),
    };
    let mut bounds = Bounds::default();
    let mut given = device(memory(80, 30, 50));
    given.processes = Some(vec![process(80, 1.0), process(81, 2.0)]);
    let (applied, readings) = apply(&mut bounds, given, 0.0);
    let applied: Vec<_> =
        applied.processes.iter().flatten().map(|it| (it.memory_used_bytes, it.utilization_ratio)).collect();
    assert_eq!(applied, [(Some(80), Some(1.0)), (None, None)]);
    assert_eq!(readings, ["process_memory", "process_utilization"]);
    // Also while the memory of the device itself is not known.
    let mut given = device(memory(u64::MAX, 30, 50));
    given.processes = Some(vec![process(81, 0.0)]);
    assert_eq!(apply(&mut bounds, given, 10.0).1, ["memory", "process_memory"]);
}

#[test]
fn power_beyond_twice_the_limit_is_no_peak() {
    let drawn = |watts| DeviceMeasurements {
        power_watts: Some(watts),
        power_limit_watts: Some(700.0),
        ..DeviceMeasurements::default()
    };
    let mut bounds = Bounds::default();
    assert!(apply(&mut bounds, device(drawn(1400.0)), 0.0).1.is_empty());
    assert_eq!(apply(&mut bounds, device(drawn(1401.0)), 1.0).1, ["power"]);
}

#[test]
fn one_wrong_reading_of_the_energy_counter_is_left_out_alone() {
    for wrong in [u64::MAX as f64 / 1e3, 1e9, 5.0] {
        let mut bounds = Bounds::default();
        assert_eq!(energy(&mut bounds, 1e8, 0.0), Some(1e8));
        let applied = energy(&mut bounds, wrong, 10.0);
        // A value as small as the one of a restarted counter counts as a restart.
        assert_eq!(applied, (wrong == 5.0).then_some(5.0));
        let after = energy(&mut bounds, 1e8 + 5e3, 20.0);
        let after = after.or(energy(&mut bounds, 1e8 + 7e3, 30.0));
        assert!(after.is_some_and(|joules| joules > 1e8), "after {wrong}");
    }
}

#[test]
fn a_restarted_energy_counter_counts_at_once_and_a_jumped_one_with_the_second_reading() {
    let mut bounds = Bounds::default();
    assert_eq!(energy(&mut bounds, 1e8, 0.0), Some(1e8));
    assert_eq!(energy(&mut bounds, 2e3, 10.0), Some(2e3));
    assert_eq!(energy(&mut bounds, 5e7, 20.0), None);
    assert_eq!(energy(&mut bounds, 5e7 + 4e3, 30.0), Some(5e7 + 4e3));
}

#[test]
fn another_device_at_the_index_is_judged_by_itself() {
    let mut bounds = Bounds::default();
    assert_eq!(energy(&mut bounds, 1e8, 0.0), Some(1e8));
    let mut other = device(DeviceMeasurements { energy_joules: Some(9e8), ..DeviceMeasurements::default() });
    other.uuid = "GPU-2".to_owned();
    assert!(apply(&mut bounds, other, 10.0).1.is_empty());
}

#[test]
fn processes_hold_no_more_memory_than_their_device_uses() {
    const GIB: u64 = 1 << 30;
    let on_device = |amounts: &[u64], used_bytes: u64| {
        let processes = amounts.iter().map(|gibibytes| GpuProcess {
            pid: 7,
            process_type: ProcessType::Compute,
            memory_used_bytes: Some(gibibytes * GIB),
            utilization_ratio: Some(0.5),
        });
        let device = DeviceSample { processes: Some(processes.collect()), ..device(memory(80 * GIB, used_bytes, GIB)) };
        let (device, distrusted) = apply(&mut Bounds::default(), device, 0.0);
        let kept = device.processes.map(|processes| {
            let kept = processes.iter().filter(|it| it.memory_used_bytes.is_some());
            (processes.len(), kept.count())
        });
        (kept, distrusted.len())
    };
    assert_eq!(on_device(&[3, 4], 6 * GIB), (Some((2, 2)), 0));
    assert_eq!(on_device(&[3, 4], 6 * GIB - 1), (Some((2, 0)), 2));
    assert_eq!(on_device(&[0, 70], 4 * GIB), (None, 1));
    assert_eq!(on_device(&[4], GIB / 2), (None, 1));
}
