use genv_core::model::{Attribution, Member};
use genv_core::state::{Confirmed, ConfirmedChange};

use super::*;
use crate::plan::tests::lab::{Lab, NOON, uid};

/// A machine where these processes live, and what their user confirmed.
#[derive(Default)]
struct Told {
    living: BTreeMap<u32, u32>,
    confirmed: Vec<Confirmed>,
}

impl Witness for Told {
    fn lives(&mut self, member: Member) -> Option<u32> {
        self.living.get(&member.pid).copied()
    }

    fn confirmed(&mut self, _uid: u32) -> Vec<Confirmed> {
        self.confirmed.clone()
    }
}

fn released(at_seconds: f64) -> Confirmed {
    Confirmed {
        eid: "e1".to_owned(),
        at_seconds,
        change: ConfirmedChange::Released { gpu: 0 },
    }
}

/// Alice's environment on device 0, which she uses, or a state that says no more that she holds it.
fn lab(attached: bool) -> Vec<HostSnapshot> {
    let lab = Lab::new(1, 1).environment("gpu01", "e1", "alice");
    let lab = if attached {
        lab.attach("gpu01", "e1", 0, 60.0)
    } else {
        lab
    };
    let mut lab = lab.process("gpu01", 100, "alice", Some("e1"), &[(0, 1)]);
    lab.eid("gpu01", "e1").members = vec![Member {
        pid: 7,
        start_time_ticks: 70,
    }];
    lab.at(NOON)
}

fn is_attached(counting: &Counting) -> bool {
    let snapshot = counting.hosts[0].snapshot.as_deref().unwrap();
    let environment = snapshot.environment("e1").unwrap();
    environment.devices.iter().any(|device| device.attached)
}

#[test]
fn only_what_was_confirmed_after_it_was_seen_counts() {
    let mut told = Told::default();
    told.living.insert(7, uid("alice"));
    let mut records = Records::default();
    let mut count =
        |told: &mut Told, attached| records.count(&lab(attached), Some(("gpu01", told)), NOON);
    assert!(is_attached(&count(&mut told, true)));
    told.confirmed = vec![released(NOON - 1.0)];
    let counting = count(&mut told, false);
    assert!(
        is_attached(&counting),
        "a confirmation of before is of another attachment"
    );
    assert_eq!(counting.disputed[0].why, "device 0 was taken from it");
    assert_eq!(counting.numbers["gpu01"], 1);
    told.confirmed.push(released(NOON + 1.0));
    let counting = count(&mut told, false);
    assert!(!is_attached(&counting));
    assert_eq!(counting.disputed, []);
}

#[test]
fn an_age_is_the_smallest_that_is_borne_out() {
    let began = |created: Option<f64>, oldest: Option<f64>, seen: bool| {
        let mut hosts = lab(true);
        let snapshot = hosts[0].snapshot.as_mut().map(Arc::make_mut).unwrap();
        let environment = Arc::make_mut(&mut snapshot.environments[0]);
        environment.created_timestamp_seconds = created;
        environment.oldest_member_started_timestamp_seconds = oldest;
        let mut records = if seen {
            Records::default()
        } else {
            Records::of_a_recording()
        };
        let counting = records.count(&hosts, None, NOON);
        let snapshot = counting.hosts[0].snapshot.as_deref().unwrap();
        snapshot.environments[0]
            .created_timestamp_seconds
            .map(|at| at - NOON)
    };
    let at = |before: f64| Some(NOON - before);
    assert_eq!(began(at(3600.0), at(60.0), false), Some(-60.0));
    assert_eq!(began(at(60.0), at(3600.0), false), Some(-60.0));
    assert_eq!(began(at(60.0), at(3600.0), true), Some(0.0));
    assert_eq!(began(at(-7200.0), at(3600.0), false), Some(-3600.0));
    assert_eq!(began(None, at(60.0), false), Some(-60.0));
    assert_eq!(began(None, None, false), None);
}

/// What the files say of Alice's process 100 on device 0: where it seems to be, and each record with the devices that it
/// holds; all of them list process 7.
fn files(seems: Option<&str>, records: &[(&str, &[u32])]) -> Vec<HostSnapshot> {
    let mut lab = Lab::new(1, 2).process("gpu01", 100, "alice", seems, &[(0, 1)]);
    for (eid, devices) in records {
        lab = lab.environment("gpu01", eid, "alice");
        for gpu in *devices {
            lab = lab.attach("gpu01", eid, *gpu, 60.0);
        }
        lab.eid("gpu01", eid).members = vec![Member {
            pid: 7,
            start_time_ticks: 70,
        }];
    }
    lab.at(NOON)
}

fn place(counting: &Counting) -> String {
    let snapshot = counting.hosts[0].snapshot.as_deref().unwrap();
    match &snapshot.processes[0].attribution {
        Attribution::Environment { eid } => eid.clone(),
        Attribution::Outside { .. } => "outside".to_owned(),
        Attribution::Unknown { .. } => "unknown".to_owned(),
    }
}

fn eids(counting: &Counting) -> Vec<&str> {
    let snapshot = counting.hosts[0].snapshot.as_deref().unwrap();
    let environments = snapshot.environments.iter();
    environments.map(|it| it.eid.as_str()).collect()
}

fn first_seen(told: &mut Told, hosts: &[HostSnapshot]) -> Records {
    told.living.insert(7, uid("alice"));
    let mut records = Records::default();
    records.count(hosts, Some(("gpu01", told)), NOON);
    // As after a restart.
    serde_json::from_value(serde_json::to_value(&records).unwrap()).unwrap()
}

#[test]
fn a_later_record_takes_no_living_member_from_the_first() {
    let both: [(&str, &[u32]); 2] = [("e1", &[0]), ("forged", &[1])];
    let renamed: [(&str, &[u32]); 1] = [("forged", &[])];
    for later in [&both[..], &renamed[..]] {
        let mut told = Told::default();
        let mut records = first_seen(&mut told, &files(Some("e1"), &both[..1]));
        for _ in 0..2 {
            let now = files(Some("forged"), later);
            let counting = records.count(&now, Some(("gpu01", &mut told)), NOON);
            assert_eq!(place(&counting), "e1", "{later:?}");
            assert_eq!(eids(&counting), ["e1"], "{later:?}");
            let disputes: Vec<&str> = counting
                .disputed
                .iter()
                .filter(|it| it.eid == "forged")
                .map(|it| it.why.as_str())
                .collect();
            assert_eq!(
                disputes,
                ["it lists members of another environment of its user"]
            );
            assert!(is_attached(&counting));
        }
    }
}

#[test]
fn a_process_that_is_seen_first_in_a_later_record_of_a_known_member_is_unknown() {
    let both: [(&str, &[u32]); 2] = [("e1", &[0]), ("forged", &[1])];
    let mut told = Told::default();
    let mut without = files(None, &both[..1]);
    let snapshot = without[0].snapshot.as_mut().map(Arc::make_mut).unwrap();
    snapshot.processes.clear();
    let mut records = first_seen(&mut told, &without);
    let now = files(Some("forged"), &both);
    let counting = records.count(&now, Some(("gpu01", &mut told)), NOON);
    assert_eq!(place(&counting), "unknown");
    // Where its user's first record has it again, it is there.
    let counting = records.count(&files(Some("e1"), &both), Some(("gpu01", &mut told)), NOON);
    assert_eq!(place(&counting), "e1");
}

#[test]
fn a_member_that_its_user_moves_is_in_the_other_environment() {
    let moved: [(&str, &[u32]); 1] = [("e2", &[0])];
    for change in [ConfirmedChange::Ended, ConfirmedChange::Left { pid: 7 }] {
        let mut told = Told::default();
        let mut records = first_seen(&mut told, &files(Some("e1"), &[("e1", &[0])]));
        told.confirmed = vec![Confirmed {
            eid: "e1".to_owned(),
            at_seconds: NOON + 1.0,
            change,
        }];
        let now = files(Some("e2"), &moved);
        let counting = records.count(&now, Some(("gpu01", &mut told)), NOON + 2.0);
        assert_eq!(place(&counting), "e2");
        assert_eq!(eids(&counting), ["e2"]);
        assert_eq!(counting.disputed, []);
    }
}

#[test]
fn without_the_kernels_word_the_files_show_who_left() {
    let mut records = Records::default();
    records.count(&files(Some("e1"), &[("e1", &[0])]), None, NOON);
    let counting = records.count(&files(Some("e2"), &[("e2", &[0])]), None, NOON);
    assert_eq!(place(&counting), "e2");
    let both: [(&str, &[u32]); 2] = [("e2", &[0]), ("forged", &[])];
    let counting = records.count(&files(Some("forged"), &both), None, NOON);
    assert_eq!(place(&counting), "e2");
}

#[test]
fn a_process_outside_enters_an_environment_that_has_its_devices() {
    let mut told = Told::default();
    let mut records = first_seen(&mut told, &files(None, &[]));
    let mut count = |devices: &[u32]| {
        let now = files(Some("later"), &[("later", devices)]);
        place(&records.count(&now, Some(("gpu01", &mut told)), NOON))
    };
    assert_eq!(count(&[1]), "outside");
    assert_eq!(count(&[0, 1]), "later");
}

#[test]
fn what_is_left_out_of_a_snapshot_as_disputed_may_exist_all_the_same() {
    let mut snapshot = Snapshot::default();
    let status = genv_core::model::CollectorStatus::default();
    snapshot.collectors.insert("state".to_owned(), status);
    note_left_out(&mut snapshot, &[]);
    assert_eq!(snapshot.collectors["state"].error, None);
    let dispute = DisputedRecord {
        hostname: "gpu01".to_owned(),
        eid: "e1".to_owned(),
        username: "alice".to_owned(),
        why: "why".to_owned(),
    };
    note_left_out(&mut snapshot, &[dispute]);
    let error = snapshot.collectors["state"].error.as_deref();
    assert_eq!(error, Some("the record of e1 is disputed"));
}
