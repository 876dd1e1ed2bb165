use super::daemon::*;
use crate::config::*;

fn lab() -> Lab {
    Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .attach_memory("gpu01", "e1", 0, 60.0, Some(GIB))
        .attach("gpu01", "e1", 1, 30.0)
        .runs(10, "alice", Some("e1"), &[(0, 40 * GIB)])
}

fn fair_share(kind: impl Into<RuleKind>, action: Action, warn: &[u64]) -> Rule {
    Rule { name: "fair-share".to_owned(), ..rule(kind, action).timed(0, warn, 0) }
}

fn devices() -> RuleKind {
    max_devices_per_user(1, Scope::Host)
}

fn memory() -> RuleKind {
    max_memory(GIB, MemoryPer::Total, Scope::Host)
}

/// What follows, and how long after the change, if one rule becomes another after five minutes.
fn after(first: Rule, then: Rule) -> Vec<String> {
    let mut daemon = Daemon::new(vec![first]);
    let lab = lab();
    daemon.run(&lab, 300);
    daemon.config.rules = vec![then];
    let steps = daemon.run(&lab, 1800).into_iter();
    lines(&steps.map(|(at, step)| (at - 300.0, step)).collect::<Vec<_>>())
}

#[test]
fn warnings_of_one_kind_are_none_of_another_that_has_the_name_now() {
    // The devices would be taken 100 s after the change; of the memory the user was never told.
    let first = fair_share(devices(), Action::Detach, &[400]);
    let then = fair_share(memory(), Action::Terminate, &[600]);
    assert_eq!(after(first, then), ["0 report", "0 warn 1/1", "600 terminate 10"]);
}

#[test]
fn a_rule_that_was_only_to_warn_warns_again_before_it_acts() {
    let first = fair_share(devices(), Action::Warn, &[]);
    let then = fair_share(devices(), Action::Detach, &[600, 60]);
    assert_eq!(after(first, then), ["0 warn 1/2", "540 warn 2/2", "600 detach e1:1"]);
}

#[test]
fn what_was_announced_holds_if_the_warnings_are_others_now() {
    let first = || fair_share(devices(), Action::Detach, &[600]);
    for warn in [&[60][..], &[]] {
        let then = fair_share(devices(), Action::Detach, warn);
        assert_eq!(after(first(), then), ["300 detach e1:1"]);
    }
    // A later warning has its full time, if that is more.
    let then = fair_share(devices(), Action::Detach, &[1200, 900]);
    assert_eq!(after(first(), then), ["0 warn 2/2", "900 detach e1:1"]);
}

#[test]
fn a_longer_time_of_sight_does_not_take_back_what_was_announced() {
    let first = fair_share(devices(), Action::Detach, &[600]);
    let then = first.clone().timed(7200, &[600], 0);
    assert_eq!(after(first, then), ["300 detach e1:1"]);
    // Nothing was announced yet: it counts.
    let pending = |for_seconds| fair_share(devices(), Action::Detach, &[]).timed(for_seconds, &[60], 0);
    assert_eq!(after(pending(310), pending(600)), ["300 report", "300 warn 1/1", "360 detach e1:1"]);
}
