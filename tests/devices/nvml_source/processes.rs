//! Lists of processes that grow, and their use where it cannot be read.

use genv_core::gpu::{GpuError, GpuSample, GpuSource as _};

use crate::nvml_source::stage::{alone, eventually, scenario, source};

#[test]
fn processes_that_start_between_two_calls_are_listed() {
    let many = |count: u32, host: &str| {
        let mut text = scenario("", host);
        for pid in 10_000..10_000 + count {
            text += &format!(
                "      - {{pid: {pid}, user: alice, comm: worker, devices: [{{index: 1, memory: 1mi, utilization: 0}}]}}\n"
            );
        }
        text
    };
    // 127 processes fit into the first buffer; the three more that have come by the second call do not.
    alone(&many(125, "faults: [{insufficient_size: 3}]"), |stage| {
        let mut source = source();
        let processes = |sample: &Result<GpuSample, GpuError>| {
            sample.as_ref().unwrap().devices[1].processes.as_ref().unwrap().len()
        };
        assert_eq!(processes(&source.sample()), 127);
        // More than the buffer has room for, over and over.
        for count in [500, 5_000, 20] {
            stage.rewrite(&many(count, ""));
            eventually(&mut source, |sample| (processes(sample) == count as usize + 2).then_some(()));
        }
    });
}

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
