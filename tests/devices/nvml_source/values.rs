//! Every value, and each of them refused.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use genv_core::gpu::{DeviceSample, GpuProcess, GpuSource as _};
use genv_core::model::{DeviceIndex, DeviceMeasurements, EccErrors, ProcessType};
use genv_simulator::Measurement;
use genv_tests::nvml_sim::name_of;

use crate::nvml_source::stage::{PATIENCE, alone, scenario, source, take_energy};

#[test]
fn a_device_is_read_in_base_units() {
    alone(&scenario("", ""), |_| {
        let sample = source().sample().unwrap();
        assert_eq!(sample.driver_version.as_deref(), Some("550.163.01"));
        let first = &sample.devices[0];
        assert_eq!(first.index, DeviceIndex::gpu(0));
        assert_eq!(first.uuid, "GPU-00000000-0000-0000-0000-000000000001");
        assert_eq!(first.name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!(first.minor, Some(4));
        let names = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let reasons = [
            "applications_clocks_setting",
            "display_clock_setting",
            "hw_power_brake_slowdown",
            "hw_slowdown",
            "hw_thermal_slowdown",
            "sw_power_cap",
            "sw_thermal_slowdown",
            "sync_boost",
        ];
        let active = ["sw_power_cap", "hw_thermal_slowdown"];
        let read = &first.measurements;
        let memory = read.memory.unwrap();
        assert_eq!(memory.total_bytes, 80 << 30);
        assert_eq!(memory.reserved_bytes, Some(600 << 20));
        assert_eq!(memory.used_bytes, (30 << 30) + (100 << 20));
        assert_eq!(memory.free_bytes, memory.total_bytes - memory.used_bytes - (600 << 20));
        assert_eq!(
            *read,
            DeviceMeasurements {
                utilization_ratio: Some(0.37),
                memory_controller_busy_ratio: Some(0.21),
                encoder_utilization_ratio: Some(0.05),
                decoder_utilization_ratio: Some(0.11),
                memory: Some(memory),
                temperature_celsius: Some(61.0),
                temperature_limits_celsius: names(&[
                    ("shutdown", 95.0),
                    ("slowdown", 90.0),
                    ("memory_max", 105.0),
                    ("gpu_max", 87.0),
                ]),
                power_watts: Some(412.5),
                power_limit_watts: Some(700.0),
                energy_joules: read.energy_joules,
                clocks_hertz: names(&[("graphics", 1.98e9), ("sm", 1.975e9), ("memory", 2.619e9), ("video", 1.545e9),]),
                fan_speed_ratios: BTreeMap::from([(0, 0.3), (1, 0.42)]),
                throttled: Some(reasons.map(|it| (it.to_owned(), active.contains(&it))).into()),
                ecc_errors: EccErrors { corrected: Some(7), uncorrected: Some(1) },
                pcie_replays: Some(3),
            }
        );
        let process = |pid, process_type, memory, utilization| GpuProcess {
            pid,
            process_type,
            memory_used_bytes: Some(memory),
            utilization_ratio: Some(utilization),
        };
        assert_eq!(
            first.processes.as_deref().unwrap(),
            [
                process(4001, ProcessType::Compute, 30 << 30, 0.25),
                process(4002, ProcessType::Graphics, 100 << 20, 0.01),
            ]
        );
        assert_eq!(
            sample.devices[1].processes.as_deref().unwrap(),
            [
                process(4001, ProcessType::Compute, 2 << 30, 0.0),
                process(4003, ProcessType::ComputeAndGraphics, 4 << 30, 0.6),
            ]
        );
    });
}

/// Takes away what the answer to a question tells.
fn blank(device: &mut DeviceSample, question: &str) {
    let read = &mut device.measurements;
    let processes = device.processes.iter_mut().flatten();
    match question {
        "name" => device.name = None,
        "minor" => device.minor = None,
        "utilization" => {
            read.utilization_ratio = None;
            read.memory_controller_busy_ratio = None;
        }
        "encoder" => read.encoder_utilization_ratio = None,
        "decoder" => read.decoder_utilization_ratio = None,
        "memory" => read.memory = None,
        // The first version of the call counts what the driver holds as used.
        "memory_reserved" => {
            if let Some(memory) = &mut read.memory {
                memory.used_bytes += memory.reserved_bytes.take().unwrap_or(0);
            }
        }
        "temperature" => read.temperature_celsius = None,
        "temperature_limits" => read.temperature_limits_celsius.clear(),
        "power" => read.power_watts = None,
        "power_limit" => read.power_limit_watts = None,
        "energy" => read.energy_joules = None,
        "clocks" => read.clocks_hertz.clear(),
        "fans" => read.fan_speed_ratios.clear(),
        "throttled" => read.throttled = None,
        "ecc" => read.ecc_errors = EccErrors::default(),
        "pcie_replays" => read.pcie_replays = None,
        "processes" => device.processes = None,
        "process_memory" => processes.for_each(|it| it.memory_used_bytes = None),
        "process_utilization" => processes.for_each(|it| it.utilization_ratio = None),
        other => panic!("{other} is no question"),
    }
}

#[test]
fn each_unsupported_call_takes_away_that_one_value() {
    alone(&scenario("", ""), |stage| {
        let mut whole = source().sample().unwrap();
        assert_eq!(take_energy(&mut whole).iter().flatten().count(), 3);
        let questions =
            Measurement::ALL.into_iter().filter(|measurement| *measurement != Measurement::XidEvents).map(name_of);
        for question in questions {
            let question = question.as_str();
            let faults = format!("faults: [{{not_supported: [{question}]}}]");
            stage.rewrite(&scenario(&faults, ""));
            let mut wanted = whole.clone();
            blank(&mut wanted.devices[0], question);
            assert!(wanted != whole || question == "energy");
            // A new source each time: what stays for a device's lifetime is not asked again.
            let end = Instant::now() + PATIENCE;
            loop {
                let mut read = source().sample().unwrap();
                let energies = take_energy(&mut read);
                if read == wanted && energies[0].is_none() == (question == "energy") {
                    break;
                }
                assert!(Instant::now() < end, "{question}: {:#?}", read.devices[0]);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}
