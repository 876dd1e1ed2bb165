//! The two ways to a scenario, directly and through NVML, tell the same.

use std::time::{Duration, Instant};

use genv_core::gpu::{GpuError, GpuSample, GpuSource};
use genv_core::sources::{GpuSourceKind, SourceOptions};

use crate::driver::Scenario;
use crate::values::{NAMES, STEADY};

/// Everything of [`STEADY`], beside a split GPU and one that refuses `refused` of itself.
fn scenario(refused: &str) -> String {
    STEADY.replace(
        "  processes:\n",
        &format!(
            "  - memory: 80gi
    mig: [{{profile: 3g.40gb, memory: 40gi}}, {{profile: 4g.40gb, memory: 40gi}}]
    faults: [{{not_supported: [{refused}]}}]
  - {{memory: 24gi, fans: [0.29, 0.5], faults: [{{not_supported: [{refused}]}}]}}
  - {{name: NVIDIA GeForce RTX 3090, memory: 24gi, ecc: {{enabled: false}}}}
  processes:
  - {{pid: 90, user: alice, devices: [{{index: \"1:0\", memory: 1gi}}, {{index: 2, memory: 2gi, utilization: 0.29}}]}}
  - {{pid: 80, user: alice, type: graphics, devices: [{{index: \"1:1\", memory: 3gi}}, {{index: 2, memory: 4gi}}]}}
  - {{pid: 85, user: alice, type: compute_and_graphics, devices: [{{index: 2, memory: 5gi, utilization: 0.5}}]}}
"
        ),
    )
}

/// A source of the scenario's GPUs.
fn source(scenario: &Scenario, gpu: GpuSourceKind) -> Box<dyn GpuSource> {
    let options = SourceOptions {
        gpu,
        nvml_library: Some(
            scenario
                .simulation
                .library_folder()
                .join("libnvidia-ml.so.1"),
        ),
        scenario: Some(scenario.simulation.scenario()),
        ..SourceOptions::default()
    };
    options.open().expect("the sources open").swap_remove(0).gpu
}

/// One sample by each way: NVML's, then the engine's.
fn samples(scenario: &Scenario) -> [Result<GpuSample, GpuError>; 2] {
    [GpuSourceKind::Nvml, GpuSourceKind::Simulated].map(|gpu| source(scenario, gpu).sample())
}

/// Sorts what has no order, and takes out what changes from moment to moment: energy, which is returned.
fn steady(sample: &mut GpuSample) -> Vec<Option<f64>> {
    for device in &mut sample.devices {
        if let Some(processes) = &mut device.processes {
            processes.sort_unstable_by_key(|process| process.pid);
        }
    }
    let devices = sample.devices.iter_mut();
    devices
        .map(|device| device.measurements.energy_joules.take())
        .collect()
}

#[test]
fn both_ways_tell_the_same_whatever_the_driver_refuses() {
    for refused in NAMES {
        let scenario = Scenario::new(&scenario(refused));
        let [mut through_nvml, mut direct] =
            samples(&scenario).map(|sample| sample.expect("the driver answers"));
        let energies = (steady(&mut through_nvml), steady(&mut direct));
        for (through_nvml, direct) in through_nvml.devices.iter().zip(&direct.devices) {
            assert_eq!(through_nvml, direct, "without {refused}");
        }
        assert_eq!(through_nvml, direct, "without {refused}");
        for (through_nvml, direct) in energies.0.into_iter().zip(energies.1) {
            assert_eq!(
                through_nvml.is_some(),
                direct.is_some(),
                "without {refused}"
            );
            // Both read a clock of their own, and 400 W is the most that a device here draws.
            let apart = (through_nvml.unwrap_or_default() - direct.unwrap_or_default()).abs();
            assert!(apart < 400.0 * 60.0, "{apart} J");
        }
    }
}

#[test]
fn both_ways_tell_of_a_lost_gpu_and_of_a_driver_that_is_gone() {
    let text = scenario("fans");
    let scenario = Scenario::new(&text.replace("{not_supported: [fans]}", "{lost: true}"));
    let [through_nvml, direct] =
        samples(&scenario).map(|sample| sample.expect("the driver answers"));
    let lost = |sample: &GpuSample| -> Vec<_> {
        sample
            .devices
            .iter()
            .map(|device| (device.index.gpu, device.lost))
            .filter(|(_, lost)| *lost)
            .collect()
    };
    let mut gpus = lost(&direct);
    gpus.dedup();
    assert_eq!(gpus, [(1, true), (2, true)]);
    assert_eq!(lost(&through_nvml), gpus);

    scenario
        .simulation
        .rewrite(&(text + "  faults: [{init: driver_not_loaded}]\n"));
    for sample in samples(&scenario) {
        assert!(
            matches!(sample, Err(GpuError::Driver { call, .. }) if call.starts_with("nvmlInit")),
            "{sample:?}"
        );
    }
}

#[test]
fn both_ways_tell_of_xid_errors() {
    let every_second = "    pcie_replays: 7\n    xid: [{xid: 79, every: 1s}]\n";
    let scenario = Scenario::new(&scenario("fans").replace("    pcie_replays: 7\n", every_second));
    for kind in [GpuSourceKind::Nvml, GpuSourceKind::Simulated] {
        let mut gpu = source(&scenario, kind);
        assert_eq!(
            gpu.sample().expect("the driver answers").xid_events,
            [],
            "nobody has watched yet"
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        let event = loop {
            if let Some(event) = gpu.sample().expect("the driver answers").xid_events.pop() {
                break event;
            }
            assert!(Instant::now() < deadline, "no XID error was told");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!((event.index.gpu, event.xid), (0, 79));
    }
}
