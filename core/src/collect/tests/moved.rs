//! GPUs that change their index while the machine runs.

use super::lab::{Lab, UNIX, alice_computes};
use super::*;

/// The use of device 0 by alice's environment, and her seconds there: busy, idle, unmeasured.
fn alice(snapshot: &Snapshot) -> (Option<f64>, [f64; 3]) {
    let used = &snapshot.environments[0].devices[0];
    let mut of_all = snapshot.counters.user_device_use.iter();
    let seconds = of_all.find(|it| it.username == "alice");
    let seconds = seconds.unwrap().device_seconds.unwrap();
    let seconds = [seconds.busy, seconds.idle, seconds.unmeasured];
    (used.utilization_ratio.get(), seconds)
}

#[test]
fn the_use_of_a_moved_attachment_is_not_measured_by_the_gpu_at_the_index_now() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.after(0.0);
    let here = lab.gpu.clone();
    // Alice uses a quarter of the device.
    assert_eq!(alice(&lab.after(10.0)), (Some(0.25), [2.5, 0.0, 0.0]));
    // GPU 0 was taken out: the unused GPU 1 is at index 0.
    let mut moved = gpu(1);
    moved.index = DeviceIndex::gpu(0);
    moved.measurements.utilization_ratio = Some(0.0);
    moved.measurements.energy_joules = Some(500.0);
    lab.gpu = Some(sample(vec![moved]));
    for n in 0..5 {
        let snapshot = lab.after(10.0);
        assert_eq!(alice(&snapshot).0, None, "{n}");
        assert!(device(&snapshot, 0).attachments[0].moved);
    }
    lab.gpu = here;
    lab.after(10.0);
    let snapshot = lab.after(10.0);
    assert_eq!(alice(&snapshot), (Some(0.25), [5.0, 0.0, 15.0]));
    assert!(!device(&snapshot, 0).attachments[0].moved);

    // A new attachment holds the GPU that is at the index now.
    let mut moved = gpu(1);
    moved.index = DeviceIndex::gpu(0);
    lab.gpu = Some(sample(vec![moved]));
    lab.after(10.0);
    let state = lab.state.as_mut().unwrap();
    state.devices[0].attachments[0].attached_timestamp_seconds = Some(UNIX + 99.0);
    let snapshot = lab.after(10.0);
    assert!(!device(&snapshot, 0).attachments[0].moved);
}
