//! The use of processes where it cannot be read.

use genv_core::gpu::{GpuError, GpuSample};

use crate::nvml_source::stage::{alone, eventually, scenario, source};

/// Faults of two calls, of which neither alone hides whether a process works.
const TOGETHER: [&str; 4] = [
    "{wrong: nvmlDeviceGetUtilizationRates, error: unknown}, {wrong: nvmlDeviceGetProcessUtilization, error: not_found}",
    "{wrong: nvmlDeviceGetUtilizationRates, number: 200}, {wrong: nvmlDeviceGetProcessUtilization, error: not_found}",
    "{wrong: nvmlDeviceGetUtilizationRates, error: unknown}, {wrong: nvmlDeviceGetProcessUtilization, number: 0}",
    "{wrong: nvmlDeviceGetUtilizationRates, number: 0}, {wrong: nvmlDeviceGetProcessUtilization, error: not_found}, \
     {wrong: nvmlDeviceGetMPSComputeRunningProcesses, error: unknown}",
];

#[test]
fn a_process_is_unmeasured_where_two_calls_hide_together_whether_it_works() {
    alone(&scenario("", ""), |stage| {
        let mut source = source();
        let ratio = |sample: &Result<GpuSample, GpuError>| {
            let processes = sample.as_ref().unwrap().devices[0].processes.as_ref();
            processes.unwrap()[0].utilization_ratio
        };
        for faults in TOGETHER {
            eventually(&mut source, |sample| (ratio(sample) == Some(0.25)).then_some(()));
            stage.rewrite(&scenario(&format!("faults: [{faults}]"), ""));
            eventually(&mut source, |sample| {
                let ratio = ratio(sample);
                assert!(ratio.is_none_or(|it| it == 0.25), "{ratio:?}: {faults}");
                ratio.is_none().then_some(())
            });
            stage.rewrite(&scenario("", ""));
        }
    });
}
