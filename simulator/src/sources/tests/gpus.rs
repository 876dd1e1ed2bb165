//! The values of devices from a simulated driver.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread;

use genv_core::gpu::{DeviceSample, GpuProcess};
use genv_core::model::{DeviceIndex, DeviceMeasurements, DeviceMemory, EccErrors, ProcessType};

use super::*;
use crate::nvml::{Measurement, ThrottleReason};

#[test]
fn every_measurement_of_a_device_is_told() {
    let text = "
version: 1
hosts:
  - name: gpu01
    devices:
      - {name: NVIDIA A100, uuid: GPU-1, memory: 40gi, memory_reserved: 1gi, utilization: 0.29, encoder: 0.1, decoder: 0.2,
         temperature: {idle: 30, max: 80}, power: {idle: 100, max: 400}, power_limit: 300, fans: [0.4], throttled: [hw_slowdown],
         ecc: {corrected: 3, uncorrected: 1}, pcie_replays: 2}
    processes: [{pid: 7, devices: [{index: 0, memory: 8gi, utilization: 0.28}]}]
";
    let sample = Stand::new(text).sample(10.0);
    let named = |pairs: &[(&str, f64)]| {
        Arc::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<BTreeMap<_, _>>())
    };
    let throttled = ThrottleReason::ALL.map(|it| (it.name().to_owned(), it.name() == "hw_slowdown"));
    let process = GpuProcess {
        pid: 7,
        process_type: ProcessType::Compute,
        memory_used_bytes: Some(8 << 30),
        utilization_ratio: Some(0.28),
    };
    let expected = DeviceSample {
        lost: false,
        name: Some("NVIDIA A100".to_owned()),
        minor: Some(0),
        measurements: DeviceMeasurements {
            utilization_ratio: Some(0.29),
            memory_controller_busy_ratio: Some(0.17),
            encoder_utilization_ratio: Some(0.1),
            decoder_utilization_ratio: Some(0.2),
            memory: Some(DeviceMemory {
                total_bytes: 40 << 30,
                used_bytes: 8 << 30,
                free_bytes: 31 << 30,
                reserved_bytes: Some(1 << 30),
            }),
            temperature_celsius: Some(45.0),
            temperature_limits_celsius: named(&[
                ("gpu_max", 87.0),
                ("memory_max", 95.0),
                ("shutdown", 95.0),
                ("slowdown", 92.0),
            ]),
            power_watts: Some(158.0),
            power_limit_watts: Some(300.0),
            energy_joules: Some(1580.0),
            clocks_hertz: named(&[("graphics", 1.41e9), ("memory", 1.593e9), ("sm", 1.41e9), ("video", 1.275e9)]),
            fan_speed_ratios: [(0, 0.4)].into(),
            throttled: Some(Arc::new(throttled.into())),
            ecc_errors: EccErrors { corrected: Some(3), uncorrected: Some(1) },
            pcie_replays: Some(2),
        },
        processes: Some(vec![process]),
        lists_answered: true,
        ..DeviceSample::lost(DeviceIndex::gpu(0), "GPU-1".to_owned())
    };
    assert_eq!(sample.devices, [expected]);
    assert_eq!(
        (sample.driver_version.as_deref(), sample.session, &sample.xid_events[..]),
        (Some("550.163.01"), 0, &[][..])
    );
}

#[test]
fn each_measurement_can_be_missing_alone() {
    let told = |not_supported: &str| {
        let text = format!(
            "version: 1\nhosts: [{{devices: [{{fans: [1], xid: [{{xid: 13, every: 5s}}], faults: [{{not_supported: [{not_supported}], during: {{from: 1s}}}}]}}], \
             processes: [{{pid: 7, devices: [{{index: 0, memory: 1gi}}]}}]}}]"
        );
        let mut stand = Stand::new(&text);
        stand.sample(0.0);
        stand.sample(10.0)
    };
    let whole = told("");
    assert_eq!(whole.xid_events.len(), 2);
    type Clear = fn(&mut GpuSample);
    let clear: [(&str, Clear); 21] = [
        ("name", |s| s.devices[0].name = None),
        ("minor", |s| s.devices[0].minor = None),
        ("utilization", |s| {
            s.devices[0].measurements.utilization_ratio = None;
            s.devices[0].measurements.memory_controller_busy_ratio = None;
        }),
        ("encoder", |s| s.devices[0].measurements.encoder_utilization_ratio = None),
        ("decoder", |s| s.devices[0].measurements.decoder_utilization_ratio = None),
        ("memory", |s| s.devices[0].measurements.memory = None),
        ("memory_reserved", |s| {
            let memory = s.devices[0].measurements.memory.as_mut().unwrap();
            memory.used_bytes += memory.reserved_bytes.take().unwrap();
        }),
        ("temperature", |s| s.devices[0].measurements.temperature_celsius = None),
        ("temperature_limits", |s| s.devices[0].measurements.temperature_limits_celsius = Arc::default()),
        ("power", |s| s.devices[0].measurements.power_watts = None),
        ("power_limit", |s| s.devices[0].measurements.power_limit_watts = None),
        ("energy", |s| s.devices[0].measurements.energy_joules = None),
        ("clocks", |s| s.devices[0].measurements.clocks_hertz = Arc::default()),
        ("fans", |s| s.devices[0].measurements.fan_speed_ratios.clear()),
        ("throttled", |s| s.devices[0].measurements.throttled = None),
        ("ecc", |s| s.devices[0].measurements.ecc_errors = EccErrors::default()),
        ("pcie_replays", |s| s.devices[0].measurements.pcie_replays = None),
        ("processes", |s| {
            s.devices[0].processes = None;
            s.devices[0].lists_answered = false;
        }),
        ("process_memory", |s| s.devices[0].processes.as_mut().unwrap()[0].memory_used_bytes = None),
        ("process_utilization", |s| s.devices[0].processes.as_mut().unwrap()[0].utilization_ratio = None),
        ("xid_events", |s| s.xid_events.clear()),
    ];
    assert_eq!(clear.len(), Measurement::ALL.len());
    for (name, clear) in clear {
        let mut expected = whole.clone();
        clear(&mut expected);
        assert_ne!(expected, whole, "{name}");
        assert_eq!(told(name), expected, "{name}");
    }
}

#[test]
fn a_split_gpu_is_listed_before_its_parts_which_have_its_processes() {
    let text = "
version: 1
hosts:
  - devices: [{memory: 80gi, memory_reserved: 0, mig: [{profile: 3g.40gb, memory: 40gi}, {profile: 1g.10gb, memory: 10gi}]}]
    processes: [{pid: 7, type: graphics, devices: [{index: \"0:1\", memory: 4gi, utilization: 0.5}]}]
";
    let devices = Stand::new(text).sample(0.0).devices;
    let listed: Vec<_> = devices
        .iter()
        .map(|device| {
            let memory = device.measurements.memory.unwrap();
            let utilization = device.measurements.utilization_ratio;
            let pids: Vec<_> = device.processes.iter().flatten().map(|p| p.pid).collect();
            (device.index.to_string(), device.mig_parent, memory.used_bytes >> 30, utilization, pids)
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("0".to_owned(), true, 4, None, vec![]),
            ("0:0".to_owned(), false, 0, None, vec![]),
            ("0:1".to_owned(), false, 4, None, vec![7]),
        ]
    );
    assert_eq!(devices[2].profile.as_deref(), Some("1g.10gb"));
    assert_eq!(devices[2].name.as_deref(), Some("NVIDIA H100 80GB HBM3 MIG 1g.10gb"));
    let process = devices[2].processes.as_ref().unwrap()[0];
    assert_eq!((process.process_type, process.utilization_ratio), (ProcessType::Graphics, None));
    // What its parts do costs power.
    assert_eq!(devices[0].measurements.power_watts, Some(180.0));
}

#[test]
fn compute_instances_of_one_gpu_instance_share_its_memory_and_an_empty_one_uses_some() {
    let text = "
version: 1
hosts:
  - devices:
      - memory: 140gi
        memory_reserved: 0
        mig:
          - {profile: 1c.3g.71gb, memory: 71424mi, gpu_instance: 2}
          - {profile: 2c.3g.71gb, memory: 71424mi, gpu_instance: 2}
          - {profile: 1g.18gb, memory: 16gi}
    processes: [{pid: 7, devices: [{index: \"0:1\", memory: 16890mi}]}]
";
    let devices = Stand::new(text).sample(0.0).devices;
    let listed: Vec<_> = devices
        .iter()
        .map(|device| {
            let used_mi = device.measurements.memory.unwrap().used_bytes >> 20;
            (device.gpu_instance, used_mi, device.processes.as_ref().map(Vec::len))
        })
        .collect();
    let expected = [
        (None, 16_890 + 26 + 9, Some(0)),
        (Some(2), 16_890 + 26, Some(0)),
        (Some(2), 16_890 + 26, Some(1)),
        (Some(3), 9, Some(0)),
    ];
    assert_eq!(listed, expected);
}

#[test]
fn a_lost_device_has_nothing_but_its_name_and_comes_back() {
    let text = "version: 1\nhosts: [{devices: [{count: 2, mig: [{profile: p, memory: 1gi}], faults: [{lost: true, during: {from: 5s, until: 6s}}]}]}]";
    let mut stand = Stand::new(text);
    let uuids: Vec<_> = stand.sample(0.0).devices.into_iter().map(|d| d.uuid).collect();
    let lost = stand.sample(5.0).devices;
    let expected: Vec<_> = [DeviceIndex::gpu(0), DeviceIndex::mig(0, 0), DeviceIndex::gpu(1), DeviceIndex::mig(1, 0)]
        .into_iter()
        .zip(&uuids)
        .map(|(index, uuid)| DeviceSample::lost(index, uuid.to_owned()))
        .collect();
    assert_eq!(lost, expected);
    assert!(stand.sample(6.0).devices.iter().all(|device| !device.lost));
}

#[test]
fn a_driver_that_is_not_there_or_reloaded_is_an_error_until_it_is_back() {
    let text = "version: 1\nhosts: [{devices: [{}], faults: [{init: driver_not_loaded, during: {from: 5s, until: 6s}}, {reload: 1, during: {from: 10s}}]}]";
    let mut stand = Stand::new(text);
    assert_eq!(stand.sample(0.0).devices.len(), 1);
    stand.set(5.0);
    let error = stand.host.gpu.sample().unwrap_err();
    assert_eq!(error.to_string(), "nvmlInit_v2 failed: the NVIDIA driver is not loaded");
    assert_eq!(stand.sample(6.0).devices.len(), 1);
    stand.set(10.0);
    let error = stand.host.gpu.sample().unwrap_err();
    assert_eq!(error.to_string(), "nvmlDeviceGetCount_v2 failed: NVML was not initialized");
    assert_eq!(stand.sample(10.0).devices.len(), 1);
    assert_eq!(stand.sample(11.0).devices.len(), 1);
}

#[test]
fn a_hanging_call_blocks_until_it_is_over() {
    let text = "version: 1\nhosts: [{devices: [{faults: [{hang: nvmlDeviceGetTemperature, during: {from: 5s, until: 60s}}]}]}]";
    let mut stand = Stand::new(text);
    stand.set(5.0);
    let now = Arc::clone(&stand.now);
    let looks = Arc::clone(&stand.looks);
    let (sampled, samples) = channel();
    let thread = thread::spawn(move || sampled.send(stand.host.gpu.sample()).unwrap());
    // Looking at the clock again and again is how it waits.
    while looks.load(Ordering::SeqCst) < 4 {
        thread::yield_now();
    }
    assert!(samples.try_recv().is_err(), "a call that hangs returned");
    *now.lock().unwrap() += Duration::from_secs(55);
    assert_eq!(samples.recv().unwrap().unwrap().devices.len(), 1);
    thread.join().unwrap();
}

#[test]
fn no_simulated_device_at_all_is_no_error() {
    assert_eq!(Stand::of(Engine::idle_devices(0).unwrap()).sample(1.0).devices, []);
}

#[test]
fn a_host_that_was_taken_out_of_the_file_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lab.yaml");
    std::fs::write(&path, "version: 1\nhosts: [{name: a}]").unwrap();
    let mut stand = Stand::of(Engine::open(&path).unwrap());
    stand.sample(0.0);
    std::fs::write(&path, "version: 1\nhosts: [{name: b}]").unwrap();
    let error = stand.host.gpu.sample().unwrap_err();
    insta::assert_snapshot!(error, @"the scenario has no host a any more: put it back, or restart this program");
    assert!(stand.host.state.read().is_err());
}
