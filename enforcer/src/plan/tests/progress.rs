use std::collections::BTreeSet;
use std::sync::Arc;

use genv_core::model::DeviceIndex;
use proptest::prelude::*;
use proptest::sample::select;

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn outside(remember: u64) -> Rule {
    rule(NonEnvProcesses, Action::Terminate).timed(60, &[60], remember)
}

fn with(username: &str, pid: u32) -> Lab {
    Lab::new(1, 2).runs(pid, username, None, &[(0, GIB)])
}

fn hidden(username: &str, pid: u32) -> Lab {
    let mut lab = with(username, pid);
    lab.hide(pid, "state_unreadable");
    lab
}

#[test]
fn who_is_unknown_now_and_then_is_ended_all_the_same_and_not_sooner() {
    let mut daemon = Daemon::new(vec![outside(0)]);
    let mut steps = Vec::new();
    for cycle in 0..40 {
        // Two cycles in six.
        let lab = if cycle % 6 < 4 { with("bob", 10) } else { hidden("bob", 10) };
        steps.extend(daemon.run(&lab, 10));
    }
    // 30 s of each minute are seen.
    assert_eq!(lines(&steps), ["90 report", "90 warn 1/1", "210 terminate 10"]);
    // Whoever stays unknown is neither ended nor forgotten.
    let mut daemon = Daemon::new(vec![outside(0)]);
    daemon.run(&with("bob", 10), 100);
    assert_eq!(daemon.run(&hidden("bob", 10), 7200), []);
    let steps = daemon.run(&with("bob", 10), 100);
    assert_eq!(lines(&steps), ["7330 terminate 10"]);
    // It ended: nothing is unknown.
    let mut daemon = Daemon::new(vec![outside(0)]);
    daemon.run(&with("bob", 10), 100);
    daemon.run(&hidden("bob", 11), 10);
    assert!(daemon.history.violations.is_empty());
}

#[test]
fn what_the_driver_does_not_tell_for_a_moment_goes_on_and_a_device_that_is_gone_ends_it() {
    let mut untold = Lab::new(1, 2);
    untold.hosts[0].devices[0].processes_measured = false;
    let mut elsewhere = Lab::new(1, 2);
    elsewhere.hosts[0].devices[1].processes_measured = false;
    let mut gone = Lab::new(1, 2);
    gone.hosts[0].devices.remove(0);
    for (lab, is_kept) in [(untold, true), (elsewhere, false), (gone, false)] {
        let mut daemon = Daemon::new(vec![outside(0)]);
        daemon.run(&with("bob", 10), 100);
        daemon.run(&lab, 100);
        assert_eq!(!daemon.history.violations.is_empty(), is_kept);
    }
    // Of a rule about memory, the amount is evidence too.
    let mut daemon = Daemon::new(vec![rule(max_memory(1, MemoryPer::Device, Scope::Host), Action::Report)]);
    daemon.run(&with("bob", 10), 100);
    let mut lab = with("bob", 10);
    lab.pid("gpu01", 10).devices[0].memory_used_bytes = None.into();
    daemon.run(&lab, 100);
    assert_eq!(daemon.history.violations.len(), 1);
}

#[test]
fn a_damaged_record_freezes_the_rules_about_its_environment_and_no_others() {
    let rule = rule(max_devices_per_user(1, Scope::Host), Action::Detach).timed(60, &[], 0);
    let lab = |with_alice: bool| {
        let lab = Lab::new(1, 4).holder("e2", "bob", &[(2, 60.0), (3, 30.0)]);
        if with_alice { lab.holder("e1", "alice", &[(0, 60.0), (1, 30.0)]) } else { lab }
    };
    let mut damaged = lab(false);
    damaged.damage("environment e1 is left out");
    let mut daemon = Daemon::new(vec![rule.clone()]);
    let mut steps = Vec::new();
    for cycle in 0..24 {
        let lab = if cycle % 3 == 2 { &damaged } else { &lab(true) };
        steps.extend(daemon.run(lab, 10));
    }
    let lines = lines(&steps);
    assert!(lines.contains(&"60 detach e2:3".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|step| step.ends_with("detach e1:1")), "{lines:?}");
    // bob gave one back while a record of alice's is damaged: his violation is over.
    let mut daemon = Daemon::new(vec![rule]);
    daemon.run(&lab(true), 30);
    Arc::make_mut(&mut damaged.hosts[0].devices[3].attachments).clear();
    damaged.eid("gpu01", "e2").devices.pop();
    daemon.run(&damaged, 10);
    let users: Vec<_> = daemon.history.violations.values().collect();
    assert_eq!(users.len(), 1, "{users:#?}");
}

#[test]
fn another_process_goes_on_where_the_last_one_was_and_after_the_time_of_the_rule_it_does_not() {
    let respawned = |rule: Rule, pause: u64| {
        let mut daemon = Daemon::new(vec![rule]);
        let mut steps = daemon.run(&with("bob", 10), 100);
        steps.extend(daemon.run(&Lab::new(1, 2), pause));
        steps.extend(daemon.run(&with("bob", 11), 40));
        steps.extend(daemon.run(&with("bob", 12), 200));
        lines(&steps)
    };
    // Of the 60 s after the warning, 30 were seen of the first; what a cycle sees first adds nothing.
    assert_eq!(
        respawned(outside(120), 100),
        ["60 report", "60 warn 1/1", "200 report", "230 terminate 11", "240 report", "240 terminate 12"]
    );
    assert_eq!(respawned(outside(120), 130)[2..], ["290 report", "290 warn 1/1", "350 terminate 12"]);
    assert_eq!(respawned(outside(0), 10)[2..], ["210 report", "210 warn 1/1", "270 terminate 12"]);
}

#[test]
fn who_starts_the_next_process_before_the_last_one_ends_goes_on_too_and_nobody_else_does() {
    let mut daemon = Daemon::new(vec![outside(120)]);
    daemon.run(&with("bob", 10), 80);
    let both = with("bob", 10).runs(11, "bob", None, &[(0, GIB)]);
    assert_eq!(daemon.run(&both, 20), []);
    let carol = with("bob", 11).runs(12, "carol", None, &[(0, GIB)]);
    let steps = daemon.run(&carol, 300);
    assert_eq!(lines(&steps), ["110 report", "140 terminate 11", "160 report", "160 warn 1/1", "220 terminate 12"]);
    // On another device it is another matter.
    let mut daemon = Daemon::new(vec![outside(120)]);
    daemon.run(&with("bob", 10), 100);
    let mut elsewhere = with("bob", 11);
    elsewhere.pid("gpu01", 11).devices[0].index = DeviceIndex::gpu(1);
    let steps = daemon.run(&elsewhere, 100);
    assert_eq!(lines(&steps), ["160 report", "160 warn 1/1"]);
}

/// Devices that alice, who may have two of eight, holds on average after all her warnings if she takes all of them again one
/// cycle after they were taken, and lets them go for one cycle shortly before they would be.
fn average_devices(remember: u64, evades: bool) -> f64 {
    let rule = rule(max_devices_per_user(2, Scope::Host), Action::Detach);
    let mut daemon = Daemon::new(vec![rule.timed(300, &[600], remember)]);
    let hold = |gpus: &[u32], since: f64| {
        gpus.iter().fold(Lab::new(1, 8).environment("gpu01", "e1", "alice"), |lab, &gpu| {
            lab.attach("gpu01", "e1", gpu, NOON - since)
        })
    };
    let (mut held, mut since): (Vec<u32>, f64) = ((0..8).collect(), NOON);
    let mut total = 0;
    // The rule takes 90 cycles until it acts first.
    const WARNED: u64 = 100;
    const CYCLES: u64 = 200;
    for cycle in 0..CYCLES {
        if cycle >= WARNED {
            total += held.len();
        }
        let plan = daemon.cycle(&hold(&held, since));
        let is_full = held.len() == 8;
        let taken = actions(&plan);
        held.retain(|gpu| !taken.contains(&format!("detach e1:{gpu}")));
        if !is_full {
            (held, since) = ((0..8).collect(), daemon.now_seconds);
        } else if evades && cycle % 85 == 84 {
            held.truncate(2);
        }
        daemon.now_seconds += 10.0;
    }
    total as f64 / (CYCLES - WARNED) as f64
}

#[test]
fn a_maximum_holds_on_average_for_who_takes_all_again_each_time() {
    for evades in [false, true] {
        assert!(average_devices(0, evades) > 7.8);
        // Each time they are there for the one cycle in which they are found.
        let average = average_devices(900, evades);
        assert!(average < 5.2, "{average}");
    }
}

#[test]
fn who_attaches_an_idle_device_again_does_not_begin_a_new_window() {
    let again = |remember: u64, username: &str| {
        let mut daemon = Daemon::new(vec![idle(Action::Detach).timed(0, &[], remember)]);
        let held = |eid: &str, username: &str, before: f64| Lab::new(1, 1).holder(eid, username, &[(0, before)]);
        let mut steps = daemon.run(&held("e1", "alice", 3600.0), 500);
        steps.extend(daemon.run(&held("e1", "alice", -500.0), 50));
        steps.extend(daemon.run(&Lab::new(1, 1), 100));
        steps.extend(daemon.run(&held("e2", username, -650.0), 1000));
        let first = steps.iter().find(|(_, step)| matches!(step, StepKind::Detach(_)));
        first.map(|(at, _)| *at)
    };
    assert_eq!(again(0, "alice"), Some(1250.0));
    assert_eq!(again(600, "bob"), Some(1250.0));
    let at = again(600, "alice").unwrap();
    assert!((700.0..760.0).contains(&at), "{at}");
}

#[test]
fn who_attaches_an_idle_device_again_before_every_look_is_found() {
    let first = |remember: u64, warned: bool, eid: &dyn Fn(u64) -> String| {
        let (for_seconds, warn): (_, &[_]) = if warned { (60, &[60]) } else { (0, &[]) };
        let mut daemon = Daemon::new(vec![idle(Action::Detach).timed(for_seconds, warn, remember)]);
        (0..200).find(|look| {
            let since = NOON - daemon.now_seconds;
            let lab = Lab::new(1, 1).holder(&eid(*look), "alice", &[(0, since + 5.0)]);
            let steps = daemon.run(&lab, 10);
            steps.iter().any(|(_, step)| matches!(step, StepKind::Detach(_)))
        })
    };
    let same = |_: u64| "e1".to_owned();
    let new = |look: u64| format!("e{look}");
    for eid in [&same as &dyn Fn(u64) -> String, &new] {
        assert_eq!(first(600, false, eid), Some(60));
        assert_eq!(first(0, false, eid), None);
        let at = first(600, true, eid);
        assert!(at.is_some_and(|at| (66..=76).contains(&at)), "{at:?}");
    }
}

#[test]
fn who_starts_another_process_before_every_look_is_ended_after_the_same_time() {
    let first = |remember: u64, respawns: u32| {
        let mut daemon = Daemon::new(vec![outside(remember)]);
        (0..60).find(|look| {
            let steps = daemon.run(&with("bob", 10 + look * respawns), 10);
            steps.iter().any(|(_, step)| matches!(step, StepKind::Terminate(_)))
        })
    };
    let at = first(600, 0);
    assert!(at.is_some());
    assert_eq!(first(600, 1), at);
    assert_eq!(first(0, 1), None);
}

#[test]
fn what_waits_for_its_turn_is_due_over_a_restart_until_it_is_over() {
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate)]);
    let lab = with("bob", 10).runs(11, "carol", None, &[(1, GIB)]);
    let paced = |step: &Step| match &step.kind {
        StepKind::Terminate(_) => Outcome::Refused { reason: "paced".to_owned(), again: true },
        _ => Outcome::Done,
    };
    daemon.cycle_with(&lab, paced);
    daemon.now_seconds += 10.0;
    let due = |history: &History| history.due().cloned().collect::<BTreeSet<_>>();
    let restarted = History::parse(&daemon.history.to_json().unwrap()).unwrap();
    assert_eq!(due(&restarted).len(), 2);
    let plan = daemon.plan(&lab);
    let mut ends = plan.steps.iter();
    assert!(ends.all(|step| due(&restarted).contains(&step.key)));
    daemon.cycle(&with("bob", 10));
    assert_eq!(due(&daemon.history).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_user_does_an_end_follows_what_was_seen_and_said_of_that_user(
        remember in select(vec![0_u64, 60, 600]),
        moments in prop::collection::vec((0..6_u8, 1..8_u64), 1..40),
    ) {
        let mut daemon = Daemon::new(vec![outside(remember)]);
        // Of each user: seconds that were seen, and when the user was warned of.
        let mut seen = [0.0_f64; 2];
        let mut warned: [Option<f64>; 2] = [None; 2];
        let users = ["bob", "carol"];
        let mut pid = 10;
        for (moment, cycles) in moments {
            pid += 1;
            let (lab, who) = match moment {
                0 | 1 => (with("bob", pid), Some(0)),
                2 => (with("carol", pid), Some(1)),
                3 => (hidden("bob", pid), None),
                4 => (Lab::new(1, 2), None),
                _ => {
                    let mut silent = Lab::new(1, 2);
                    silent.silent.insert("gpu01".to_owned());
                    (silent, None)
                }
            };
            for _ in 0..cycles {
                for step in daemon.cycle(&lab).steps {
                    let username = users[who.unwrap()];
                    match step.kind {
                        StepKind::Warn { .. } => {
                            prop_assert!(seen[who.unwrap()] >= 60.0);
                            warned[who.unwrap()].get_or_insert(seen[who.unwrap()]);
                        }
                        StepKind::Terminate(target) => {
                            prop_assert_eq!(&target.username, username);
                            let at = warned[who.unwrap()];
                            prop_assert!(at.is_some_and(|at| seen[who.unwrap()] - at >= 60.0));
                        }
                        _ => {}
                    }
                }
                // From here to the next look.
                if let Some(who) = who {
                    seen[who] += 10.0;
                }
                daemon.now_seconds += 10.0;
            }
        }
        prop_assert!(daemon.history.violations.len() <= 40);
        daemon.run(&Lab::new(1, 2), 700);
        let json = daemon.history.to_json().unwrap();
        prop_assert!(!json.contains("bob"), "{}", json);
    }
}
