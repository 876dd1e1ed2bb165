//! The utilization of a device beside the utilization of its processes.

use super::lab::Lab;
use super::*;

/// Two processes of the first device, what each shows, and what the device shows.
fn used(lab: &mut Lab, device: f64, of_processes: [Option<f64>; 2]) {
    let first = lab.device(0);
    first.measurements.utilization_ratio = Some(device);
    let processes = [101, 102].into_iter().zip(of_processes);
    first.processes = Some(processes.map(|(pid, ratio)| on_gpu(pid, ratio)).collect());
}

fn shown(snapshot: &Snapshot) -> [Option<f64>; 2] {
    [101, 102].map(|pid| {
        let mut processes = snapshot.processes.iter();
        let process = processes.find(|it| it.pid == pid).unwrap();
        process.devices[0].utilization_ratio.get()
    })
}

#[test]
fn a_process_with_less_use_than_the_unexplained_part_of_two_samples_is_unmeasured() {
    for (device, reported, expected) in [
        (0.95, [Some(0.01), Some(0.0)], [None, None]),
        (0.95, [Some(0.6), Some(0.0)], [Some(0.6), None]),
        (0.95, [None, Some(0.0)], [None, None]),
        // 5 %, and what rounding takes from each.
        (0.08, [Some(0.0), Some(0.0)], [None, None]),
        (0.07, [Some(0.0), Some(0.0)], [Some(0.0), Some(0.0)]),
        (0.95, [Some(0.94), Some(0.0)], [Some(0.94), Some(0.0)]),
        // The device rests, and a process did something since the last sample.
        (0.0, [Some(0.3), Some(0.0)], [Some(0.3), Some(0.0)]),
    ] {
        let mut lab = Lab::new();
        used(&mut lab, device, reported);
        assert_eq!(shown(&lab.after(1.0)), reported, "once: {device}");
        used(&mut lab, device, reported);
        assert_eq!(shown(&lab.after(1.0)), expected, "{device} {reported:?}");
    }
}

#[test]
fn an_occasional_consistent_sample_does_not_reset_contradictory_ones() {
    let mut lab = Lab::new();
    let mut unmeasured = 0;
    for n in 0..30 {
        let reported = if n % 5 == 4 { 0.95 } else { 0.01 };
        used(&mut lab, 0.95, [Some(reported), Some(0.0)]);
        unmeasured += usize::from(shown(&lab.after(1.0))[0].is_none());
    }
    assert!(unmeasured >= 17, "{unmeasured} of 24");
    // And an hour of contradictions is over after two samples without.
    for _ in 0..2 {
        used(&mut lab, 0.2, [Some(0.2), Some(0.0)]);
        lab.after(1.0);
    }
    used(&mut lab, 0.9, [Some(0.2), Some(0.0)]);
    assert_eq!(shown(&lab.after(1.0)), [Some(0.2), Some(0.0)]);
}
