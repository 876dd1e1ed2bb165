//! Devices that are lost, split, added and replaced.

use std::time::{Duration, Instant};

use genv_core::gpu::{GpuError, GpuProcess, GpuSample, GpuSource as _};
use genv_core::model::{DeviceIndex, DeviceMeasurements, ProcessType};

use crate::nvml_source::stage::{PATIENCE, alone, eventually, scenario, source};

#[test]
fn a_lost_device_hides_no_other_and_comes_back() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        let whole = source.sample().unwrap();

        stage.rewrite(&scenario("faults: [{lost: true}]", ""));
        let sample = eventually(&mut source, |sample| {
            let sample = sample.as_ref().unwrap();
            sample.devices[0].lost.then(|| sample.clone())
        });
        let lost = &sample.devices[0];
        assert_eq!(lost.index, DeviceIndex::gpu(0));
        assert_eq!(lost.uuid, whole.devices[0].uuid);
        assert_eq!(lost.measurements, DeviceMeasurements::default());
        assert_eq!((&lost.name, &lost.processes), (&None, &None));
        assert_eq!(sample.devices.len(), whole.devices.len());
        assert!(sample.devices[1..].iter().all(|it| !it.lost && it.processes.is_some()));

        stage.rewrite(&scenario("", ""));
        eventually(&mut source, |sample| {
            let back = &sample.as_ref().unwrap().devices[0];
            (back.name == whole.devices[0].name && back.measurements.memory.is_some()).then_some(())
        });
    });
}

#[test]
fn a_lost_device_keeps_its_uuid_when_the_driver_is_reloaded() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        let uuid = source.sample().unwrap().devices[0].uuid.clone();
        stage.rewrite(&scenario("faults: [{lost: true}]", "faults: [{reload: 1}]"));
        eventually(&mut source, |sample| sample.is_err().then_some(()));
        let lost = source.sample().unwrap().devices.swap_remove(0);
        assert!(lost.lost);
        assert_eq!(lost.uuid, uuid);
    });
}

#[test]
fn a_device_that_is_added_or_replaced_is_noticed() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        assert_eq!(source.sample().unwrap().devices.len(), 5);
        let replaced = scenario("", "")
            .replace("GPU-00000000-0000-0000-0000-000000000002", "GPU-00000000-0000-0000-0000-000000000009")
            .replace("NVIDIA RTX A4000", "NVIDIA L40S");
        stage.rewrite(&replaced);
        eventually(&mut source, |sample| {
            let second = &sample.as_ref().unwrap().devices[1];
            (second.uuid.ends_with('9') && second.name.as_deref() == Some("NVIDIA L40S")).then_some(())
        });
        let added = replaced.replace("    processes:\n", "      - {name: NVIDIA T4, memory: 16gi}\n    processes:\n");
        stage.rewrite(&added);
        eventually(&mut source, |sample| {
            let last = sample.as_ref().unwrap().devices.last().unwrap();
            (last.index == DeviceIndex::gpu(3) && last.name.as_deref() == Some("NVIDIA T4")).then_some(())
        });
    });
}

#[test]
fn mig_devices_have_the_memory_and_the_processes_of_their_gpu() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        let devices = source.sample().unwrap().devices;
        let parent = &devices[2];
        assert!(parent.mig_parent);
        assert_eq!(parent.processes.as_deref(), Some(&[][..]));
        assert_eq!(parent.measurements.utilization_ratio, None);
        assert!(parent.measurements.power_watts.is_some());

        let told: Vec<_> =
            devices[3..].iter().map(|it| (it.index.to_string(), it.profile.as_deref(), it.uuid.as_str())).collect();
        assert_eq!(
            told,
            [
                ("2:0".to_owned(), Some("3g.40gb"), "MIG-00000000-0000-0000-0000-000000000031"),
                ("2:1".to_owned(), Some("1g.10gb"), "MIG-00000000-0000-0000-0000-000000000032"),
            ]
        );
        let second = &devices[4];
        assert!(!second.mig_parent);
        assert_eq!(second.measurements.memory.unwrap().total_bytes, 10 << 30);
        assert_eq!(second.measurements.memory.unwrap().used_bytes, 5 << 30);
        assert_eq!(
            second.processes.as_deref().unwrap(),
            [GpuProcess {
                pid: 4004,
                process_type: ProcessType::Compute,
                memory_used_bytes: Some(5 << 30),
                utilization_ratio: None,
            }]
        );

        let mut split = scenario("", "").replace("profile: 1g.10gb, memory: 10gi", "profile: 2g.20gb, memory: 20gi");
        split = split.replace("000000000032", "000000000033");
        stage.rewrite(&split);
        eventually(&mut source, |sample| {
            let second = &sample.as_ref().unwrap().devices[4];
            let profile = second.profile.as_deref() == Some("2g.20gb");
            (profile && second.measurements.memory.unwrap().total_bytes == 20 << 30).then_some(())
        });
    });
}

#[test]
fn a_split_device_whose_parts_cannot_all_be_asked_is_not_free() {
    let split = |fault: &str| {
        format!(
            "version: 1\nhosts:\n- environments: []\n\
             \x20 devices: [{{mig: [{{profile: 3g.40gb, memory: 40gi}}], faults: [{fault}]}}]\n\
             \x20 processes: [{{pid: 4001, devices: [{{index: \"0:0\", memory: 1gi}}]}}]\n"
        )
    };
    alone(&split(""), |stage| {
        let mut source = source();
        let is_on_part = |sample: &Result<GpuSample, GpuError>| {
            let part = sample.as_ref().unwrap().devices.get(1)?;
            (part.processes.as_ref()?.len() == 1).then_some(())
        };
        for (call, wrong) in [
            ("nvmlDeviceGetMigMode", "error: unknown"),
            ("nvmlDeviceGetMaxMigDeviceCount", "error: unknown"),
            ("nvmlDeviceGetMaxMigDeviceCount", "number: 4000000000"),
            ("nvmlDeviceGetMigDeviceHandleByIndex", "error: unknown"),
            ("nvmlDeviceGetMigDeviceHandleByIndex", "error: invalid_argument"),
            // The GPU seems to have no MIG devices.
            ("nvmlDeviceGetMigDeviceHandleByIndex", "error: not_found"),
            ("nvmlDeviceGetMaxMigDeviceCount", "number: 0"),
            ("nvmlDeviceGetComputeRunningProcesses", "error: no_permission"),
            ("nvmlDeviceGetGraphicsRunningProcesses", "count: 4000000000"),
        ] {
            eventually(&mut source, is_on_part);
            stage.rewrite(&split(&format!("{{wrong: {call}, {wrong}}}")));
            // Far longer than the simulated driver takes to look at its file.
            for _ in 0..50 {
                let devices = source.sample().unwrap().devices;
                let is_free =
                    devices.iter().all(|it| it.processes_known() && it.processes.as_ref().is_some_and(Vec::is_empty));
                assert!(!is_free, "{call}, {wrong}: {devices:#?}");
                std::thread::sleep(Duration::from_millis(10));
            }
            stage.rewrite(&split(""));
        }
        eventually(&mut source, is_on_part);
    });
}

#[test]
fn what_a_device_could_not_answer_at_first_is_asked_again() {
    let calls =
        "[nvmlDeviceGetName, nvmlDeviceGetMinorNumber, nvmlDeviceGetNumFans, nvmlDeviceGetTemperatureThreshold]";
    let is_whole = |sample: &Result<GpuSample, GpuError>| {
        let first = &sample.as_ref().unwrap().devices[0];
        let limits = &first.measurements.temperature_limits_celsius;
        first.name.is_some()
            && first.minor == Some(4)
            && first.measurements.fan_speed_ratios.len() == 2
            && limits.get("shutdown") == Some(&95.0)
    };
    alone(&scenario("", ""), |stage| {
        for wrong in ["error: unknown", "error: timeout", "number: 4294967295"] {
            stage.rewrite(&scenario(&format!("faults: [{{wrong: {calls}, {wrong}}}]"), ""));
            let end = Instant::now() + PATIENCE;
            let mut source = loop {
                let mut opened = source();
                if !is_whole(&opened.sample()) {
                    break opened;
                }
                assert!(Instant::now() < end, "the driver answers all");
                std::thread::sleep(Duration::from_millis(10));
            };
            stage.rewrite(&scenario("", ""));
            eventually(&mut source, |sample| is_whole(sample).then_some(()));
        }
    });
}
