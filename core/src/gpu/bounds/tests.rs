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
        temperature_limits_celsius: BTreeMap::from([("memory_max".to_owned(), 105.0)]).into(),
        // A peak beyond the limit.
        power_watts: Some(900.0),
        power_limit_watts: Some(700.0),
        clocks_hertz: BTreeMap::from([("memory".to_owned(), 14.0e9)]).into(),
        fan_speed_ratios: BTreeMap::from([(0, 1.1)]),
        throttled: Some(BTreeMap::from([("sw_power_cap".to_owned(), true), ("hw_slowdown".to_owned(), false)]).into()),
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
    let named = |value: f64| BTreeMap::from([("some".to_owned(), value)]).into();
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
        throttled: Some(BTreeMap::from([("a".to_owned(), true), ("b".to_owned(), true)]).into()),
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
        readings.join(" "),
        "utilization memory_controller encoder decoder memory temperature temperature_limit power_limit power energy \
         clock fan throttled ecc_errors ecc_errors pcie_replays minor"
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

fn process(pid: u32, memory_used_bytes: u64, utilization_ratio: f64) -> GpuProcess {
    GpuProcess {
        pid,
        process_type: ProcessType::Compute,
        memory_used_bytes: Some(memory_used_bytes),
        utilization_ratio: Some(utilization_ratio),
    }
}

/// The device with these processes after the bounds, and the removed values.
fn with_processes(
    bounds: &mut Bounds,
    measurements: DeviceMeasurements,
    processes: &[GpuProcess],
) -> (DeviceSample, Vec<&'static str>) {
    let given = DeviceSample { processes: Some(processes.to_vec()), ..device(measurements) };
    apply(bounds, given, 0.0)
}

#[test]
fn a_list_with_more_memory_than_the_device_has_does_not_count_like_one_with_more_than_the_device_uses() {
    const GIB: u64 = 1 << 30;
    for amount in [10 * GIB, 25 * GIB, 400 * GIB, 1 << 46, u64::MAX - 1] {
        let processes = [process(7, GIB, 0.0), process(8, amount, 0.0)];
        let (applied, readings) = with_processes(&mut Bounds::default(), memory(24 * GIB, 6 * GIB, GIB), &processes);
        assert_eq!(applied.processes, None, "{amount}");
        assert!(!applied.processes_known() && readings.contains(&"process_memory"), "{amount}");
    }
    // The used memory was not read, and the installed memory is known from before.
    let mut bounds = Bounds::default();
    apply(&mut bounds, device(memory(24 * GIB, 6 * GIB, GIB)), 0.0);
    let unread = with_processes(&mut bounds, DeviceMeasurements::default(), &[process(8, 25 * GIB, 0.0)]);
    assert_eq!(unread.0.processes, None);
    // Memory that cannot be is no reason to believe a list that contradicts it.
    let impossible = with_processes(&mut bounds, memory(24 * GIB, 6 * GIB, 400 * GIB), &[process(8, 8 * GIB, 0.0)]);
    assert_eq!((impossible.0.measurements.memory, impossible.0.processes), (None, None));
}

#[test]
fn the_processes_of_all_compute_instances_hold_no_more_than_their_gpu_instance_uses() {
    const GIB: u64 = 1 << 30;
    for (instances, holds) in [([2, 3], true), ([2, 2], false)] {
        let part = |number: u8| DeviceSample {
            index: DeviceIndex::mig(0, number),
            gpu_instance: Some(instances[usize::from(number)]),
            processes: Some(vec![process(7 + u32::from(number), 6 * GIB, 0.0)]),
            ..device(memory(24 * GIB, 8 * GIB, GIB))
        };
        let mut sample = GpuSample { devices: vec![part(0), part(1)], ..GpuSample::default() };
        Bounds::default().apply(&mut sample, 0.0);
        let processes = sample.devices.iter().flat_map(|device| device.processes.iter().flatten());
        let amounts: Vec<_> = processes.map(|process| process.memory_used_bytes).collect();
        assert_eq!(amounts, [holds.then_some(6 * GIB); 2], "{instances:?}");
    }
}

#[test]
fn a_process_holds_no_more_than_its_device_has_and_works_for_no_more_than_all_the_time() {
    let mut bounds = Bounds::default();
    let (applied, readings) =
        with_processes(&mut bounds, memory(80, 30, 50), &[process(7, 80, 1.0), process(8, 81, 2.0)]);
    assert_eq!(applied.processes, None);
    assert_eq!(readings, ["process_memory", "process_utilization"]);
    // Also while the memory of the device itself is not known.
    let (_, readings) = with_processes(&mut bounds, memory(u64::MAX, 30, 50), &[process(7, 81, 0.0)]);
    assert_eq!(readings, ["memory", "process_memory"]);
}

#[test]
fn a_list_with_a_pid_that_no_process_has_does_not_count() {
    for (pid, holds) in [(0, false), (1, true), (1 << 22, true), ((1 << 22) + 1, false), (u32::MAX, false)] {
        let processes = [process(7, 1, 0.0), process(pid, 1, 0.0)];
        let (applied, readings) = with_processes(&mut Bounds::default(), memory(80, 30, 50), &processes);
        assert_eq!(applied.processes.is_some(), holds, "{pid}");
        assert_eq!(readings, ["pid"][..usize::from(!holds)], "{pid}");
    }
}

#[test]
fn one_impossible_utilization_leaves_all_processes_of_the_device_unmeasured() {
    for (own, of_processes, is_measured) in
        [(Some(1.0), [0.9, 0.0], true), (Some(1.0), [2.0, 0.0], false), (Some(2.0), [0.9, 0.0], false)]
    {
        let measurements = DeviceMeasurements { utilization_ratio: own, ..memory(80, 30, 50) };
        let [a, b] = of_processes;
        let processes = [process(7, 1, a), process(8, 1, b)];
        let (applied, readings) = with_processes(&mut Bounds::default(), measurements, &processes);
        let ratios = applied.processes.iter().flatten().map(|it| it.utilization_ratio);
        let expected = of_processes.map(|ratio| is_measured.then_some(ratio));
        assert_eq!(ratios.collect::<Vec<_>>(), expected, "{own:?} {of_processes:?}");
        assert_eq!(readings.len(), usize::from(!is_measured), "only the impossible value counts");
    }
}

#[test]
fn an_impossible_reading_of_use_confirms_no_list_of_processes() {
    for (own, of_memory, is_confirmed) in [
        (Some(0.0), memory(80, 30, 50), true),
        (None, memory(80, 30, 50), true),
        (Some(2.55), memory(80, 30, 50), false),
        (Some(0.0), memory(80, 400, 50), false),
    ] {
        let measurements = DeviceMeasurements { utilization_ratio: own, ..of_memory };
        let (applied, _) = with_processes(&mut Bounds::default(), measurements, &[]);
        assert_eq!(applied.processes_known(), is_confirmed, "{own:?}");
    }
}

#[test]
fn a_part_has_no_more_memory_than_its_gpu_has_or_had_before_an_impossible_reading() {
    for (before, now, part_bytes, holds) in [
        (None, 80, 40, true),
        (None, 80, 80, true),
        (None, 80, 81, false),
        (None, u64::MAX, 40, false),
        (Some(80), u64::MAX, 40, true),
        (Some(80), u64::MAX, 81, false),
    ] {
        let mut bounds = Bounds::default();
        if let Some(total) = before {
            apply(&mut bounds, device(memory(total, 30, 50)), 0.0);
        }
        let part = DeviceSample { index: DeviceIndex::mig(0, 0), ..device(memory(part_bytes, 1, 1)) };
        let mut sample = GpuSample { devices: vec![device(memory(now, 30, 50)), part], ..GpuSample::default() };
        bounds.apply(&mut sample, 0.0);
        let part = &sample.devices[1];
        let known = (part.measurements.memory.is_some(), part.processes_known());
        assert_eq!(known, (holds, holds), "{part_bytes} of {now}, before {before:?}");
    }
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
fn an_impossible_limit_allows_no_more_than_the_limit_before() {
    let drawn = |limit: Option<f64>, joules| DeviceMeasurements {
        power_watts: Some(600.0),
        power_limit_watts: limit,
        energy_joules: Some(joules),
        ..DeviceMeasurements::default()
    };
    for impossible in [-1.0, 30_001.0, f64::NAN] {
        // No limit is known from before.
        let mut bounds = Bounds::default();
        apply(&mut bounds, device(drawn(None, 1e8)), 0.0);
        let (applied, readings) = apply(&mut bounds, device(drawn(Some(impossible), 1e8 + 6e3)), 10.0);
        assert_eq!((applied.measurements.power_watts, applied.measurements.energy_joules), (None, None));
        assert_eq!(readings, ["power_limit", "power", "energy"]);

        let mut bounds = Bounds::default();
        apply(&mut bounds, device(drawn(Some(500.0), 1e8)), 0.0);
        let (applied, readings) = apply(&mut bounds, device(drawn(Some(impossible), 1e8 + 6e3)), 10.0);
        assert_eq!(applied.measurements.energy_joules, Some(1e8 + 6e3));
        assert_eq!(readings, ["power_limit"]);
        assert_eq!(apply(&mut bounds, device(drawn(Some(impossible), 1e8 + 2e5)), 20.0).1, ["power_limit", "energy"]);
    }
    // No limit.
    assert_eq!(apply(&mut Bounds::default(), device(drawn(Some(0.0), 1e8)), 0.0).1, ["power_limit"]);
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
        let processes: Vec<GpuProcess> = amounts.iter().map(|gibibytes| process(7, gibibytes * GIB, 0.5)).collect();
        let of_memory = memory(80 * GIB, used_bytes, GIB);
        let (device, distrusted) = with_processes(&mut Bounds::default(), of_memory, &processes);
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
