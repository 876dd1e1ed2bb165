//! The published file, and the sentences about a violation.

use jiff::tz::TimeZone;

use super::*;

#[test]
fn a_missing_file_is_none_and_a_damaged_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Enforcement::read(folder.path()), Ok(None));
    let path = folder.path().join(ENFORCEMENT_FILE);
    fs::write(&path, "{\"mode\": \"dry-run\", \"later\": 1}").unwrap();
    let read = Enforcement::read(folder.path()).unwrap().unwrap();
    assert_eq!(read.mode, "dry-run");
    fs::write(&path, "{").unwrap();
    let error = Enforcement::read(folder.path()).unwrap_err();
    assert!(error.contains("it is damaged"), "{error}");
}

#[test]
fn a_status_is_abandoned_after_some_intervals_unless_the_enforcer_runs_once() {
    let of = |interval_seconds| Enforcement {
        interval_seconds,
        updated_timestamp_seconds: 1000.0,
        ..Enforcement::default()
    };
    assert!(!of(10.0).is_abandoned(1059.0));
    assert!(of(10.0).is_abandoned(1061.0));
    assert!(!of(0.0).is_abandoned(1e9));
}

#[test]
fn late_enforcers_and_blind_sources_leave_violations_unknown() {
    let of = |change: fn(&mut Enforcement)| {
        let mut status =
            Enforcement { interval_seconds: 10.0, updated_timestamp_seconds: 1000.0, ..Enforcement::default() };
        change(&mut status);
        status.not_known(1005.0)
    };
    assert_eq!(of(|_| {}), None);
    let known = of(|it| it.updated_timestamp_seconds = 800.0);
    assert_eq!(known.as_deref(), Some("the enforcer has ended or hangs, and its last cycle was 3m25s ago"));
    let known = of(|it| it.updated_timestamp_seconds = 965.0);
    assert_eq!(known.as_deref(), Some("the enforcer is late, and its last cycle was 40s ago"));
    assert_eq!(of(|it| it.updated_timestamp_seconds = 975.0), None);
    let blind = |source: &str| Blind { hostname: "gpu01".to_owned(), source: source.to_owned(), ..Blind::default() };
    let mut status = Enforcement {
        blind: vec![blind("state"), blind("host")],
        missing_hosts: (0..7).map(|it| format!("gpu{it}")).collect(),
        ..Enforcement::default()
    };
    let known = status.not_known(0.0);
    assert_eq!(known.as_deref(), Some("the enforcer is blind: state of gpu01, gpu01"));
    status.blind.clear();
    let known = status.not_known(0.0);
    assert_eq!(known.as_deref(), Some("there are no fresh facts of gpu0, gpu1, gpu2, gpu3, gpu4 and 2 more"));
}

#[test]
fn the_outlook_of_a_violation_depends_on_its_stage_and_the_stance() {
    let violation = |stage: &str, at_seconds| HeldViolation {
        action: "detach".to_owned(),
        stage: stage.to_owned(),
        at_seconds,
        why: (stage == "held").then(|| "paused".to_owned()),
        targets: vec!["device 0 of environment e1".to_owned()],
        ..HeldViolation::default()
    };
    for (stance, stage, at_seconds, expected) in [
        (Stance::Enforces, "pending", Some(-1.0), "the next step comes in the next cycle, unless it is over"),
        (Stance::OnlyReports, "warned", Some(-1.0), "at the next chance it would be taken: device 0 of environment e1"),
        (Stance::Enforces, "pending", Some(60.0), "nothing follows if it is over by 1970-01-01 00:01 (in 1m)"),
        (Stance::Enforces, "warned", Some(60.0), "at 1970-01-01 00:01 (in 1m) it is taken: device 0 of environment e1"),
        (
            Stance::OnlyReports,
            "warned",
            Some(60.0),
            "at 1970-01-01 00:01 (in 1m) it would be taken: device 0 of environment e1",
        ),
        (Stance::Enforces, "due", None, "now it is taken: device 0 of environment e1"),
        (Stance::Enforces, "acted", Some(-60.0), "was taken at 1969-12-31 23:59 (1m ago): device 0 of environment e1"),
        (
            Stance::OnlyReports,
            "acted",
            Some(-60.0),
            "would have been taken at 1969-12-31 23:59 (1m ago): device 0 of environment e1",
        ),
        (Stance::Enforces, "held", None, "held: paused"),
        (Stance::Stopped, "warned", Some(60.0), "nothing, until an administrator closes the breaker"),
    ] {
        let outlook = violation(stage, at_seconds).outlook(stance, 0.0, &TimeZone::UTC);
        assert_eq!(outlook, expected);
    }
}
#[test]
fn a_sent_signal_does_not_end_a_violation_and_a_report_has_one_time() {
    let violation = |action: &str, kill_seconds| HeldViolation {
        action: action.to_owned(),
        stage: "acted".to_owned(),
        at_seconds: Some(-60.0),
        kill_seconds,
        targets: vec!["process 7".to_owned()],
        ..HeldViolation::default()
    };
    let of = |action, kill_seconds| {
        let it = violation(action, kill_seconds);
        it.outlook(Stance::Enforces, 0.0, &TimeZone::UTC)
    };
    let sent = "was sent at 1969-12-31 23:59 (1m ago); still there: process 7;";
    assert_eq!(of("terminate", None), format!("SIGTERM {sent} nothing more follows"));
    assert_eq!(of("kill", Some(30.0)), format!("SIGTERM {sent} SIGKILL follows at 1970-01-01 00:00 (in 30s)"));
    assert_eq!(of("kill", None), format!("SIGKILL {sent} nothing more follows"));
    assert_eq!(of("report", None), "was reported at 1969-12-31 23:59 (1m ago)");
    assert_eq!(
        violation("terminate", None).done(0.0, &TimeZone::UTC),
        "SIGTERM was sent at 1969-12-31 23:59 (1m ago): process 7"
    );
    let unread = HeldViolation { undelivered: Some(UndeliveredWarning::default()), ..violation("warn", None) };
    assert_eq!(
        unread.outlook(Stance::Enforces, 0.0, &TimeZone::UTC),
        "the warning of 1969-12-31 23:59 (1m ago) was not delivered"
    );
}
