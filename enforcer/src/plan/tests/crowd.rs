//! Devices on which processes of other users leave little or no time: who is crowded out is not idle.

use super::daemon::*;
use crate::config::*;

const OVER: u64 = 600;

/// alice holds device 0 and makes so much of it; so many processes of another user each make so much of it.
fn crowd(own: f64, user: &str, count: u32, each: f64) -> Lab {
    let mut lab = Lab::new(1, 2).holder("e1", "alice", &[(0, 3600.0)]).runs(10, "alice", Some("e1"), &[(0, GIB)]);
    lab.utilize(10, &[Some(own)]);
    for pid in 100..100 + count {
        lab = lab.runs(pid, user, None, &[(0, 1 << 20)]);
        lab.utilize(pid, &[Some(each)]);
    }
    lab
}

fn is_found(lab: &Lab) -> bool {
    let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
    !daemon.run(lab, OVER + 100).is_empty()
}

#[test]
fn who_is_crowded_out_by_other_users_is_not_idle() {
    // A share of what the others left.
    assert!(!is_found(&crowd(0.03, "mallory", 40, 0.02)));
    assert!(is_found(&crowd(0.03, "mallory", 20, 0.01)));
    // They leave nothing: what alice would make of it is not measured.
    assert!(!is_found(&crowd(0.0, "mallory", 100, 0.01)));
    assert!(!is_found(&crowd(0.01, "mallory", 1, 1.0)));
    // Shares below a percent are not told: the device tells that it works all the time.
    let mut tiny = crowd(0.01, "mallory", 200, 0.0);
    assert!(is_found(&tiny));
    tiny.hosts[0].devices[0].measurements.utilization_ratio = Some(1.0);
    assert!(!is_found(&tiny));
    // Who uses nothing of what is left is idle.
    assert!(is_found(&crowd(0.0, "mallory", 1, 0.9)));
    assert!(is_found(&crowd(0.0, "mallory", 1, 0.0)));
}

#[test]
fn nobody_crowds_out_himself_and_who_has_no_process_there_is_idle() {
    assert!(is_found(&crowd(0.0, "alice", 1, 1.0)));
    let mut own = crowd(0.01, "alice", 1, 0.0);
    own.hosts[0].devices[0].measurements.utilization_ratio = Some(1.0);
    assert!(is_found(&own));
    let mut empty = crowd(0.0, "mallory", 1, 1.0);
    empty.hosts[0].processes.retain(|it| it.pid != 10);
    assert!(is_found(&empty));
}

#[test]
fn a_crowd_stops_the_time_of_a_window_and_a_short_one_forgets_nothing() {
    // A gap of less than a twentieth of the time does not lift the average over the limit.
    for (crowd_seconds, waits) in [(10, 0), (300, OVER - 10)] {
        let mut daemon = Daemon::new(vec![idle(Action::Detach)]);
        let alone = crowd(0.0, "mallory", 0, 0.0);
        assert_eq!(daemon.run(&alone, OVER - 10), []);
        let crowded = crowd(0.0, "mallory", 1, 1.0);
        assert_eq!(daemon.run(&crowded, crowd_seconds), []);
        let steps = daemon.run(&alone, 2 * OVER);
        let expected = (OVER + crowd_seconds + waits) as f64 + 10.0;
        let part = OVER as f64 / 12.0 + 20.0;
        assert!((expected..=expected + part).contains(&steps[0].0), "{steps:?}");
    }
}

#[test]
fn a_process_that_is_crowded_out_on_its_other_device_is_spared() {
    let mut lab = Lab::new(1, 3)
        .holder("e1", "alice", &[(0, 3600.0), (1, 3600.0)])
        .runs(10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
        .runs(20, "mallory", None, &[(0, GIB)]);
    for (own, others) in [(0.02, 0.97), (0.0, 1.0)] {
        lab.utilize(10, &[Some(own), Some(0.0)]);
        lab.utilize(20, &[Some(others)]);
        assert_eq!(idle_actions(&lab), ["detach e1:1"], "{own}");
    }
}
