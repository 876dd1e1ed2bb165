//! Lists of processes that grow, and their use between two sweeps.

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

#[test]
fn sweeps_closer_together_than_the_drivers_samples_show_processes_at_work() {
    alone(&scenario("", ""), |_| {
        let mut source = source();
        for _ in 0..20 {
            let sample = source.sample().unwrap();
            let processes = sample.devices[1].processes.as_deref().unwrap();
            assert_eq!(processes[1].utilization_ratio, Some(0.6));
        }
    });
}
