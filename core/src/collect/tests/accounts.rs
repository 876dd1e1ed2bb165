//! The charges for the snapshots of a host.

use std::collections::HashMap;

use super::lab::{Lab, UNIX, alice_computes};
use super::*;
use crate::gpu::XidEvent;

#[test]
fn a_gpu_that_is_split_anew_or_no_more_is_accounted_by_what_it_has_now() {
    let mut lab = Lab::new();
    alice_computes(&mut lab);
    let split = DeviceSample { mig_parent: true, processes: Some(Vec::new()), ..gpu(0) };
    let whole = lab.gpu.clone();
    let untold = DeviceSample { processes: None, ..mig(0, 1) };
    // What device 0 looks like for 10 seconds, and whether alice's time on it is idle, busy or unmeasured then.
    let looks = [
        // Her process ended when it was split: what it did until then was not measured.
        (Some(sample(vec![split.clone(), mig(0, 0), mig(0, 1)])), [0.0, 0.0, 10.0]),
        (Some(sample(vec![split.clone(), mig(0, 0), mig(0, 1)])), [10.0, 0.0, 0.0]),
        (Some(sample(vec![split.clone(), mig(0, 0), untold])), [0.0, 0.0, 10.0]),
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
        let gained: Vec<f64> = now.iter().zip(before).map(|(now, before)| now - before).collect();
        assert_eq!(gained, expected.map(|held| held / 4.0));
        before = now;
    }
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
    lab.state = Some(state(environments.clone(), vec![attached(0, &[("1", None), ("2", None)])]));
    lab.after(10.0);
    let mut devices = attached(0, &[("3", None), ("4", None)]);
    devices.attachments[0].attached_timestamp_seconds = Some(UNIX + 12.0);
    devices.attachments[1].attached_timestamp_seconds = Some(UNIX + 18.0);
    lab.state = Some(state(environments, vec![devices]));
    lab.gpu.as_mut().unwrap().xid_events =
        vec![XidEvent { index: DeviceIndex::gpu(0), xid: 79, timestamp_seconds: UNIX + 15.0 }];
    let first = lab.after(10.0).counters;
    assert_eq!((first.device_xid_errors[0].errors, first.device_xid_errors[0].last_timestamp_seconds), (0, None));
    let second = lab.after(10.0).counters;
    assert_eq!(second.device_xid_errors[0].errors, 1);
    assert_eq!(second.device_xid_errors[0].last_timestamp_seconds, Some(UNIX + 15.0));
    // Published as 0 before they rise, or `increase()` would miss the first error of a user.
    for (counters, errors) in [(first, 0), (second, 1)] {
        let charged = counters.user_xid_errors.into_iter().map(|user| (user.username, user.errors));
        let expected = ["alice", "bob"].map(|name| (name.to_owned(), errors));
        assert_eq!(charged.collect::<HashMap<_, _>>(), HashMap::from(expected));
    }
}

#[test]
fn invented_users_fill_no_memory_and_take_no_account_away() {
    const INVENTED: u32 = 12_000;
    let mut lab = Lab::new();
    lab.gpu.as_mut().unwrap().devices.truncate(1);
    lab.device(0).measurements.utilization_ratio = Some(0.0);
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
