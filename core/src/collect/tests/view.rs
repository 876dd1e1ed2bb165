//! The snapshots of a host, with a clock that tests set.

use super::lab::{Lab, UNIX, alice_computes};
use super::*;
use crate::collect::CollectOptions;
use crate::model::Attribution;

#[test]
fn an_environment_is_shown_with_its_use_of_each_device() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.device(1).processes = Some(vec![on_gpu(101, Some(0.0))]);
    let snapshot = lab.after(10.0);

    assert_eq!(snapshot.processes.len(), 1);
    let process = &snapshot.processes[0];
    assert_eq!(process.attribution, Attribution::Environment { eid: "10".to_owned() });
    assert_eq!(process.username.as_deref(), Some("alice"));
    assert_eq!(process.devices.len(), 2);

    let environment = &snapshot.environments[0];
    assert_eq!(environment.username, "alice");
    assert_eq!(environment.members.len(), 1);
    let [held, used] = &environment.devices[..] else { panic!("{environment:?}") };
    assert!(held.attached);
    assert_eq!(held.memory_used_bytes, Some(GIB));
    assert_eq!(held.memory_capacity_bytes, Some(4 * GIB));
    assert_eq!(held.utilization_ratio, Some(0.25));
    assert_eq!(held.last_active_timestamp_seconds, Some(UNIX + 10.0));
    assert!(!used.attached);
    assert_eq!(used.memory_capacity_bytes, None);
    assert_eq!(used.last_active_timestamp_seconds, None);
    assert_eq!(device(&snapshot, 0).attachments[0].share_ratio, 0.25);
}

#[test]
fn an_environment_remembers_when_it_was_active_until_it_ends() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.after(10.0);
    lab.device(0).processes = Some(Vec::new());
    lab.device(0).measurements.utilization_ratio = Some(0.0);
    let idle = lab.after(10.0);
    let held = &idle.environments[0].devices[0];
    assert_eq!(held.last_active_timestamp_seconds, Some(UNIX + 10.0));
    assert_eq!((held.utilization_ratio.get(), held.memory_used_bytes.get()), (Some(0.0), Some(0)));

    let environments = lab.state.take();
    lab.state = Some(state(Vec::new(), Vec::new()));
    lab.after(10.0);
    lab.state = environments;
    let again = lab.after(10.0);
    assert_eq!(again.environments[0].devices[0].last_active_timestamp_seconds, None);
}

#[test]
fn shares_that_claim_more_than_a_device_are_scaled_to_it() {
    let mut lab = Lab::new();
    let mut environments = vec![environment("1", 1, &[100]), environment("2", 2, &[100]), environment("3", 3, &[100])];
    // It has no living member: it is not shown, and holds nothing.
    environments.push(environment("ended", 1, &[101]));
    let claims = [("1", None), ("2", Some(8 * GIB)), ("3", Some(8 * GIB)), ("3", None), ("ended", None)];
    lab.state = Some(state(environments, vec![attached(0, &claims), attached(1, &[("1", Some(64 * GIB))])]));
    lab.process(100, 1, Claim::Absent);
    let snapshot = lab.after(1.0);
    let shares = |index| -> Vec<f64> {
        let attachments = &device(&snapshot, index).attachments;
        attachments.iter().map(|attachment| attachment.share_ratio).collect()
    };
    assert_eq!(shares(0), [0.5, 0.25, 0.25]);
    assert_eq!(shares(1), [1.0]);
    let eids: Vec<&str> = snapshot.environments.iter().map(|it| it.eid.as_str()).collect();
    assert_eq!(eids, ["1", "2", "3"]);
}

#[test]
fn no_rounding_gives_out_more_than_a_device() {
    let mut lab = Lab::new();
    lab.process(100, 1, Claim::Absent);
    // The sum of nine ninths in binary is greater than 1.
    let eids: Vec<String> = (1..=9).map(|eid| eid.to_string()).collect();
    let claims: Vec<(&str, Option<u64>)> = eids.iter().map(|eid| (eid.as_str(), None)).collect();
    let environments = eids.iter().map(|eid| environment(eid, 1, &[100])).collect();
    lab.state = Some(state(environments, vec![attached(0, &claims)]));
    let snapshot = lab.after(1.0);
    let shares: f64 = device(&snapshot, 0).attachments.iter().map(|attachment| attachment.share_ratio).sum();
    assert_eq!(shares, 1.0);
}

#[test]
fn values_are_valid_up_to_the_maximum_age_and_are_then_withdrawn() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.after(10.0);
    lab.gpu = None;
    for _ in 0..3 {
        let snapshot = lab.after(10.0);
        assert!(device(&snapshot, 0).up);
        assert_eq!(snapshot.processes.len(), 1);
    }
    let snapshot = lab.after(10.0);
    let gone = device(&snapshot, 0);
    assert!(!gone.up);
    assert!(!gone.processes_measured);
    assert_eq!(gone.measurements, DeviceMeasurements::default());
    assert_eq!(gone.name.as_deref(), Some("Simulated"));
    // The state still shows its holder.
    assert_eq!(gone.attachments.len(), 1);
    assert_eq!(snapshot.processes, []);
    assert_eq!(snapshot.driver_version, None);
    let held = &snapshot.environments[0].devices[0];
    assert_eq!((held.memory_used_bytes.get(), held.utilization_ratio.get()), (None, None));
    assert_eq!(held.memory_capacity_bytes, Some(4 * GIB));
    // Nobody can tell what was done with the held time.
    let row = snapshot.counters.user_device_use.iter().find(|row| row.username == "alice").unwrap();
    let seconds = row.device_seconds.unwrap();
    assert!(seconds.unmeasured > 0.0, "{seconds:?}");
    assert_eq!((seconds.busy, seconds.idle), (0.0, 0.0));

    lab.gpu = Some(sample(vec![gpu(0)]));
    let back = lab.after(10.0);
    assert!(device(&back, 0).up);
    assert!(!device(&back, 1).up, "the driver does not list it any more");
}

#[test]
fn a_lost_device_stays_listed_without_values_and_comes_back() {
    let mut lab = Lab::new();
    lab.after(1.0);
    *lab.device(1) = lost(&gpu(1));
    let snapshot = lab.after(1.0);
    let gone = device(&snapshot, 1);
    assert!(!gone.up && device(&snapshot, 0).up);
    assert_eq!(gone.minor, Some(1));
    assert_eq!(gone.measurements, DeviceMeasurements::default());
    *lab.device(1) = gpu(1);
    assert!(device(&lab.after(1.0), 1).up);
}

#[test]
fn another_device_at_an_index_takes_the_place_of_the_old_one() {
    let mut lab = Lab::new();
    lab.after(1.0);
    lab.device(1).uuid = "GPU-new".to_owned();
    lab.device(1).name = None;
    let snapshot = lab.after(1.0);
    assert_eq!(snapshot.devices.len(), 2);
    assert_eq!(device(&snapshot, 1).uuid, "GPU-new");
    assert_eq!(device(&snapshot, 1).name, None, "the known name belongs to another device");
}

#[test]
fn environments_stay_while_the_state_cannot_be_read_and_no_process_is_outside_then() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.process(200, 2, Claim::Absent);
    lab.device(1).processes = Some(vec![on_gpu(200, Some(0.5))]);
    assert_eq!(lab.after(10.0).processes[1].attribution.state(), "outside");

    lab.state = None;
    let kept = lab.after(10.0);
    assert_eq!(kept.environments.len(), 1);
    assert_eq!(kept.processes[0].attribution.eid(), Some("10"));
    assert_eq!(kept.processes[1].attribution.state(), "unknown");

    let withdrawn = lab.after(21.0);
    assert_eq!(withdrawn.environments, []);
    assert_eq!(*device(&withdrawn, 0).attachments, []);
    assert!(withdrawn.processes.iter().all(|p| p.attribution.state() == "unknown"));
}

#[test]
fn without_processes_no_environment_is_known_to_live_and_no_use_is_measured() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.after(10.0);
    lab.table = None;
    assert_eq!(lab.after(30.0).environments.len(), 1);
    let snapshot = lab.after(10.0);
    assert_eq!(snapshot.environments, []);
    let process = &snapshot.processes[0];
    assert_eq!((process.uid, process.attribution.state()), (None, "unknown"));
    assert_eq!(process.devices[0].memory_used_bytes, Some(GIB));
}

#[test]
fn mig_devices_have_processes_and_their_gpu_has_the_attachments() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    let parent = DeviceSample { mig_parent: true, processes: Some(Vec::new()), ..gpu(0) };
    let part = DeviceSample { processes: Some(vec![on_gpu(101, None)]), ..mig(0, 1) };
    lab.gpu = Some(sample(vec![parent, mig(0, 0), part]));
    let snapshot = lab.after(1.0);
    assert_eq!(device(&snapshot, 0).attachments.len(), 1);
    assert!(!device(&snapshot, 0).processes_measured);
    let devices = &snapshot.environments[0].devices;
    assert_eq!(devices[0].memory_used_bytes, None);
    assert_eq!(devices[1].index, DeviceIndex::mig(0, 1));
    assert_eq!((devices[1].attached, devices[1].memory_used_bytes.get()), (false, Some(GIB)));
    assert_eq!(devices[1].utilization_ratio, None);
}

#[test]
fn a_process_in_both_lists_and_on_two_devices_is_one_process() {
    let mut lab = Lab::new();
    lab.process(7, 9, Claim::Absent);
    lab.device(0).processes = Some(vec![on_gpu(7, None), on_gpu(7, None)]);
    lab.device(1).processes = Some(vec![on_gpu(7, None), on_gpu(8, None)]);
    let snapshot = lab.after(1.0);
    let pids: Vec<(u32, usize)> = snapshot.processes.iter().map(|p| (p.pid, p.devices.len())).collect();
    assert_eq!(pids, [(7, 2), (8, 1)]);
    assert_eq!(snapshot.processes[0].username.as_deref(), Some("uid:9"));
    assert_eq!(snapshot.processes[1].attribution.state(), "unknown", "it had ended");
}

#[test]
fn a_collector_that_is_off_is_absent_with_its_values() {
    let mut options = CollectOptions::default();
    options.collectors.processes = false;
    let mut lab = Lab::with(&options);
    alice_computes(&mut lab);
    let snapshot = lab.after(1.0);
    assert_eq!(snapshot.processes, []);
    assert!(!device(&snapshot, 0).processes_measured);
    assert_eq!(snapshot.environments[0].devices[0].memory_used_bytes, None);
}

#[test]
fn a_snapshot_reads_back_from_its_json() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.device(1).measurements.fan_speed_ratios = [(0, 0.5)].into();
    lab.gpu.as_mut().unwrap().devices.push(mig(2, 0));
    lab.after(10.0);
    let snapshot = lab.after(10.0);
    let json = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
}

#[test]
fn gpus_that_the_driver_does_not_show_any_more_or_that_are_held_are_named() {
    let error = |lab: &mut Lab| lab.statuses(1.0)["gpu"].fault().map(str::to_owned);
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    assert_eq!(error(&mut lab), None);
    let whole = lab.gpu.clone();
    // The driver shows a lost GPU.
    *lab.device(1) = lost(&gpu(1));
    assert_eq!(error(&mut lab), None);
    lab.gpu.as_mut().unwrap().devices.pop();
    assert!(error(&mut lab).unwrap().contains("does not show GPU 1,"));
    lab.gpu.as_mut().unwrap().devices.clear();
    assert!(error(&mut lab).unwrap().contains("does not show GPU 0, 1,"));
    lab.gpu = whole;
    assert_eq!(error(&mut lab), None);
    // An environment holds a GPU that the driver never showed in this collection.
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.gpu.as_mut().unwrap().devices.remove(0);
    assert!(error(&mut lab).unwrap().contains("does not show GPU 0,"));
}
