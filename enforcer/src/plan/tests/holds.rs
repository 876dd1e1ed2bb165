use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn outside() -> Lab {
    Lab::new(1, 2).runs(11, "bob", None, &[(0, GIB)])
}

fn terminate() -> Rule {
    Rule { name: "outside".to_owned(), ..rule(NonEnvProcesses, Action::Terminate) }
}

fn held(plan: &Plan) -> Option<&str> {
    assert_eq!(plan.violations.len(), 1);
    match &plan.violations[0].stage {
        Stage::Held { why } => {
            assert!(plan.steps.is_empty(), "{:?}", plan.steps);
            Some(why)
        }
        _ => None,
    }
}

#[test]
fn a_pause_holds_everything_until_it_ends() {
    let mut daemon = Daemon::new(vec![terminate()]);
    daemon.paused_until_seconds = Some(NOON + 60.0);
    assert_eq!(held(&daemon.plan(&outside())), Some("paused until 2026-11-20 12:01"));
    daemon.now_seconds = NOON + 60.0;
    assert_eq!(held(&daemon.plan(&outside())), None);
}

#[test]
fn maintenance_holds_its_hosts() {
    let mut daemon = Daemon::new(vec![terminate()]);
    daemon.config.maintenance = vec![maintenance("gpu02")];
    assert_eq!(held(&daemon.plan(&outside())), None);
    daemon.config.maintenance = vec![maintenance("gpu02"), maintenance("gpu01")];
    assert_eq!(held(&daemon.plan(&outside())), Some("its host is under maintenance until 2026-11-20 13:00"));
    daemon.now_seconds = NOON - 1.0;
    assert_eq!(held(&daemon.plan(&outside())), None);
    daemon.now_seconds = NOON + 3600.0;
    assert_eq!(held(&daemon.plan(&outside())), None);
}

#[test]
fn nothing_is_taken_from_a_host_under_maintenance_for_what_counts_over_all() {
    let kind = RuleKind::from(MaxHostsPerUser { limits: limit(1) });
    let lab = Lab::new(2, 1)
        .holder("a", "alice", &[(0, 50.0)])
        .environment("gpu02", "b", "alice")
        .attach("gpu02", "b", 0, 20.0);
    let mut daemon = Daemon::new(vec![rule(kind, Action::Detach)]);
    assert_eq!(actions(&daemon.plan(&lab)), ["detach b:0"]);
    daemon.config.maintenance = vec![maintenance("gpu02")];
    assert_eq!(actions(&daemon.plan(&lab)), ["detach a:0"]);
}

#[test]
fn waivers_of_the_file_and_of_the_moment_hold_their_users_and_rules() {
    for (waivers, waits) in [
        (vec![waiver("bob", &["outside"])], true),
        (vec![waiver("bob", &[])], true),
        (vec![waiver("bob", &["idle"])], false),
        (vec![waiver("alice", &[])], false),
        (vec![], false),
    ] {
        let (mut file, mut moment) = (Daemon::new(vec![terminate()]), Daemon::new(vec![terminate()]));
        (file.config.waivers, moment.waivers) = (waivers.clone(), waivers);
        for daemon in [&mut file, &mut moment] {
            let expected = waits.then_some("waived until 2026-11-21 12:00: dead\\nline");
            assert_eq!(held(&daemon.plan(&outside())), expected);
            daemon.now_seconds += 86_400.0;
            assert_eq!(held(&daemon.plan(&outside())), None);
        }
    }
}

fn schedule(days: &[Weekday], between: Option<(u32, u32)>) -> Schedule {
    Schedule { days: days.to_vec(), between_minutes: between, outside: OutsideSchedule::Pause }
}

fn berlin() -> TimeZone {
    TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
}

fn acts(schedule: &Schedule, zone: &TimeZone, time: &str) -> bool {
    let time: jiff::civil::DateTime = time.parse().unwrap();
    let time = time.to_zoned(zone.clone()).unwrap();
    schedule.holds_at(time.timestamp().as_second() as f64, zone)
}

#[test]
fn a_span_over_midnight_belongs_to_the_day_on_which_it_begins() {
    let weekdays = [Weekday::Monday, Weekday::Tuesday, Weekday::Wednesday, Weekday::Thursday, Weekday::Friday];
    let office = schedule(&weekdays, Some((8 * 60, 20 * 60)));
    let all_day = schedule(&[Weekday::Friday], None);
    let friday_night = schedule(&[Weekday::Friday], Some((22 * 60, 6 * 60)));
    // Friday, 20 November 2026; and the summer, in which UTC is an hour further off.
    for (schedule, within, outside) in [
        (
            office,
            &["2026-11-20T08:00:00", "2026-11-20T19:59:59", "2026-07-20T08:00:00"][..],
            &["2026-11-20T07:59:59", "2026-11-20T20:00:00", "2026-11-21T12:00:00", "2026-07-20T07:59:59"][..],
        ),
        (all_day, &["2026-11-20T00:00:00", "2026-11-20T23:59:59"], &["2026-11-21T00:00:00"]),
        (
            friday_night,
            &["2026-11-20T22:00:00", "2026-11-21T00:00:00", "2026-11-21T05:59:59"],
            &["2026-11-20T05:59:00", "2026-11-20T21:59:00", "2026-11-21T06:00:00", "2026-11-21T22:00:00"],
        ),
    ] {
        for time in [within, outside].concat() {
            assert_eq!(acts(&schedule, &berlin(), time), within.contains(&time), "{time}");
        }
    }
}

#[test]
fn an_hour_that_happens_twice_is_within_twice_and_a_skipped_one_never() {
    let berlin = berlin();
    let sunday = schedule(&[Weekday::Sunday], Some((2 * 60, 3 * 60)));
    let minutes_within = |midnight: &str| {
        let midnight: jiff::civil::DateTime = midnight.parse().unwrap();
        let midnight = midnight.to_zoned(berlin.clone()).unwrap().timestamp().as_second();
        let minutes = (0..25 * 60).map(|minute| (midnight + minute * 60) as f64);
        minutes.filter(|&at| sunday.holds_at(at, &berlin)).count()
    };
    assert_eq!(minutes_within("2026-10-25T00:00:00"), 120);
    assert_eq!(minutes_within("2026-03-29T00:00:00"), 0);
    assert_eq!(minutes_within("2026-11-22T00:00:00"), 60);
}

#[test]
fn outside_of_its_hours_a_violation_waits_where_it_is_or_begins_anew() {
    // From 12:02 on; the violation is there since noon, for two minutes it needs one.
    let scheduled = |outside| Rule {
        for_duration: seconds(60),
        schedule: Some(Schedule { outside, ..schedule(&[Weekday::Friday], Some((12 * 60 + 2, 13 * 60))) }),
        ..terminate()
    };
    let first_step = |mode, from: f64| {
        let mut daemon = Daemon::new(vec![scheduled(mode)]);
        daemon.now_seconds = NOON + from;
        assert!(daemon.run(&outside(), 10).is_empty());
        let steps = daemon.run(&outside(), 1000);
        steps[0].0
    };
    // No time counts before its hours.
    assert_eq!(first_step(OutsideSchedule::Pause, 0.0), 180.0);
    assert_eq!(first_step(OutsideSchedule::Reset, 0.0), 180.0);
    let mut daemon = Daemon::new(vec![scheduled(OutsideSchedule::Pause)]);
    assert_eq!(held(&daemon.plan(&outside())), Some("outside of its hours, fri 12:02-13:00"));
    // Seen for 20 s within them, it goes on or begins anew the next week.
    for (mode, expected) in [(OutsideSchedule::Pause, 40.0), (OutsideSchedule::Reset, 60.0)] {
        daemon = Daemon::new(vec![scheduled(mode)]);
        daemon.now_seconds = NOON + 3570.0;
        assert!(daemon.run(&outside(), 120).is_empty());
        daemon.now_seconds = NOON + 7.0 * 86_400.0 + 60.0;
        let steps = daemon.run(&outside(), 600);
        assert_eq!(steps[0].0, 7.0 * 86_400.0 + 120.0 + expected);
    }
}
