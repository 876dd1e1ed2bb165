use std::os::unix::net::UnixDatagram;

use genv_core::enforcement::READ_SOCKET;

use super::*;
use crate::kinds::SharedFact;
use crate::plan::tests::lab::{due_violation, target};
use crate::plan::{ProcessTarget, StepKind, Subject, Target};
use crate::present::WrittenFact;

const NOBODY: u32 = 3_000_000_000;

const WARNING: StepKind = StepKind::Warn { number: 1, of: 1, end_seconds: Some(1000.0) };

fn violation(pid: u32, uid: u32, owner: u32, container_id: Option<&str>) -> Violation {
    let target = ProcessTarget { uid: owner, container_id: container_id.map(str::to_owned), ..target("bob", pid) };
    let subject = Subject::Process { hostname: "gpu01".to_owned(), pid, start_time_ticks: 1 };
    let key = Key { rule: "rule".to_owned(), subject };
    Violation { uid: Some(uid), targets: vec![Target::Process(target.into())], ..due_violation(key, "alice") }
}

/// No terminal is looked for.
fn nowhere(delivery: NoticeDelivery) -> NoticeDelivery {
    NoticeDelivery { terminals: Terminals::nowhere(), ..delivery }
}

fn warn(delivery: &mut NoticeDelivery, violations: &[Violation], now_seconds: f64) -> Vec<Result<(), String>> {
    let step = &WARNING;
    let warnings = violations.iter().map(|violation| Notice { violation, step });
    let interval = Duration::from_secs(10);
    let listed = violations.iter().filter(|it| it.found().is_empty());
    delivery.warn(
        &warnings.collect::<Vec<_>>(),
        &listed.map(|it| &it.key).collect(),
        interval,
        now_seconds,
        &TimeZone::UTC,
    )
}

#[test]
fn a_warning_is_delivered_once_all_recipients_have_read_it() {
    let (folder, directory) = RuntimeDirectory::temporary();
    let own = rustix::process::getuid().as_raw();
    let mut delivery = nowhere(NoticeDelivery::open(&directory));
    let both = [violation(1, own, NOBODY, None)];
    let one = [violation(2, own, own, None), violation(3, own, 0, Some("c"))];
    let reader = UnixDatagram::unbound().unwrap();
    let read = |seconds: f64| {
        let path = folder.path().join(READ_SOCKET);
        reader.send_to(seconds.to_string().as_bytes(), path).unwrap();
    };
    // What was read before the status showed it was not read.
    read(99.0);
    for now in [100.0, 110.0] {
        let warned = warn(&mut delivery, &[&both[..], &one[..]].concat(), now);
        assert!(warned.iter().all(Result::is_err), "{warned:?}");
    }
    read(110.0);
    let warned = warn(&mut delivery, &[&both[..], &one[..]].concat(), 120.0);
    assert_eq!(warned[1..], [Ok(()), Ok(())], "uids in containers are not waited for");
    let missing = warned[0].as_ref().unwrap_err();
    assert!(missing.contains(&format!("uid {NOBODY} takes")), "{missing}");
    assert!(warn(&mut delivery, &both, 130.0)[0].is_err());
    assert_eq!(delivery.pending.len(), 2);
    warn(&mut delivery, &[], 140.0);
    assert!(delivery.pending.is_empty(), "a warning that is no longer planned is removed");
}

#[test]
fn a_reader_of_the_status_has_read_only_listed_warnings() {
    let (folder, directory) = RuntimeDirectory::temporary();
    let own = rustix::process::getuid().as_raw();
    let mut delivery = nowhere(NoticeDelivery::open(&directory));
    let mut unlisted = violation(2, own, own, None);
    unlisted.fact = SharedFact::new(WrittenFact { found: "not listed".to_owned(), ..WrittenFact::default() });
    let mut both = [violation(1, own, own, None), unlisted];
    let reader = UnixDatagram::unbound().unwrap();
    let mut warn_and_read = |both: &[Violation], now: f64| {
        let warned = warn(&mut delivery, both, now);
        let path = folder.path().join(READ_SOCKET);
        reader.send_to(now.to_string().as_bytes(), path).unwrap();
        warned.iter().map(Result::is_ok).collect::<Vec<_>>()
    };
    assert_eq!(warn_and_read(&both, 100.0), [false, false]);
    assert_eq!(warn_and_read(&both, 110.0), [true, false]);
    both[1].fact = SharedFact::new(WrittenFact::default());
    assert_eq!(warn_and_read(&both[1..], 120.0), [false]);
    assert_eq!(warn_and_read(&both[1..], 130.0), [true]);
}

#[test]
fn a_user_gets_one_text_a_day_about_devices_that_others_attach() {
    let own = rustix::process::getuid().as_raw();
    let mut delivery = nowhere(NoticeDelivery::to_terminals());
    let forced = |pid: u32| Violation { unconfirmed: true, ..violation(pid, own, own, None) };
    let mut is_written = |violation: Violation, now: f64| {
        warn(&mut delivery, &[violation], now);
        let tried = delivery.pending.values().next();
        tried.is_some_and(|it| it.tried_seconds == Some(now))
    };
    assert!(is_written(forced(1), 100.0));
    assert!(!is_written(forced(1), 200.0));
    assert!(!is_written(forced(2), 300.0));
    // A notice about the user's own violation is written nevertheless.
    assert!(is_written(violation(3, own, own, None), 400.0));
    assert!(is_written(forced(4), 100.0 + RECLAIM_NOTICE_SECONDS));
}

#[test]
fn a_text_names_as_many_rules_as_it_has_notices() {
    let rules = ["a", "a", "b", "a", "c", "d"].map(str::to_owned);
    let mut positions = vec![0, 1, 2, 3, 4, 5];
    let named = rules_first(&mut positions, |it| &rules[it]);
    assert_eq!(positions, [0, 2, 4, 5, 1, 3]);
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn a_rule_that_a_text_leaves_out_is_in_the_next_text() {
    let own = rustix::process::getuid().as_raw();
    let mut delivery = nowhere(NoticeDelivery::to_terminals());
    let violations = ["a", "b", "c", "d"].map(|rule| {
        let mut violation = violation(1, own, own, None);
        rule.clone_into(&mut violation.key.rule);
        violation
    });
    let mut named = |now: f64| {
        warn(&mut delivery, &violations, now);
        let tried = delivery.pending.iter().filter(|(_, state)| state.tried_seconds == Some(now));
        tried.map(|(warning, _)| warning.key.rule.clone()).collect::<Vec<_>>()
    };
    assert_eq!(named(100.0), ["a", "b", "c"]);
    assert_eq!(named(110.0), ["d"]);
}
