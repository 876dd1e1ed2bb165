//! Devices that are lost, split, added and replaced.

use std::time::{Duration, Instant};

use genv_core::gpu::{GpuError, GpuSample, GpuSource as _};
use genv_core::model::DeviceIndex;

use crate::nvml_source::stage::{PATIENCE, alone, eventually, scenario, source};
use crate::nvml_source::values::{simulated, without_energy};

#[test]
fn a_lost_device_hides_no_other_and_comes_back() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        source.sample().unwrap();
        for faults in ["faults: [{lost: true}]", ""] {
            stage.rewrite(&scenario(faults, ""));
            let wanted = simulated(stage);
            eventually(&mut source, |sample| (without_energy(sample.clone().unwrap()) == wanted).then_some(()));
        }
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
fn a_device_that_is_added_replaced_or_split_anew_is_noticed() {
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
        let split = added.replace("profile: 1g.10gb, memory: 10gi", "profile: 2g.20gb, memory: 20gi");
        stage.rewrite(&split.replace("000000000032", "000000000033"));
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
    let calls = "[nvmlDeviceGetName, nvmlDeviceGetMinorNumber, nvmlDeviceGetNumFans, \
                 nvmlDeviceGetTemperatureThreshold, nvmlDeviceGetGpuInstanceId]";
    let is_whole = |sample: &Result<GpuSample, GpuError>| {
        let devices = &sample.as_ref().unwrap().devices;
        let (first, part) = (&devices[0], &devices[3]);
        // The memory of an unknown GPU instance is nobody's.
        assert_eq!(part.gpu_instance.is_some(), part.measurements.memory.is_some());
        let limits = &first.measurements.temperature_limits_celsius;
        part.gpu_instance == Some(1)
            && first.name.is_some()
            && first.minor == Some(4)
            && first.measurements.fan_speed_ratios.len() == 2
            && limits.get("shutdown") == Some(&95.0)
    };
    alone(&scenario("", ""), |stage| {
        for wrong in ["error: unknown", "error: timeout", "number: 4294967295"] {
            stage.rewrite(&scenario("", &format!("faults: [{{wrong: {calls}, {wrong}}}]")));
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
