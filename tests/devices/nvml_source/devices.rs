//! Devices that are lost, split, added and replaced.

use genv_core::gpu::{GpuProcess, GpuSource as _};
use genv_core::model::{DeviceIndex, DeviceMeasurements, ProcessType};

use crate::nvml_source::stage::{alone, eventually, scenario, source};

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
