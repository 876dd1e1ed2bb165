use genv_core::enforcement::DisputedRecord;

use super::*;

/// 2026-11-20T12:00:00Z.
const NOON: f64 = 1_795_176_000.0;

fn violation(stage: &str, at_seconds: Option<f64>, why: Option<&str>) -> HeldViolation {
    HeldViolation {
        rule: "idle".to_owned(),
        username: "alice".to_owned(),
        hostname: Some("gpu02".to_owned()),
        subject: "environment 7 on device 0".to_owned(),
        action: "detach".to_owned(),
        since_seconds: NOON - 1800.0,
        stage: stage.to_owned(),
        at_seconds,
        why: why.map(str::to_owned),
        found: "device 0 was used 1% over 2h".to_owned(),
        allowed: "5% or more".to_owned(),
        targets: vec!["device 0 of environment 7".to_owned()],
        ..HeldViolation::default()
    }
}

#[test]
fn a_status_says_who_breaks_what_since_when_what_follows_and_why_not() {
    let status = |mode: &str, violations: Vec<HeldViolation>| Enforcement {
        mode: mode.to_owned(),
        updated_timestamp_seconds: NOON,
        interval_seconds: 10.0,
        violations,
        ..Enforcement::default()
    };
    let all = vec![
        violation("pending", Some(NOON + 300.0), None),
        violation("warned", Some(NOON + 300.0), None),
        violation("due", None, None),
        violation("due", None, Some("20 signals were sent within a minute")),
        violation("held", None, Some("paused until 2026-11-20 14:00")),
        violation("acted", Some(NOON - 60.0), None),
    ];
    let of = |mode: &str, violations: Vec<HeldViolation>| {
        let text = text(&status(mode, violations), NOON, &TimeZone::UTC);
        text.split_once("\n\n").unwrap().1.to_owned()
    };
    let enforced = of("enforce", all);
    let rehearsed = of("dry-run", vec![violation("acted", Some(NOON - 60.0), None)]);
    insta::assert_snapshot!(format!("{enforced}\ndry-run\n{rehearsed}"));
}

#[test]
fn a_status_names_what_is_not_known_and_what_does_not_count() {
    let of = |change: &dyn Fn(&mut Enforcement)| {
        let mut status =
            Enforcement { updated_timestamp_seconds: NOON, interval_seconds: 10.0, ..Enforcement::default() };
        change(&mut status);
        text(&status, NOON, &TimeZone::UTC)
    };
    assert!(of(&|_| ()).contains("\nNobody breaks a rule.\n"));
    let zoned = of(&|it| it.config.timezone = Some("UTC (now +00:00)".to_owned()));
    assert!(zoned.contains("\nTimezone   UTC (now +00:00)\n"), "{zoned}");
    let (idle, gpu02, alice) = (|| "idle".to_owned(), || "gpu02".to_owned(), || "alice".to_owned());
    let frozen = of(&|status| {
        status.frozen = vec![FrozenViolation {
            rule: idle(),
            username: Some(alice()),
            hostname: Some(gpu02()),
            subject: "device 0".to_owned(),
            since_seconds: NOON - 1800.0,
            unknown_since_seconds: NOON - 60.0,
            why: "a record of genv's state is damaged or disputed".to_owned(),
        }];
    });
    let not_judged = of(&|status| {
        let why = words::not_measured([0]);
        status.not_judged = vec![NotJudged { rule: idle(), hostname: gpu02(), gpus: vec![0], why }];
    });
    let unknown = of(&|status| {
        status.unknown_processes = [(gpu02(), 2)].into();
        status.unknown_processes_by_user = [(gpu02(), [(alice(), 2)].into())].into();
    });
    let disputed = of(&|status| {
        let why = "device 0 was taken from it".to_owned();
        let record = DisputedRecord { hostname: gpu02(), eid: "7".to_owned(), username: alice(), why };
        (status.disputed_records, status.disputed_records_total) = (vec![record], 3);
    });
    let left_behind = of(&|status| {
        status.left_behind = vec![LeftBehindContext {
            hostname: gpu02(),
            username: alice(),
            eid: "7".to_owned(),
            pid: 42,
            comm: Some("python".to_owned()),
            gpu: 1,
            works_on: 0,
        }];
    });
    for (text, part) in [
        (&frozen, "alice broke rule idle on gpu02: device 0\n"),
        (&frozen, "Frozen   since 2026-11-20 11:59 (1m ago): a record of genv's"),
        (&not_judged, "Not judged by idle on gpu02: the utilization of device 0 is not measured"),
        (&not_judged, "Nobody is known to break a rule."),
        (&unknown, "Unknown    2 processes on gpu02, never acted upon: 2 of alice"),
        (&unknown, "Of 2 unknown processes it cannot be told."),
        (&disputed, "Disputed   environment 7 of alice on gpu02: device 0 was taken from it;"),
        (&disputed, "Disputed   2 more"),
        (
            &left_behind,
            "process 42 (python) of alice on gpu02: a detach left its context on device 1; it works on device 0",
        ),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for text in [frozen, not_judged, unknown] {
        assert!(!text.contains("Nobody breaks a rule"), "{text}");
    }
}
