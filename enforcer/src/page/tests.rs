use genv_core::enforcement::{Blind, EnforcementConfig, EnforcementWaiver, FrozenViolation, UndeliveredWarning};
use genv_web::Method;
use genv_web::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};

use super::*;
use crate::directory::RuntimeDirectory;

/// 2026-11-20T12:00:00Z.
const NOON: f64 = 1_795_176_000.0;

const HOSTILE: &str = "<script>\"'&\u{1b}[31m\u{202e}";

fn violation(username: &str, action: &str, stage: &str, at_seconds: Option<f64>) -> HeldViolation {
    HeldViolation {
        rule: "idle".to_owned(),
        username: username.to_owned(),
        hostname: Some("gpu02".to_owned()),
        subject: "environment 7 on device 0".to_owned(),
        action: action.to_owned(),
        since_seconds: NOON - 1800.0,
        stage: stage.to_owned(),
        at_seconds,
        found: "device 0 was used 1% over 2h".to_owned(),
        allowed: "5% or more".to_owned(),
        remedy: "use it, or in environment 7 run 'genv detach --index 0'".to_owned(),
        targets: vec!["device 0 of environment 7".to_owned()],
        ..HeldViolation::default()
    }
}

fn of_each_stage() -> Vec<HeldViolation> {
    let why = |it: HeldViolation, why: &str| HeldViolation { why: Some(why.to_owned()), ..it };
    let unread =
        UndeliveredWarning { number: 2, of: 2, why: "no terminal".to_owned(), ..UndeliveredWarning::default() };
    vec![
        violation("alice", "report", "acted", Some(NOON - 60.0)),
        why(violation("bob", "detach", "held", None), "paused until 2026-11-20 14:00"),
        violation("carol", "detach", "pending", Some(NOON + 300.0)),
        HeldViolation { undelivered: Some(unread), ..violation("dave", "detach", "warned", Some(NOON + 60.0)) },
        HeldViolation { victim_uids: vec![1005], ..violation("erin", "terminate", "acted", Some(NOON - 30.0)) },
        HeldViolation { kill_seconds: Some(NOON + 20.0), ..violation("frank", "kill", "acted", Some(NOON - 10.0)) },
        violation("grace", "detach", "due", None),
        why(violation("heidi", "detach", "due", None), "20 signals were sent within a minute"),
        HeldViolation {
            rule: HOSTILE.to_owned(),
            hostname: None,
            subject: format!("environment {HOSTILE}"),
            found: HOSTILE.to_owned(),
            allowed: HOSTILE.to_owned(),
            remedy: HOSTILE.to_owned(),
            targets: vec![HOSTILE.to_owned()],
            ..violation(HOSTILE, "kill", "warned", Some(NOON + 120.0))
        },
    ]
}

fn main_of(status: Enforcement, actions: Actions) -> String {
    let status = Enforcement { updated_timestamp_seconds: NOON, interval_seconds: 10.0, ..status };
    let findings = Findings::new(status, Arc::new(actions), TimeZone::UTC);
    findings.main(NOON + 5.0).into_string().replace("><", ">\n<")
}

#[test]
fn the_page_shows_each_violation_with_its_reasons_then_the_next_steps_and_the_actions() {
    let hostile = || HOSTILE.to_owned();
    let status = Enforcement {
        mode: "enforce".to_owned(),
        config: EnforcementConfig {
            source: "/etc/genv/enforcer.yaml".to_owned(),
            hash: "0123456789abcdef".to_owned(),
            rules: vec!["idle".to_owned(), "devices".to_owned()],
            loaded_timestamp_seconds: NOON - 600.0,
            error: Some(format!("enforcer.yaml:3:1: {HOSTILE}\n3 | x")),
            timezone: Some("UTC (now +00:00)".to_owned()),
        },
        paused_until_seconds: Some(NOON + 7200.0),
        blind: vec![Blind {
            hostname: hostile(),
            source: "gpu".to_owned(),
            since_seconds: NOON - 30.0,
            why: hostile(),
        }],
        missing_hosts: (0..12).map(|it| format!("gpu{it}")).collect(),
        faults: vec![hostile()],
        waivers: vec![EnforcementWaiver {
            users: vec![hostile()],
            rules: vec!["idle".to_owned()],
            until_seconds: NOON + 86_400.0,
            reason: hostile(),
        }],
        violations: of_each_stage(),
        frozen: vec![FrozenViolation {
            rule: "idle".to_owned(),
            username: Some(hostile()),
            hostname: Some("gpu02".to_owned()),
            subject: "device 0".to_owned(),
            since_seconds: NOON - 1800.0,
            unknown_since_seconds: NOON - 60.0,
            why: hostile(),
        }],
        ..Enforcement::default()
    };
    let old = violation("alice", "terminate", "acted", Some(NOON - KEPT_SECONDS));
    let hostile = HeldViolation { targets: vec![hostile()], ..violation(HOSTILE, "kill", "acted", Some(NOON - 9.0)) };
    let reports = vec![old, violation("bob", "detach", "acted", Some(NOON - 7200.0)), hostile];
    let main = main_of(status, Actions { reports, unread: None });
    assert!(!main.contains("<script") && !main.contains(['\u{1b}', '\u{202e}']), "{main}");
    insta::assert_snapshot!(main);
}

#[test]
fn dry_run_and_an_open_breaker_promise_no_action() {
    let of = |mode: &str, breaker: Option<&str>| {
        let (mode, breaker) = (mode.to_owned(), breaker.map(str::to_owned));
        main_of(
            Enforcement { mode, breaker, violations: of_each_stage(), ..Enforcement::default() },
            Actions::default(),
        )
    };
    let rehearsed = of("dry-run", None);
    for part in ["would have acted<", ": would warn or detach<", ": would kill<", "In dry-run it takes no action"] {
        assert!(rehearsed.contains(part), "{part}: {rehearsed}");
    }
    let stopped = of("enforce", Some("it would hit 5 of 6 users"));
    assert!(stopped.contains("The breaker is open: no warning and no action") && !stopped.contains("<li"), "{stopped}");
    assert!(stopped.contains(">stopped by the breaker<"), "{stopped}");
    let nothing = main_of(Enforcement::default(), Actions::default());
    assert!(nothing.contains("Nobody breaks a rule.") && nothing.contains("No action is recorded."), "{nothing}");
}

#[test]
fn actions_that_cannot_be_read_are_not_known() {
    let (folder, directory) = RuntimeDirectory::temporary();
    std::fs::write(folder.path().join("done.json"), "{").unwrap();
    let main = main_of(Enforcement::default(), Actions::load(&directory, "done.json"));
    let (_, rest) = main.split_once("Earlier actions are not known: ").unwrap();
    let (why, _) = rest.split_once('<').unwrap();
    insta::assert_snapshot!(
        why.replace(&folder.path().display().to_string(), ""),
        @"cannot read /done.json: it is damaged (EOF while parsing an object at line 1 column 1): unless a later action has replaced it, move it away; then restart genv-enforcer. 'genv-enforcer report' shows its actions."
    );
    assert!(!main.contains("No action is recorded."), "{main}");
}

#[test]
fn of_many_violations_the_most_urgent_ones_are_shown_and_the_rest_is_counted() {
    let long = HOSTILE.repeat(50);
    let of = |user: u32| HeldViolation {
        found: long.clone(),
        allowed: long.clone(),
        remedy: long.clone(),
        targets: vec![long.clone()],
        ..violation(&format!("user{user}"), "detach", "warned", Some(NOON + 60.0 + f64::from(user)))
    };
    let violations = (0..8676).map(|it| of(it / 50)).collect();
    let main = main_of(Enforcement { violations, ..Enforcement::default() }, Actions::default());
    assert!(main.contains("8,376 more are not shown here: 'genv-enforcer status' shows them."));
    let shown = |user: &str| main.matches(&format!(">{user}</th>")).count();
    assert_eq!([shown("user0"), shown("user14"), shown("user15")], [20, 20, 0]);
    assert!(main.len() < 5_000_000, "{}", main.len());
}

#[test]
fn the_head_counts_no_violations_that_are_not_known() {
    let of = |violations, missing_hosts| {
        let status = Enforcement { updated_timestamp_seconds: NOON, interval_seconds: 10.0, ..Enforcement::default() };
        let status = Enforcement { violations, missing_hosts, ..status };
        let html = Findings::new(status, Arc::default(), TimeZone::UTC).html(NOON + 5.0);
        html.split_once("<main").unwrap().0.to_owned()
    };
    let (found, missing) = (|| vec![violation("alice", "report", "acted", None)], || vec!["gpu01".to_owned()]);
    for (head, expected) in [
        (of(Vec::new(), Vec::new()), ">0 violations of 0 users found<"),
        (of(found(), Vec::new()), ">1 violation of 1 user found<"),
        (of(Vec::new(), missing()), ">violations are not known<"),
        (of(found(), missing()), ">1 violation of 1 user found, not all are known<"),
    ] {
        assert!(head.contains(expected), "{head}");
    }
}

#[test]
fn within_a_second_all_encodings_are_of_the_same_moment() {
    let findings = || {
        let status = Enforcement { updated_timestamp_seconds: NOON, ..Enforcement::default() };
        Findings::new(status, Arc::default(), TimeZone::UTC)
    };
    let body = |findings: &Findings, encoding: &'static str, now_seconds| {
        let uri = "/".parse().unwrap();
        let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(encoding))]);
        findings.response(&Request::new(&Method::GET, &uri, &headers), now_seconds).body().clone()
    };
    let (early, late) = (NOON + 4.6, NOON + 5.55);
    let asked_twice = findings();
    body(&asked_twice, "identity", early);
    assert_eq!(body(&asked_twice, "gzip", late), body(&findings(), "gzip", early));
    assert_ne!(body(&findings(), "gzip", late), body(&findings(), "gzip", early), "a page has its moment");
}

#[test]
fn before_the_first_cycle_the_page_says_so() {
    let page = before_first_cycle(Duration::from_secs(10));
    let page = String::from_utf8(page.body().to_vec()).unwrap();
    assert!(page.contains("No cycle has ended yet.") && page.contains("<footer>"), "{page}");
}
