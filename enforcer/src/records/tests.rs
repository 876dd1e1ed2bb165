use genv_core::model::Member;
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
