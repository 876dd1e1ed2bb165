use std::sync::Arc;

use genv_core::model::{Attribution, Process};

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn every_kind(action: Action) -> Vec<Rule> {
    let acting = strictest().into_iter().filter(|kind| kind.definition().cannot(action).is_none());
    acting.map(|kind| rule(kind, action)).collect()
}

fn no_devices() -> Daemon {
    Daemon::new(vec![rule(max_devices_per_user(0, Scope::Host), Action::Detach)])
}

#[test]
fn promise_03_unknown_never_acts() {
    let mut lab = Lab::new(1, 2).runs(10, "bob", None, &[(0, 70 * GIB)]);
    lab.hide(10, "environ_unreadable");
    let mut daemon = Daemon::new(every_kind(Action::Kill));
    for _ in 0..100 {
        let plan = daemon.cycle(&lab);
        assert_eq!(plan.violations, []);
        assert_eq!(plan.steps, []);
        assert_eq!(plan.unknown_processes["gpu01"], 1);
        daemon.now_seconds += 10.0;
    }
    // Nor is it taken along with what is known, nor counted as its user's.
    let mut lab = lab.holder("e1", "bob", &[(0, 60.0)]).runs(11, "bob", Some("e1"), &[(0, GIB)]);
    let memory = rule(max_memory(8 * GIB, MemoryPer::Total, Scope::Host), Action::Terminate);
    assert!(Daemon::new(vec![memory]).plan(&lab).violations.is_empty());
    let daemon = no_devices();
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0 (11)"]);
    // An environment that nobody lists is as unknown as none.
    lab.pid("gpu01", 10).attribution = Attribution::Environment { eid: "nosuch".to_owned() };
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0 (11)"]);
    assert_eq!(daemon.plan(&lab).unknown_processes["gpu01"], 1);
}

#[test]
fn a_process_that_cannot_be_named_without_a_doubt_is_never_chosen() {
    let lab = || Lab::new(1, 2).runs(10, "bob", None, &[(0, GIB)]);
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Kill)]);
    assert_eq!(actions(&daemon.plan(&lab())), ["terminate 10"]);
    let changes: [fn(&mut Process); 7] = [
        |process| process.start_time_ticks = None,
        |process| process.uid = None,
        |process| process.username = None,
        |process| process.uid = Some(0),
        |process| process.pid = 1,
        |process| process.username = Some("admin".to_owned()),
        |process| (process.uid, process.container_id) = (Some(0), Some(String::new())),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut lab = lab();
        change(lab.pid("gpu01", 10));
        assert_eq!(actions(&daemon.plan(&lab)), [""; 0], "{number}");
    }
    // root of a container is the user who started the container, and has a name there.
    let mut container = lab();
    let process = container.pid("gpu01", 10);
    (process.uid, process.container_id) = (Some(0), Some("3f4e".to_owned()));
    process.username = Some("container:3f4e".to_owned());
    daemon.config.never.users.insert("uid:0".to_owned());
    assert_eq!(actions(&daemon.plan(&container)), ["terminate 10"]);
    daemon.config.rules[0].selector.except_users = names(&["container:3f4e"]);
    assert_eq!(actions(&daemon.plan(&container)), [""; 0]);
    daemon.config.rules[0].selector.except_users.clear();
    daemon.config.never.users.insert("container:3f4e".to_owned());
    assert_eq!(actions(&daemon.plan(&container)), [""; 0]);
}

#[test]
fn an_environment_of_which_nobody_knows_the_user_loses_nothing() {
    let mut lab = Lab::new(1, 1).holder("e1", "alice", &[(0, 60.0)]);
    let daemon = no_devices();
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0"]);
    for uid in [None, Some(0)] {
        Arc::make_mut(&mut lab.hosts[0].environments[0]).uid = uid;
        assert_eq!(actions(&daemon.plan(&lab)), [""; 0], "{uid:?}");
    }
}

#[test]
fn what_is_never_listed_is_out_of_reach_of_every_rule() {
    for user in ["admin", "root"] {
        let lab = Lab::new(1, 2)
            .environment("gpu01", "e1", user)
            .attach_memory("gpu01", "e1", 0, 60.0, Some(GIB))
            .runs(10, user, Some("e1"), &[(0, 70 * GIB), (1, GIB)])
            .runs(11, user, None, &[(1, GIB)]);
        let mut daemon = Daemon::new(every_kind(Action::Kill));
        assert!(daemon.run(&lab, 600).is_empty(), "{user}");
    }
    // What an admin runs in somebody's environment is not ended with it.
    let lab = Lab::new(1, 1).holder("e1", "alice", &[(0, 60.0)]).runs(10, "alice", Some("e1"), &[(0, GIB)]);
    let lab = lab.runs(11, "root", Some("e1"), &[(0, GIB)]);
    assert_eq!(actions(&no_devices().plan(&lab)), ["detach e1:0 (10)"]);
}

#[test]
fn promise_05_the_plan_is_independent_of_the_mode() {
    let lab = Lab::new(2, 2)
        .environment("gpu01", "e1", "alice")
        .attach_memory("gpu01", "e1", 0, 60.0, Some(GIB))
        .attach("gpu01", "e1", 1, 60.0)
        .runs(10, "alice", Some("e1"), &[(0, 70 * GIB)])
        .process("gpu02", 11, "bob", None, &[(1, GIB)]);
    let rules = every_kind(Action::Kill).into_iter().map(|rule| rule.timed(0, &[30], 0));
    let mut enforced = Daemon::new(rules.collect());
    let mut rehearsed = enforced.clone();
    rehearsed.config.mode = Mode::DryRun;
    let mut steps = 0;
    for _ in 0..60 {
        // A taken device disappears in one of the two modes only.
        let of = |step: &Step, outcome: Outcome| match step.kind {
            StepKind::Detach(_) => Outcome::Refused { reason: "not yet".to_owned(), again: true },
            _ => outcome,
        };
        let plan = enforced.cycle_with(&lab, |step| of(step, Outcome::Done));
        assert_eq!(plan, rehearsed.cycle_with(&lab, |step| of(step, Outcome::Would)));
        steps += plan.steps.len();
        enforced.now_seconds += 10.0;
        rehearsed.now_seconds += 10.0;
    }
    assert!(steps > 20, "{steps}");
}

#[test]
fn a_damaged_history_is_an_error_and_another_version_says_so() {
    let mut daemon = Daemon::new(every_kind(Action::Kill));
    let lab = Lab::new(1, 1).holder("e\n1", "alice", &[(0, 60.0)]).runs(10, "bob", None, &[(0, GIB)]);
    daemon.run(&lab, 100);
    let text = daemon.history.to_json().unwrap();
    assert_eq!(History::parse(&text).unwrap(), daemon.history);
    for end in [0, 1, 10, text.len() / 2, text.len() - 1] {
        let error = History::parse(&text[..end]).unwrap_err();
        assert!(matches!(error, HistoryError::Damaged(_)), "{error}");
    }
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    let error = History::parse(&newer).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the history of violations: it has version 2, and this program knows 1");
}

#[test]
fn who_may_be_a_member_is_neither_matched_nor_denied_what_members_have() {
    let mut lab = Lab::new(1, 4).holder("a", "alice", &[0, 1, 2, 3].map(|gpu| (gpu, 60.0)));
    let mut limits = limit(1);
    limits.base.groups.insert("staff".to_owned(), 3);
    limits.base.groups.insert("students".to_owned(), 0);
    let kind = RuleKind::from(MaxDevicesPerUser { limits, scope: Scope::Host });
    let allowed = |lab: &Lab, selector: Selector| {
        let plan = Daemon::new(vec![Rule { selector, ..rule(kind.clone(), Action::Detach) }]).plan(lab);
        plan.violations.first().map(|violation| violation.allowed())
    };
    let all = Selector::default;
    let students = || Selector { groups: Some(names(&["students"])), ..all() };
    let not_staff = || Selector { except_groups: names(&["staff"]), ..all() };
    let is = |text: &str| Some(text.to_owned());
    assert_eq!(allowed(&lab, all()), is("1 by default"));
    assert_eq!(allowed(&lab, students()), None);
    assert_eq!(allowed(&lab, not_staff()), is("1 by default"));
    let student = lab.clone().member("alice", "students");
    assert_eq!(allowed(&student, all()), is("0 for members of students"));
    assert_eq!(allowed(&student, students()), is("0 for members of students"));
    lab.groups.clear();
    assert_eq!(allowed(&lab, all()), is("3 for members of staff"));
    assert_eq!(allowed(&lab, students()), None);
    assert_eq!(allowed(&lab, not_staff()), None);
    // Where only groups have a limit, who is in none of them has none.
    let mut limits = limit(0);
    limits.base.default = None;
    limits.base.groups.insert("students".to_owned(), 0);
    let kind = RuleKind::from(MaxDevicesPerUser { limits, scope: Scope::Host });
    let daemon = Daemon::new(vec![rule(kind, Action::Detach)]);
    assert!(daemon.plan(&lab).violations.is_empty());
    assert_eq!(daemon.plan(&student).violations.len(), 1);
}

#[test]
fn a_user_who_is_named_by_uid_is_the_same_user() {
    let lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, 8 * GIB)]);
    let by_uid = format!("uid:{}", uid("bob"));
    let memory = |user: Option<&str>| {
        let mut limits = limit(4 * GIB);
        limits.base.users.extend(user.map(|user| (user.to_owned(), 6 * GIB)));
        let (per, scope) = (MemoryPer::Total, Scope::Host);
        let kind = RuleKind::from(MaxMemoryPerUser { limits, per, scope });
        Daemon::new(vec![rule(kind, Action::Terminate)])
    };
    let allowed = |daemon: &Daemon| daemon.plan(&lab).violations[0].allowed();
    assert_eq!(allowed(&memory(None)), "4 GiB by default");
    assert_eq!(allowed(&memory(Some(&by_uid))), "6 GiB for bob");

    let mut never = memory(None);
    never.config.never.users = names(&[&by_uid]);
    let mut excepted = memory(None);
    excepted.config.rules[0].selector.except_users = names(&[&by_uid]);
    let mut others = memory(None);
    others.config.rules[0].selector.users = Some(names(&["uid:1"]));
    for daemon in [never, excepted, others] {
        assert!(daemon.plan(&lab).violations.is_empty());
    }
    let mut named = memory(None);
    named.config.rules[0].selector.users = Some(names(&[&by_uid]));
    assert_eq!(actions(&named.plan(&lab)), ["terminate 10"]);
    named.waivers = vec![Waiver { until_seconds: f64::MAX, ..waiver(&by_uid, &[]) }];
    let why = "waived until further notice: dead\\nline".to_owned();
    assert_eq!(named.plan(&lab).violations[0].stage, Stage::Held { why });
}
