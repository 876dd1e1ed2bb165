//! What is shown of a host, by a clock that tests turn.

use std::collections::{BTreeMap, HashMap};

use super::*;
use crate::accounting::Reading;
use crate::collect::CollectOptions;
use crate::collect::view::{Evidence, Held, Moment, ProcessAnswer, View};
use crate::gpu::XidEvent;
use crate::model::Attribution;

/// A host whose sources say what the fields hold, where they answer.
pub(super) struct Lab {
    pub(super) now_seconds: f64,
    /// Absent: the source does not answer, and its last values stand.
    pub(super) gpu: Option<GpuSample>,
    pub(super) state: Option<State>,
    pub(super) table: Option<ProcessTable>,
    evidence: Evidence,
    view: View,
}

pub(super) const UNIX: f64 = 1_900.0;

impl Lab {
    pub(super) fn new() -> Self {
        Self::with(&CollectOptions::default())
    }

    pub(super) fn with(options: &CollectOptions) -> Self {
        Self {
            now_seconds: 0.0,
            gpu: Some(sample(vec![gpu(0), gpu(1)])),
            state: Some(state(Vec::new(), Vec::new())),
            table: Some(ProcessTable::default()),
            evidence: Evidence::default(),
            view: View::new("lab".to_owned(), options),
        }
    }

    /// One cycle, this long after the last.
    pub(super) fn after(&mut self, seconds: f64) -> Snapshot {
        self.now_seconds += seconds;
        let now = self.now_seconds;
        let mut reading = Reading::default();
        if let Some(sample) = &mut self.gpu {
            reading.read_seconds = Some(now);
            reading.xid_events = std::mem::take(&mut sample.xid_events);
            self.evidence.gpu = Some(held(sample.clone(), now));
        }
        if let Some(state) = &self.state {
            self.evidence.state = Some(held(state.clone(), now));
        }
        if let Some(table) = &self.table {
            let answer = ProcessAnswer {
                table: table.clone(),
                usernames: [(1, "alice"), (2, "bob"), (3, "carol")]
                    .map(|(uid, name)| (uid, name.to_owned()))
                    .into(),
            };
            self.evidence.processes = Some(held(answer, now));
        }
        self.evidence.state_is_fresh = self.state.is_some() && self.table.is_some();
        let moment = Moment {
            seconds: now,
            timestamp_seconds: UNIX + now,
        };
        let mut snapshot = self
            .view
            .observe(moment, &self.evidence, reading, BTreeMap::new());
        // Health is not the view's.
        snapshot.collectors = BTreeMap::new();
        snapshot
    }

    pub(super) fn process(&mut self, pid: u32, uid: u32, claim: Claim) {
        add_process(self.table.as_mut().unwrap(), pid, uid, claim);
    }

    pub(super) fn device(&mut self, index: usize) -> &mut DeviceSample {
        &mut self.gpu.as_mut().unwrap().devices[index]
    }
}

fn held<T>(value: T, now: f64) -> Held<T> {
    Held {
        value,
        asked_seconds: now,
        read_seconds: now,
        timestamp_seconds: UNIX + now,
    }
}

/// Alice's environment 10 with the shell 100 on device 0, and her process 101 there.
fn alice_computes(lab: &mut Lab) {
    lab.state = Some(state(
        vec![environment("10", 1, &[100])],
        vec![attached(0, &[("10", Some(4 * GIB))])],
    ));
    lab.process(100, 1, Claim::Absent);
    lab.process(101, 1, Claim::Named("10".to_owned()));
    lab.device(0).processes = Some(vec![on_gpu(101, Some(0.25))]);
}

#[test]
fn an_environment_is_shown_with_its_use_of_each_device() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.device(1).processes = Some(vec![on_gpu(101, Some(0.0))]);
    let snapshot = lab.after(10.0);

    assert_eq!(snapshot.processes.len(), 1);
    let process = &snapshot.processes[0];
    assert_eq!(
        process.attribution,
        Attribution::Environment {
            eid: "10".to_owned()
        }
    );
    assert_eq!(process.username.as_deref(), Some("alice"));
    assert_eq!(process.devices.len(), 2);

    let environment = &snapshot.environments[0];
    assert_eq!(environment.username, "alice");
    assert_eq!(environment.members.len(), 1);
    let [held, used] = &environment.devices[..] else {
        panic!("{environment:?}")
    };
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
    let idle = lab.after(10.0);
    let held = &idle.environments[0].devices[0];
    assert_eq!(held.last_active_timestamp_seconds, Some(UNIX + 10.0));
    assert_eq!(
        (held.utilization_ratio, held.memory_used_bytes),
        (Some(0.0), Some(0))
    );

    let environments = lab.state.take();
    lab.state = Some(state(Vec::new(), Vec::new()));
    lab.after(10.0);
    lab.state = environments;
    let again = lab.after(10.0);
    assert_eq!(
        again.environments[0].devices[0].last_active_timestamp_seconds,
        None
    );
}

#[test]
fn shares_that_claim_more_than_a_device_are_scaled_to_it() {
    let mut lab = Lab::new();
    let environments = vec![
        environment("1", 1, &[100]),
        environment("2", 2, &[100]),
        environment("3", 3, &[100]),
    ];
    let claims = [
        ("1", None),
        ("2", Some(8 * GIB)),
        ("3", Some(8 * GIB)),
        ("3", None),
        ("ended", None),
    ];
    lab.state = Some(state(
        environments,
        vec![attached(0, &claims), attached(1, &[("1", Some(64 * GIB))])],
    ));
    lab.process(100, 1, Claim::Absent);
    let snapshot = lab.after(1.0);
    let shares = |index| -> Vec<f64> {
        let attachments = &device(&snapshot, index).attachments;
        attachments
            .iter()
            .map(|attachment| attachment.share_ratio)
            .collect()
    };
    assert_eq!(shares(0), [0.5, 0.25, 0.25]);
    assert_eq!(shares(1), [1.0]);
}

#[test]
fn values_stand_until_the_maximum_age_and_are_then_withdrawn() {
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
    // Who holds it is still known, by the state.
    assert_eq!(gone.attachments.len(), 1);
    assert_eq!(snapshot.processes, []);
    assert_eq!(snapshot.driver_version, None);
    let held = &snapshot.environments[0].devices[0];
    assert_eq!(
        (held.memory_used_bytes, held.utilization_ratio),
        (None, None)
    );
    assert_eq!(held.memory_capacity_bytes, Some(4 * GIB));

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
    assert_eq!(
        device(&snapshot, 1).name,
        None,
        "what was known is of another device"
    );
}

#[test]
fn environments_stand_while_the_state_cannot_be_read_and_nothing_is_outside_then() {
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
    assert_eq!(device(&withdrawn, 0).attachments, []);
    assert!(
        withdrawn
            .processes
            .iter()
            .all(|p| p.attribution.state() == "unknown")
    );
}

#[test]
fn without_processes_nobody_is_known_to_live_and_no_use_is_measured() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.after(10.0);
    lab.table = None;
    assert_eq!(lab.after(30.0).environments.len(), 1);
    let snapshot = lab.after(10.0);
    assert_eq!(snapshot.environments, []);
    let process = &snapshot.processes[0];
    assert_eq!(
        (process.uid, process.attribution.state()),
        (None, "unknown")
    );
    assert_eq!(process.devices[0].memory_used_bytes, Some(GIB));
}

#[test]
fn an_environment_without_a_living_member_is_not_shown_and_holds_nothing() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    lab.table = Some(ProcessTable::default());
    let snapshot = lab.after(1.0);
    assert_eq!(snapshot.environments, []);
    assert_eq!(device(&snapshot, 0).attachments, []);
}

#[test]
fn mig_devices_have_processes_and_their_gpu_has_the_attachments() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    let parent = DeviceSample {
        mig_parent: true,
        processes: Some(Vec::new()),
        ..gpu(0)
    };
    let part = DeviceSample {
        processes: Some(vec![on_gpu(101, None)]),
        ..mig(0, 1)
    };
    lab.gpu = Some(sample(vec![parent, mig(0, 0), part]));
    let snapshot = lab.after(1.0);
    assert_eq!(device(&snapshot, 0).attachments.len(), 1);
    assert!(!device(&snapshot, 0).processes_measured);
    let devices = &snapshot.environments[0].devices;
    assert_eq!(devices[0].memory_used_bytes, None);
    assert_eq!(devices[1].index, DeviceIndex::mig(0, 1));
    assert_eq!(
        (devices[1].attached, devices[1].memory_used_bytes),
        (false, Some(GIB))
    );
    assert_eq!(devices[1].utilization_ratio, None);
}

#[test]
fn a_gpu_that_is_split_anew_or_no_more_is_accounted_by_what_it_has_now() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    let split = DeviceSample {
        mig_parent: true,
        processes: Some(Vec::new()),
        ..gpu(0)
    };
    let whole = lab.gpu.clone();
    let untold = DeviceSample {
        processes: None,
        ..mig(0, 1)
    };
    // What device 0 looks like for 10 seconds, and whether alice's time on it is idle, busy or unmeasured then.
    let looks = [
        (
            Some(sample(vec![split.clone(), mig(0, 0), mig(0, 1)])),
            [10.0, 0.0, 0.0],
        ),
        (
            Some(sample(vec![split.clone(), mig(0, 0), untold])),
            [0.0, 0.0, 10.0],
        ),
        (Some(sample(vec![split, mig(0, 0)])), [10.0, 0.0, 0.0]),
        (whole, [0.0, 10.0, 0.0]),
    ];
    lab.after(10.0);
    let mut before = [0.0; 3];
    for (looks, expected) in looks {
        lab.gpu = looks;
        let snapshot = lab.after(10.0);
        let row = &snapshot.counters.user_device_use[1];
        assert_eq!(row.username, "alice");
        let seconds = row.device_seconds.unwrap();
        let now = [seconds.idle, seconds.busy, seconds.unmeasured];
        let gained: Vec<f64> = now
            .iter()
            .zip(before)
            .map(|(now, before)| now - before)
            .collect();
        assert_eq!(gained, expected.map(|held| held / 4.0));
        before = now;
    }
}

#[test]
fn a_process_in_both_lists_and_on_two_devices_is_one_process() {
    let mut lab = Lab::new();
    lab.process(7, 9, Claim::Absent);
    lab.device(0).processes = Some(vec![on_gpu(7, None), on_gpu(7, None)]);
    lab.device(1).processes = Some(vec![on_gpu(7, None), on_gpu(8, None)]);
    let snapshot = lab.after(1.0);
    let pids: Vec<(u32, usize)> = snapshot
        .processes
        .iter()
        .map(|p| (p.pid, p.devices.len()))
        .collect();
    assert_eq!(pids, [(7, 2), (8, 1)]);
    assert_eq!(snapshot.processes[0].username.as_deref(), Some("uid:9"));
    assert_eq!(
        snapshot.processes[1].attribution.state(),
        "unknown",
        "it had ended"
    );
}

#[test]
fn what_is_switched_off_is_absent() {
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
fn an_xid_error_is_charged_to_each_user_who_held_the_device_when_it_happened() {
    let mut lab = Lab::new();
    lab.process(100, 1, Claim::Absent);
    let environments = vec![
        environment("1", 1, &[100]),
        environment("2", 1, &[100]),
        environment("3", 2, &[100]),
        environment("4", 3, &[100]),
    ];
    lab.state = Some(state(
        environments.clone(),
        vec![attached(0, &[("1", None), ("2", None)])],
    ));
    lab.after(10.0);
    let mut devices = attached(0, &[("3", None), ("4", None)]);
    devices.attachments[0].attached_timestamp_seconds = Some(UNIX + 12.0);
    devices.attachments[1].attached_timestamp_seconds = Some(UNIX + 18.0);
    lab.state = Some(state(environments, vec![devices]));
    lab.gpu.as_mut().unwrap().xid_events = vec![XidEvent {
        index: DeviceIndex::gpu(0),
        xid: 79,
        timestamp_seconds: UNIX + 15.0,
    }];
    let first = lab.after(10.0).counters;
    assert_eq!(
        (
            first.device_xid_errors[0].errors,
            first.device_xid_errors[0].last_timestamp_seconds
        ),
        (0, None)
    );
    let second = lab.after(10.0).counters;
    assert_eq!(second.device_xid_errors[0].errors, 1);
    assert_eq!(
        second.device_xid_errors[0].last_timestamp_seconds,
        Some(UNIX + 15.0)
    );
    let charged: HashMap<&str, u64> = second
        .user_xid_errors
        .iter()
        .map(|e| (e.username.as_str(), e.errors))
        .collect();
    assert_eq!(charged, HashMap::from([("alice", 1), ("bob", 1)]));
}

#[test]
fn invented_users_fill_no_memory_and_take_no_account_away() {
    const INVENTED: u32 = 12_000;
    let mut lab = Lab::new();
    lab.gpu.as_mut().unwrap().devices.truncate(1);
    lab.process(100, 1, Claim::Absent);
    for first in (0..INVENTED).step_by(3_000) {
        let uids: Vec<u32> = (first..first + 3_000).map(|n| 10_000 + n).collect();
        let eids: Vec<String> = uids.iter().map(|uid| format!("e{uid}")).collect();
        let mut environments = vec![environment("10", 1, &[100])];
        let mut attachments = vec![("10", None)];
        for (uid, eid) in uids.iter().zip(&eids) {
            environments.push(environment(eid, *uid, &[100]));
            attachments.push((eid, None));
        }
        lab.state = Some(state(environments, vec![attached(0, &attachments)]));
        lab.device(0).measurements.energy_joules = Some(f64::from(first));
        lab.after(10.0);
    }
    let counters = lab.after(10.0).counters;
    assert!(counters.user_device_use.len() < 5_000);
    let users = counters.user_device_use.iter();
    let of_alice = users.clone().find(|one| one.username == "alice").unwrap();
    let alice_seconds = of_alice.device_seconds.unwrap();
    assert!(alice_seconds.idle > 0.0, "{alice_seconds:?}");
    let joules: f64 = users.filter_map(|one| one.energy_joules).sum();
    assert!((joules - 9_000.0).abs() < 1e-6, "{joules}");
    assert_eq!(counters.device_energy[0].energy_joules, joules);
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
