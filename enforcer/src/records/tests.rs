use std::sync::Arc;

use genv_core::model::{Attribution, Confirmed, ConfirmedChange, Environment, Member};
use genv_core::proc::Named;

use super::*;
use crate::plan::tests::lab::{Lab, NOON, uid};

mod evidence;
mod surplus;
mod taken;

/// A machine where these processes live, what their user confirmed, and what their environment variables name.
#[derive(Default)]
struct FakeWitness {
    living: BTreeMap<u32, u32>,
    confirmed: Vec<Confirmed>,
    named: BTreeMap<u32, Named>,
    uptime_seconds: Option<f64>,
}

impl FakeWitness {
    fn of_member() -> Self {
        Self { living: [(7, uid("alice"))].into(), ..Self::default() }
    }

    fn confirm(&mut self, eid: &str, change: ConfirmedChange) {
        self.confirmed.push(Confirmed { process: None, eid: eid.to_owned(), at_seconds: NOON + 1.0, change });
    }

    fn name(&mut self, pid: u32, eid: &str, gpus: &[u32]) {
        let named = Named { eid: Some(eid.to_owned()), gpus: gpus.iter().copied().collect() };
        self.named.insert(pid, named);
    }
}

impl Witness for FakeWitness {
    fn lives(&mut self, member: Member) -> Option<u32> {
        self.living.get(&member.pid).copied()
    }

    fn confirmed(&mut self, _uid: u32) -> Vec<Confirmed> {
        self.confirmed.clone()
    }

    fn names(&mut self, member: Member) -> Option<Named> {
        Some(self.named.get(&member.pid).cloned().unwrap_or_default())
    }

    fn uptime_seconds(&mut self) -> Option<f64> {
        self.uptime_seconds
    }
}

fn released(at_seconds: f64) -> Confirmed {
    Confirmed { process: None, eid: "e1".to_owned(), at_seconds, change: ConfirmedChange::Released { gpu: 0 } }
}

/// Alice's environment on device 0, which she uses, or a state that says no more that she holds it.
fn lab(attached: bool) -> Vec<HostSnapshot> {
    let lab = Lab::new(1, 1).environment("gpu01", "e1", "alice");
    let lab = if attached { lab.attach("gpu01", "e1", 0, 60.0) } else { lab };
    let mut lab = lab.runs(100, "alice", Some("e1"), &[(0, 1)]);
    lab.eid("gpu01", "e1").members = vec![Member { pid: 7, start_time_ticks: 70 }];
    lab.at(NOON)
}

fn snapshot(hosts: &mut [HostSnapshot]) -> &mut Snapshot {
    hosts[0].snapshot.as_mut().map(Arc::make_mut).unwrap()
}

fn record(hosts: &mut [HostSnapshot], number: usize) -> &mut Environment {
    Arc::make_mut(&mut snapshot(hosts).environments[number])
}

fn counted(counting: &Counting) -> &Snapshot {
    counting.hosts[0].snapshot.as_deref().unwrap()
}

fn is_attached(counting: &Counting) -> bool {
    let environment = counted(counting).environment("e1").unwrap();
    environment.devices.iter().any(|device| device.attached)
}

#[test]
fn only_what_was_confirmed_after_it_was_seen_counts() {
    let mut witness = FakeWitness::of_member();
    let mut records = Records::default();
    let mut count = |witness: &mut FakeWitness, attached| records.count(&lab(attached), Some(("gpu01", witness)), NOON);
    assert!(is_attached(&count(&mut witness, true)));
    witness.confirmed = vec![released(NOON - 1.0)];
    let counting = count(&mut witness, false);
    assert!(is_attached(&counting), "a confirmation of before is of another attachment");
    assert_eq!(counting.disputed[0].why, "device 0 was taken from it");
    assert_eq!(counting.numbers["gpu01"], 1);
    witness.confirmed.push(released(NOON + 1.0));
    let counting = count(&mut witness, false);
    assert!(!is_attached(&counting));
    assert_eq!(counting.disputed, []);
}

#[test]
fn memory_that_was_read_with_the_devices_later_is_not_lowered() {
    let mut witness = FakeWitness::of_member();
    let mut records = Records::default();
    let mut count = |lists_devices: bool, memory_bytes: u64| {
        let mut hosts = lab(true);
        let snapshot = snapshot(&mut hosts);
        Arc::make_mut(&mut snapshot.devices[0].attachments)[0].memory_bytes = Some(memory_bytes);
        if !lists_devices {
            snapshot.devices.clear();
            snapshot.processes.clear();
        }
        let counting = records.count(&hosts, Some(("gpu01", &mut witness)), NOON);
        let counted = counted(&counting).devices.first().and_then(|it| it.attachments[0].memory_bytes);
        (counting.disputed, counted)
    };
    for lists_devices in [false, true, false, true] {
        assert_eq!(count(lists_devices, 2).0, []);
    }
    let (disputed, counted) = count(true, 1);
    assert_eq!(disputed[0].why, "its memory on device 0 was lowered");
    assert_eq!(counted, Some(2), "what was first seen counts");
    assert_eq!(count(true, 4), (Vec::new(), Some(4)), "more counts at once");
    assert_eq!(count(true, 3).1, Some(4));
}

#[test]
fn the_memory_that_a_configuration_asks_for_is_not_lowered() {
    let mut witness = FakeWitness::of_member();
    let mut records = Records::default();
    for (memory_bytes, why) in [(2, None), (1, Some("its memory was lowered"))] {
        let mut hosts = lab(true);
        record(&mut hosts, 0).gpu_memory_bytes = Some(memory_bytes);
        let counting = records.count(&hosts, Some(("gpu01", &mut witness)), NOON);
        assert_eq!(counted(&counting).environments[0].gpu_memory_bytes, Some(2));
        assert_eq!(counting.disputed.first().map(|it| it.why.as_str()), why);
    }
}

#[test]
fn an_age_is_the_smallest_that_is_borne_out() {
    let mut disputes = Vec::new();
    let mut began = |created: Option<f64>, oldest: Option<f64>, seen: bool| {
        let mut hosts = lab(true);
        let environment = record(&mut hosts, 0);
        environment.created_timestamp_seconds = created;
        environment.oldest_member_started_timestamp_seconds = oldest;
        let mut records = if seen { Records::default() } else { Records::of_a_recording() };
        let counting = records.count(&hosts, None, NOON);
        disputes.extend(counting.disputed.iter().map(|it| it.why.clone()));
        counted(&counting).environments[0].created_timestamp_seconds.map(|at| at - NOON)
    };
    let at = |before: f64| Some(NOON - before);
    assert_eq!(began(at(3600.0), at(60.0), false), Some(-60.0));
    assert_eq!(began(at(60.0), at(3600.0), false), Some(-60.0));
    assert_eq!(began(at(60.0), at(3600.0), true), Some(0.0));
    assert_eq!(began(at(-7200.0), at(3600.0), false), Some(-3600.0));
    assert_eq!(began(None, at(60.0), false), Some(-60.0));
    assert_eq!(began(None, None, false), None);
    assert_eq!(disputes, ["it was made in the future, by its own word"]);
}

#[test]
fn a_time_of_making_that_is_moved_back_does_not_count() {
    let mut records = Records::of_a_recording();
    let mut count = |before: f64| {
        let mut hosts = lab(true);
        record(&mut hosts, 0).created_timestamp_seconds = Some(NOON - before);
        let counting = records.count(&hosts, None, NOON);
        let age = counted(&counting).environments[0].created_timestamp_seconds.map(|at| NOON - at);
        (age, counting.disputed.into_iter().map(|it| it.why).collect::<Vec<_>>())
    };
    assert_eq!(count(60.0), (Some(60.0), Vec::new()));
    assert_eq!(count(3600.0), (Some(60.0), vec!["its time of making was moved back".to_owned()]));
}

#[test]
fn a_clock_that_is_turned_ends_no_lease() {
    let mut witness = FakeWitness::default();
    let mut records = Records::default();
    let mut left = Vec::new();
    for (seconds, turned_seconds) in [(0.0, 0.0), (1.0, 8.0 * 86_400.0), (7300.0, 8.0 * 86_400.0)] {
        witness.uptime_seconds = Some(100.0 + seconds);
        let now = NOON + seconds + turned_seconds;
        let mut hosts = lab(true);
        let snapshot = snapshot(&mut hosts);
        snapshot.timestamp_seconds = now;
        let environment = Arc::make_mut(&mut snapshot.environments[0]);
        environment.created_timestamp_seconds = Some(NOON - 1.0);
        environment.lease_end_timestamp_seconds = Some(NOON + 7200.0);
        let counting = records.count(&hosts, Some(("gpu01", &mut witness)), now);
        let snapshot = counting.hosts[0].snapshot.as_deref();
        let snapshot = snapshot.or(hosts[0].snapshot.as_deref()).unwrap();
        let end = snapshot.environments[0].lease_end_timestamp_seconds.unwrap();
        left.push((end - now).round());
    }
    assert_eq!(left, [7200.0, 7199.0, -100.0]);
}

#[test]
fn a_clock_that_is_turned_makes_no_environment_older() {
    let mut witness = FakeWitness::default();
    let mut records = Records::default();
    for (seconds, clock_seconds) in [(0.0, 0.0), (1.0, 8.0 * 86_400.0), (2.0, -86_400.0)] {
        witness.uptime_seconds = Some(100.0 + seconds);
        let now = NOON + clock_seconds;
        let mut hosts = lab(true);
        let snapshot = snapshot(&mut hosts);
        snapshot.timestamp_seconds = now;
        let counting = records.count(&hosts, Some(("gpu01", &mut witness)), now);
        let snapshot = counting.hosts[0].snapshot.as_deref();
        let snapshot = snapshot.or(hosts[0].snapshot.as_deref()).unwrap();
        let created = snapshot.environments[0].created_timestamp_seconds.unwrap();
        assert!(now - created <= seconds, "{}", now - created);
    }
}

/// What the files say of Alice's process 100 on device 0: where it seems to be, and each record with the devices that it
/// holds; all of them list process 7.
fn files(seems: Option<&str>, records: &[(&str, &[u32])]) -> Vec<HostSnapshot> {
    let mut lab = Lab::new(1, 2).runs(100, "alice", seems, &[(0, 1)]);
    for (eid, devices) in records {
        lab = lab.environment("gpu01", eid, "alice");
        for gpu in *devices {
            lab = lab.attach("gpu01", eid, *gpu, 60.0);
        }
        lab.eid("gpu01", eid).members = vec![Member { pid: 7, start_time_ticks: 70 }];
    }
    lab.at(NOON)
}

/// Alice's record, and one that others wrote in her name.
const BOTH: [(&str, &[u32]); 2] = [("e1", &[0]), ("forged", &[1])];

fn place(counting: &Counting) -> String {
    match &counted(counting).processes[0].attribution {
        Attribution::Environment { eid } => eid.clone(),
        Attribution::Outside { .. } => "outside".to_owned(),
        Attribution::Unknown { .. } => "unknown".to_owned(),
    }
}

/// What the files say of Alice's process `pid` on device 0, and of two environments of hers that hold it: `e2`, in which the
/// process is, and `e1`, which lists another process.
fn two_environments(pid: u32, are_there: bool) -> Vec<HostSnapshot> {
    let place = are_there.then_some("e2");
    let mut lab = Lab::new(1, 1).runs(pid, "alice", place, &[(0, 1)]);
    for (eid, pid) in [("e1", 7), ("e2", 8)] {
        if are_there {
            lab = lab.environment("gpu01", eid, "alice");
            lab = lab.attach("gpu01", eid, 0, 60.0);
            lab.eid("gpu01", eid).members = vec![Member { pid, start_time_ticks: 70 }];
        }
    }
    lab.at(NOON)
}

#[test]
fn a_process_of_a_removed_record_counts_in_no_other_of_its_user() {
    let mut witness = FakeWitness::default();
    witness.living.extend([7, 8].map(|pid| (pid, uid("alice"))));
    let mut records = Records::default();
    let mut count = |witness: &mut FakeWitness, pid, are_there| {
        let hosts = two_environments(pid, are_there);
        place(&records.count(&hosts, Some(("gpu01", witness)), NOON))
    };
    for are_there in [true, false, true] {
        assert_eq!(count(&mut witness, 100, are_there), "e2", "{are_there}");
    }
    // One that is started meanwhile goes by what it names, and by the files as soon as they are there again.
    witness.name(101, "e2", &[0]);
    assert_eq!(count(&mut witness, 101, false), "e2");
    assert_eq!(count(&mut witness, 102, false), "e1");
    assert_eq!(count(&mut witness, 102, true), "e2");
}

fn eids(counting: &Counting) -> Vec<&str> {
    let environments = counted(counting).environments.iter();
    environments.map(|it| it.eid.as_str()).collect()
}

fn first_seen(witness: &mut FakeWitness, hosts: &[HostSnapshot]) -> Records {
    witness.living.insert(7, uid("alice"));
    let mut records = Records::default();
    records.count(hosts, Some(("gpu01", witness)), NOON);
    // As after a restart.
    serde_json::from_value(serde_json::to_value(&records).unwrap()).unwrap()
}

#[test]
fn a_job_stays_in_a_record_that_lists_none_of_its_members_any_more() {
    let mut witness = FakeWitness::default();
    let mut records = first_seen(&mut witness, &files(Some("e1"), &[("e1", &[0])]));
    let mut now = files(None, &[("e1", &[0])]);
    record(&mut now, 0).members.clear();
    let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
    assert_eq!(place(&counting), "e1");
    assert_eq!(counting.disputed[0].why, "members of it were removed while they live");
}

#[test]
fn a_job_keeps_a_removed_record_after_its_shell() {
    let mut witness = FakeWitness::default();
    let mut records = first_seen(&mut witness, &files(Some("e1"), &[("e1", &[0])]));
    witness.living = [(100, uid("alice"))].into();
    let counting = records.count(&files(None, &[]), Some(("gpu01", &mut witness)), NOON);
    assert_eq!(place(&counting), "e1");
    assert_eq!(counting.disputed[0].why, "it was removed while processes of it live");
}

#[test]
fn a_record_that_names_another_user_stays_its_own() {
    // Its shell lives, or its job alone.
    for living in [7, 100] {
        let mut witness = FakeWitness::default();
        let mut records = first_seen(&mut witness, &files(Some("e1"), &[("e1", &[0])]));
        witness.living = [(living, uid("alice"))].into();
        let mut now = files(None, &[("e1", &[0])]);
        let record = record(&mut now, 0);
        (record.uid, record.username) = (Some(uid("bob")), "bob".to_owned());
        (record.members, record.foreign_members) = (Vec::new(), 1);
        let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
        assert_eq!(place(&counting), "e1");
        assert!(is_attached(&counting));
        assert_eq!(counting.disputed[0].why, "it names bob as its user, and its processes are of alice");
        assert_eq!(counted(&counting).environment("e1").unwrap().uid, Some(uid("alice")));
    }
}

#[test]
fn a_record_in_the_name_of_a_user_of_whom_no_member_is_counts_for_nobody() {
    let mut witness = FakeWitness::default();
    let mut records = first_seen(&mut witness, &files(Some("e1"), &BOTH[..1]));
    let mut now = files(Some("e1"), &BOTH);
    let forged = record(&mut now, 1);
    (forged.members, forged.foreign_members) = (Vec::new(), 1);
    let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
    assert_eq!(eids(&counting), ["e1"]);
    assert_eq!(counting.disputed[0].why, "no member of it is a process of alice");
    assert!(counted(&counting).devices[1].attachments.is_empty(), "its device is free");
}

#[test]
fn a_later_record_takes_no_living_member_from_the_first() {
    let renamed: &[(&str, &[u32])] = &[("forged", &[])];
    for later in [&BOTH[..], renamed] {
        let mut witness = FakeWitness::default();
        let mut records = first_seen(&mut witness, &files(Some("e1"), &BOTH[..1]));
        for _ in 0..2 {
            let counting = records.count(&files(Some("forged"), later), Some(("gpu01", &mut witness)), NOON);
            assert_eq!(place(&counting), "e1", "{later:?}");
            // The limits of its user see it, and may take back what it holds.
            assert_eq!(eids(&counting), ["e1", "forged"], "{later:?}");
            let taken_back: &[_] = if later.len() == 2 { &[("forged", 1)] } else { &[] };
            assert_eq!(unconfirmed(&counting), taken_back);
            let disputes = counting.disputed.iter().filter(|it| it.eid == "forged").map(|it| it.why.as_str());
            let expected = ["it lists members of another environment of its user"];
            assert_eq!(disputes.collect::<Vec<_>>(), expected);
            assert!(is_attached(&counting));
        }
    }
}

#[test]
fn a_process_that_is_seen_first_in_a_later_record_of_a_known_member_is_unknown() {
    let mut witness = FakeWitness::default();
    let mut without = files(None, &BOTH[..1]);
    snapshot(&mut without).processes.clear();
    let mut records = first_seen(&mut witness, &without);
    // Where its user's first record has it again, it is there.
    for (seems, expected) in [("forged", "unknown"), ("e1", "e1")] {
        let counting = records.count(&files(Some(seems), &BOTH), Some(("gpu01", &mut witness)), NOON);
        assert_eq!(place(&counting), expected);
    }
}

#[test]
fn a_member_that_its_user_moves_is_in_the_other_environment() {
    for change in [ConfirmedChange::Ended, ConfirmedChange::Left { pid: 7 }] {
        let mut witness = FakeWitness::default();
        let mut records = first_seen(&mut witness, &files(Some("e1"), &[("e1", &[0])]));
        witness.confirmed = vec![Confirmed { process: None, eid: "e1".to_owned(), at_seconds: NOON + 1.0, change }];
        witness.confirm("e2", ConfirmedChange::Joined { pid: 7 });
        let now = files(Some("e2"), &[("e2", &[0])]);
        let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON + 2.0);
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
    let both = files(Some("forged"), &[("e2", &[0]), ("forged", &[])]);
    let counting = records.count(&both, None, NOON);
    assert_eq!(place(&counting), "e2");
}

#[test]
fn without_the_kernels_word_a_removed_record_is_gone() {
    let mut records = Records::default();
    let counting = records.count(&files(Some("e1"), &[("e1", &[0])]), None, NOON);
    assert_eq!(place(&counting), "e1");
    let counting = records.count(&files(None, &[]), None, NOON);
    assert_eq!((place(&counting).as_str(), counting.disputed.len()), ("outside", 0));
}

fn unconfirmed(counting: &Counting) -> Vec<(&'static str, u32)> {
    let places = ["e1", "e2", "later", "forged"].into_iter().flat_map(|eid| {
        let gpus = counting.unconfirmed.of("gpu01", eid);
        let gpus: Vec<u32> = gpus.into_iter().flatten().copied().collect();
        gpus.into_iter().map(move |gpu| (eid, gpu))
    });
    places.collect()
}

#[test]
fn a_process_outside_enters_an_environment_that_has_its_devices_if_its_user_joined_it() {
    let mut witness = FakeWitness::default();
    let mut records = first_seen(&mut witness, &files(None, &[]));
    let mut count = |witness: &mut FakeWitness, devices: &[u32]| {
        let now = files(Some("later"), &[("later", devices)]);
        place(&records.count(&now, Some(("gpu01", witness)), NOON))
    };
    assert_eq!(count(&mut witness, &[1]), "outside");
    assert_eq!(count(&mut witness, &[0, 1]), "unknown");
    witness.confirm("later", ConfirmedChange::Joined { pid: 7 });
    assert_eq!(count(&mut witness, &[1]), "outside");
    assert_eq!(count(&mut witness, &[0, 1]), "later");
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
