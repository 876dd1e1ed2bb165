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
