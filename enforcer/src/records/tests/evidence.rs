//! What bears out that a record, a member or a device is its user's.

use genv_core::model::Joined;
use genv_core::proc::INITIAL_PID_NAMESPACE;

use super::*;

fn confirmed(eid: &str, at_seconds: f64, change: ConfirmedChange) -> Confirmed {
    Confirmed { process: None, eid: eid.to_owned(), at_seconds, change }
}

#[test]
fn a_device_that_came_later_is_its_users_by_a_command_or_by_a_process_that_sees_it() {
    let mut witness = FakeWitness::default();
    let seen = first_seen(&mut witness, &files(Some("e1"), &[("e1", &[0])]));
    let now = files(Some("e1"), &[("e1", &[0, 1])]);
    let count = |witness: &mut FakeWitness| {
        let mut records = seen.clone();
        let mut counting = records.count(&now, Some(("gpu01", witness)), NOON);
        // It stays so.
        for _ in 0..2 {
            let again = records.count(&now, Some(("gpu01", witness)), NOON);
            assert_eq!(again.unconfirmed, counting.unconfirmed);
            counting = again;
        }
        counting
    };
    let counting = count(&mut witness);
    assert_eq!(unconfirmed(&counting), [("e1", 1)]);
    let why = "device 1 came to it, and nothing shows that its user did that";
    assert_eq!(counting.disputed[0].why, why);
    assert!(is_attached(&counting), "it helps");
    // Another device, another environment.
    witness.confirm("e1", ConfirmedChange::Attached { gpu: 0 });
    witness.confirm("e2", ConfirmedChange::Attached { gpu: 1 });
    witness.name(100, "e1", &[0]);
    assert_eq!(unconfirmed(&count(&mut witness)), [("e1", 1)]);
    witness.name(100, "e1", &[0, 1]);
    let is_fine = |counting: Counting| unconfirmed(&counting).is_empty() && counting.disputed.is_empty();
    assert!(is_fine(count(&mut witness)));
    witness.named.clear();
    witness.confirm("e1", ConfirmedChange::Attached { gpu: 1 });
    assert!(is_fine(count(&mut witness)));
}

#[test]
fn a_device_that_came_later_is_not_its_users_where_no_member_is_seen() {
    let mut witness = FakeWitness::default();
    witness.name(100, "e1", &[]);
    // The process works on a device that its environment does not hold.
    let count = |witness: &mut FakeWitness, records: &mut Records, gpus: &[u32], members: &[u32]| {
        let mut hosts = files(Some("e1"), &[("e1", gpus)]);
        record(&mut hosts, 0).members = members.iter().map(|pid| Member { pid: *pid, start_time_ticks: 70 }).collect();
        let counting = records.count(&hosts, Some(("gpu01", witness)), NOON);
        (unconfirmed(&counting), counting.disputed.len())
    };
    witness.living = [(100, uid("alice"))].into();
    let mut records = Records::default();
    for _ in 0..2 {
        assert_eq!(count(&mut witness, &mut records, &[1], &[]), (vec![], 0));
    }
    // Also where who adds the device adds a process of the user as a member.
    for members in [&[][..], &[], &[100]] {
        assert_eq!(count(&mut witness, &mut records, &[0, 1], members), (vec![("e1", 0)], 1), "{members:?}");
    }
    // Without the process it may be another environment.
    witness.living.clear();
    assert_eq!(count(&mut witness, &mut records, &[0, 1], &[]), (vec![], 0));
}

#[test]
fn a_later_record_is_its_users_by_a_command_or_by_a_process_that_names_it() {
    let mut nothing = files(None, &[]);
    snapshot(&mut nothing).processes.clear();
    let now = files(Some("later"), &[("later", &[0])]);
    let is_users = |witness: &mut FakeWitness| {
        let mut records = first_seen(witness, &nothing);
        let counting = records.count(&now, Some(("gpu01", witness)), NOON);
        match (&unconfirmed(&counting)[..], place(&counting).as_str()) {
            ([], "later") => true,
            ([("later", 0)], "unknown") => {
                assert_eq!(counting.disputed[0].why, "nothing shows that its user made it");
                false
            }
            other => panic!("{other:?}"),
        }
    };
    let mut witness = FakeWitness::default();
    assert!(!is_users(&mut witness));
    witness.confirm("later", ConfirmedChange::Joined { pid: 8 });
    assert!(!is_users(&mut witness), "another process joined it");
    witness.confirm("later", ConfirmedChange::Joined { pid: 7 });
    assert!(is_users(&mut witness));
    for named in [7, 100] {
        let mut witness = FakeWitness::default();
        witness.name(named, "another", &[]);
        assert!(!is_users(&mut witness));
        witness.name(named, "later", &[]);
        // The member that names it shows whose it is; the process is in it by its own word or by that member.
        assert!(is_users(&mut witness), "{named}");
        // What its user ended is not begun again by what still names it.
        witness.confirm("later", ConfirmedChange::Ended);
        assert!(!is_users(&mut witness));
    }
}

#[test]
fn a_record_that_was_read_before_it_was_handed_over_is_its_users_while_the_new_process_is_in_it() {
    let mut nothing = files(None, &[]);
    snapshot(&mut nothing).processes.clear();
    let now = files(None, &[("later", &[0])]);
    let is_users = |user: Option<&str>, eid: &str, pid_namespace, then: &[(f64, ConfirmedChange)]| {
        let mut witness = FakeWitness::default();
        let mut records = first_seen(&mut witness, &nothing);
        witness.living.extend(user.map(|user| (8, uid(user))));
        let process = Some(Joined { start_time_ticks: 80, pid_namespace, is_job: false });
        let joined = Confirmed { process, ..confirmed(eid, NOON, ConfirmedChange::Joined { pid: 8 }) };
        let then = then.iter().map(|(seconds, change)| confirmed("later", NOON + seconds, change.clone()));
        // The order of the files of different users is not that of time.
        witness.confirmed = then.chain([joined]).collect();
        let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
        match (counting.disputed.len(), unconfirmed(&counting).len()) {
            (0, 0) => true,
            (1, 1) => false,
            other => panic!("{other:?}"),
        }
    };
    let left = |pid| ConfirmedChange::Left { pid };
    let here = INITIAL_PID_NAMESPACE;
    assert!(is_users(Some("alice"), "later", here, &[(1.0, left(7))]));
    assert!(is_users(Some("alice"), "later", here, &[(-1.0, left(8)), (-1.0, ConfirmedChange::Ended)]));
    assert!(!is_users(Some("bob"), "later", here, &[]));
    assert!(!is_users(None, "later", here, &[]));
    assert!(!is_users(Some("alice"), "another", here, &[]));
    assert!(!is_users(Some("alice"), "later", 4_026_532_000, &[]));
    assert!(!is_users(Some("alice"), "later", here, &[(1.0, left(8))]));
    assert!(!is_users(Some("alice"), "later", here, &[(1.0, ConfirmedChange::Ended)]));
}

#[test]
fn who_joins_a_second_environment_is_in_both() {
    let both: [(&str, &[u32]); 2] = [("e1", &[0]), ("e2", &[1])];
    let mut witness = FakeWitness::default();
    let mut records = first_seen(&mut witness, &files(Some("e1"), &both[..1]));
    let now = files(Some("e1"), &both);
    let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
    assert_eq!(unconfirmed(&counting), [("e2", 1)]);
    witness.confirm("e2", ConfirmedChange::Joined { pid: 7 });
    let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
    assert_eq!((unconfirmed(&counting), counting.disputed.len()), (vec![], 0));
    assert_eq!(eids(&counting), ["e1", "e2"]);
}

#[test]
fn a_member_that_came_later_makes_its_new_processes_unknown_until_something_bears_it_out() {
    let seen = &BOTH[..1];
    let mut witness = FakeWitness::default();
    let mut without = files(None, seen);
    snapshot(&mut without).processes.clear();
    let records = first_seen(&mut witness, &without);
    let mut now = files(Some("e1"), seen);
    record(&mut now, 0).members.push(Member { pid: 9, start_time_ticks: 90 });
    witness.living.insert(9, uid("alice"));
    let at = |witness: &mut FakeWitness| {
        let counting = records.clone().count(&now, Some(("gpu01", witness)), NOON);
        (place(&counting), counting.disputed.len())
    };
    assert_eq!(at(&mut witness), ("unknown".to_owned(), 1));
    // So is a process that was outside before.
    let mut outside = first_seen(&mut witness, &files(None, seen));
    assert_eq!(place(&outside.count(&now, Some(("gpu01", &mut witness)), NOON)), "unknown");
    witness.name(100, "e1", &[]);
    assert_eq!(at(&mut witness), ("e1".to_owned(), 1));
    witness.named.clear();
    witness.confirm("e1", ConfirmedChange::Joined { pid: 9 });
    assert_eq!(at(&mut witness), ("e1".to_owned(), 0));
}
