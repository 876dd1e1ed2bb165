//! Records beyond what a user or a host can need.

use super::*;

/// So many records in the names of some users; nothing shows that these made them.
fn forged(users: u32, each: u32) -> Lab {
    let mut lab = Lab::new(1, 2);
    for user in 0..users {
        let username = if users == 1 { "alice".to_owned() } else { format!("invented{user}") };
        for number in 0..each {
            let eid = format!("a{user:03}-{number:03}");
            lab = lab.environment("gpu01", &eid, &username);
        }
    }
    lab
}

/// The same, and Alice's environment `own`, with so much memory of device 0.
fn beside(lab: &Lab, memory_bytes: u64, has_process: bool) -> Vec<HostSnapshot> {
    let lab = lab.clone().environment("gpu01", "own", "alice");
    let memory_bytes = Some(memory_bytes);
    let mut lab = lab.attach_memory("gpu01", "own", 0, 60.0, memory_bytes);
    lab.eid("gpu01", "own").members = vec![Member { pid: 7, start_time_ticks: 70 }];
    if has_process {
        lab = lab.runs(100, "alice", Some("own"), &[(0, 1)]);
    }
    lab.at(NOON)
}

#[test]
fn what_others_write_takes_no_place_from_what_a_user_makes() {
    for (users, each) in [(1, 256), (1, 300), (41, 200)] {
        let mut witness = FakeWitness::of_member();
        witness.name(100, "own", &[0]);
        let mut records = Records::default();
        let mut count =
            |hosts: &[HostSnapshot], witness: &mut FakeWitness| records.count(hosts, Some(("gpu01", witness)), NOON);
        count(&Lab::new(1, 2).at(NOON), &mut witness);
        let lab = forged(users, each);
        for _ in 0..2 {
            let counting = count(&lab.at(NOON), &mut witness);
            assert_eq!(counting.too_many, [], "nobody is named for these");
        }
        count(&beside(&lab, 8, true), &mut witness);
        let counting = count(&beside(&lab, 1, true), &mut witness);
        assert_eq!(place(&counting), "own");
        let dispute = counting.disputed.iter().find(|it| it.eid == "own");
        let why = dispute.map(|it| it.why.as_str());
        assert_eq!(why, Some("its memory on device 0 was lowered"));
        assert_eq!(counting.too_many, []);
        // All that counts is remembered.
        let known = &records.hosts["gpu01"];
        let counted = eids(&counting);
        assert!(counted.iter().all(|eid| known.contains_key(*eid)));
        assert!(counted.len() <= MAX_OF_A_HOST + 1, "{}", counted.len());
    }
}

#[test]
fn a_command_of_the_user_bears_out_a_record_among_many() {
    let mut witness = FakeWitness::of_member();
    witness.confirm("own", ConfirmedChange::Joined { pid: 7 });
    let mut records = Records::default();
    records.count(&Lab::new(1, 2).at(NOON), Some(("gpu01", &mut witness)), NOON);
    let lab = forged(1, 300);
    records.count(&lab.at(NOON), Some(("gpu01", &mut witness)), NOON);
    let now = beside(&lab, 8, false);
    let counting = records.count(&now, Some(("gpu01", &mut witness)), NOON);
    assert!(eids(&counting).contains(&"own"));
    assert_eq!(unconfirmed(&counting), []);
}

#[test]
fn a_user_is_named_for_too_many_records_that_the_user_bears_out() {
    let mut witness = FakeWitness::default();
    let mut records = Records::default();
    for _ in 0..3 {
        // What was there before this program is believed.
        let hosts = forged(1, 300).at(NOON);
        let counting = records.count(&hosts, Some(("gpu01", &mut witness)), NOON);
        let named: Vec<u64> = counting.too_many.iter().map(|it| it.records).collect();
        assert_eq!((named, eids(&counting).len()), (vec![300], MAX_OF_A_USER));
    }
}
