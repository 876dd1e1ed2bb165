//! Every value, and each of them refused, beside what the scenario's own source tells without NVML:
//! `simulator/src/sources/tests/gpus.rs` compares that with numbers.

use std::time::{Duration, Instant};

use genv_core::gpu::{GpuSample, GpuSource as _};
use genv_simulator::{GpuSourceKind, Measurement, SourceOptions};

use crate::nvml_source::stage::{PATIENCE, Stage, alone, scenario, source};

/// What the scenario means, told without NVML.
pub(crate) fn simulated(stage: &Stage) -> GpuSample {
    let options =
        SourceOptions { gpu: GpuSourceKind::Simulated, scenario: Some(stage.0.clone()), ..SourceOptions::default() };
    let mut hosts = options.open().expect("the scenario is good");
    without_energy(hosts[0].gpu.sample().expect("nothing fails in it"))
}

/// Of the energy counters, which rise all the time, only whether there is one. Only NVML has calls that fail.
pub(crate) fn without_energy(mut sample: GpuSample) -> GpuSample {
    sample.withheld.clear();
    for device in &mut sample.devices {
        device.measurements.energy_joules = device.measurements.energy_joules.map(|_| 0.0);
    }
    sample
}

#[test]
fn each_value_is_read_as_it_is_meant_and_each_unsupported_call_takes_away_that_one() {
    alone(&scenario("", ""), |stage| {
        let questions = Measurement::ALL.into_iter().filter(|measurement| *measurement != Measurement::XidEvents);
        let questions = questions.map(|measurement| serde_json::to_string(&measurement).unwrap());
        for question in std::iter::once(String::new()).chain(questions) {
            stage.rewrite(&scenario(&format!("faults: [{{not_supported: [{question}]}}]"), ""));
            let wanted = simulated(stage);
            // A new source each time: what stays for a device's lifetime is not asked again.
            let end = Instant::now() + PATIENCE;
            loop {
                let read = without_energy(source().sample().unwrap());
                if read == wanted {
                    break;
                }
                assert!(Instant::now() < end, "{question}: {:#?}", read.devices[0]);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}
