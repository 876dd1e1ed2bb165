//! A device's own utilization beside that of its processes.

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
        process.devices[0].utilization_ratio
    })
}

#[test]
fn a_process_that_shows_less_than_is_unexplained_twice_is_unmeasured() {
    for (device, told, expected) in [
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
        used(&mut lab, device, told);
        assert_eq!(shown(&lab.after(1.0)), told, "once: {device}");
        used(&mut lab, device, told);
        assert_eq!(shown(&lab.after(1.0)), expected, "{device} {told:?}");
    }
}

#[test]
fn a_sample_that_is_explained_now_and_then_does_not_put_off_those_that_are_not() {
    let mut lab = Lab::new();
    let mut unmeasured = 0;
    for n in 0..30 {
        let told = if n % 5 == 4 { 0.95 } else { 0.01 };
        used(&mut lab, 0.95, [Some(told), Some(0.0)]);
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
