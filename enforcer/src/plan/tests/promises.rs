//! What the planning promises, whatever the rules.

use std::sync::Arc;

use genv_core::model::{Attribution, CollectorStatus};

use super::lab::*;
use crate::config::*;
use crate::plan::*;

/// A rule of every kind that acts on the least.
fn every_kind(action: Action) -> Vec<Rule> {
    let scope = Scope::Host;
    let kinds = [
        RuleKind::NonEnvProcesses,
        RuleKind::EnvDevices,
        RuleKind::EnvMemory,
        RuleKind::MaxDevicesPerUser {
            limits: limit(0),
            scope,
        },
        RuleKind::MaxEnvironmentsPerUser {
            limits: limit(0),
            scope,
        },
        RuleKind::MaxHostsPerUser { limits: limit(0) },
        RuleKind::MaxProcessesPerEnvironment { limits: limit(0) },
        RuleKind::MaxMemoryPerUser {
            limits: limit(0),
            per: MemoryPer::Device,
            scope,
        },
        RuleKind::MaxAge { limits: limit(0) },
        RuleKind::Idle {
            below: 1.1,
            over: seconds(20),
            only_if_free_devices_below: None,
        },
    ];
    kinds.into_iter().map(|kind| rule(kind, action)).collect()
}

fn unknown() -> Attribution {
    Attribution::Unknown {
        reason: "environ_unreadable".to_owned(),
    }
}

#[test]
fn promise_03_unknown_never_acts() {
    let mut lab = Lab::new(1, 2).process("gpu01", 10, "bob", None, &[(0, 70 * GIB)]);
    lab.pid("gpu01", 10).attribution = unknown();
    let mut daemon = Daemon::new(every_kind(Action::Kill));
    for _ in 0..100 {
        let plan = daemon.cycle(&lab);
        assert_eq!(plan.violations, []);
        assert_eq!(plan.steps, []);
        assert_eq!(plan.unknown_processes["gpu01"], 1);
        daemon.now_seconds += 10.0;
    }
    // Nor is it taken along with what is known, nor counted as its user's.
    let mut lab = lab
        .environment("gpu01", "e1", "bob")
        .attach("gpu01", "e1", 0, 60.0)
        .process("gpu01", 11, "bob", Some("e1"), &[(0, GIB)]);
    let kind = RuleKind::MaxMemoryPerUser {
        limits: limit(8 * GIB),
        per: MemoryPer::Total,
        scope: Scope::Host,
    };
    assert!(
        Daemon::new(vec![rule(kind, Action::Terminate)])
            .plan(&lab)
            .violations
            .is_empty()
    );
    let devices = RuleKind::MaxDevicesPerUser {
        limits: limit(0),
        scope: Scope::Host,
    };
    let daemon = Daemon::new(vec![rule(devices, Action::Detach)]);
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0 (11)"]);
    // An environment that nobody lists is as unknown as none.
    lab.pid("gpu01", 10).attribution = Attribution::Environment {
        eid: "nosuch".to_owned(),
    };
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0 (11)"]);
    assert_eq!(daemon.plan(&lab).unknown_processes["gpu01"], 1);
}

#[test]
fn a_process_that_cannot_be_named_without_a_doubt_is_never_chosen() {
    let lab = || Lab::new(1, 2).process("gpu01", 10, "bob", None, &[(0, GIB)]);
    let daemon = Daemon::new(vec![rule(RuleKind::NonEnvProcesses, Action::Kill)]);
    assert_eq!(actions(&daemon.plan(&lab())), ["terminate 10"]);
    let changes: [fn(&mut genv_core::model::Process); 7] = [
        |process| process.start_time_ticks = None,
        |process| process.uid = None,
        |process| process.username = None,
        |process| process.uid = Some(0),
        |process| process.pid = 1,
        |process| process.username = Some("admin".to_owned()),
        |process| {
            process.uid = Some(0);
            process.container_id = Some(String::new());
        },
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut lab = lab();
        change(lab.pid("gpu01", 10));
        assert_eq!(actions(&daemon.plan(&lab)), [""; 0], "{number}");
    }
    // root of a container is whoever started it.
    let mut container = lab();
    let process = container.pid("gpu01", 10);
    process.uid = Some(0);
    process.container_id = Some("3f4e".to_owned());
    assert_eq!(actions(&daemon.plan(&container)), ["terminate 10"]);
}

#[test]
fn what_is_never_listed_is_out_of_reach_of_every_rule() {
    for user in ["admin", "root"] {
        let lab = Lab::new(1, 2)
            .environment("gpu01", "e1", user)
            .attach_memory("gpu01", "e1", 0, 60.0, Some(GIB))
            .process("gpu01", 10, user, Some("e1"), &[(0, 70 * GIB), (1, GIB)])
            .process("gpu01", 11, user, None, &[(1, GIB)]);
        let mut daemon = Daemon::new(every_kind(Action::Kill));
        assert!(daemon.run(&lab, 600).is_empty(), "{user}");
    }
    // What an admin runs in somebody's environment is not ended with it.
    let lab = Lab::new(1, 1)
        .environment("gpu01", "e1", "alice")
        .attach("gpu01", "e1", 0, 60.0)
        .process("gpu01", 10, "alice", Some("e1"), &[(0, GIB)])
        .process("gpu01", 11, "root", Some("e1"), &[(0, GIB)]);
    let kind = RuleKind::MaxDevicesPerUser {
        limits: limit(0),
        scope: Scope::Host,
    };
    let daemon = Daemon::new(vec![rule(kind, Action::Detach)]);
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0 (10)"]);
}

#[test]
fn promise_05_the_plan_is_independent_of_the_mode() {
    let lab = Lab::new(2, 2)
        .environment("gpu01", "e1", "alice")
        .attach_memory("gpu01", "e1", 0, 60.0, Some(GIB))
        .attach("gpu01", "e1", 1, 60.0)
        .process("gpu01", 10, "alice", Some("e1"), &[(0, 70 * GIB)])
        .process("gpu02", 11, "bob", None, &[(1, GIB)]);
    let mut rules = every_kind(Action::Kill);
    for rule in &mut rules {
        rule.warn = vec![seconds(30)];
    }
    let mut enforced = Daemon::new(rules);
    let mut rehearsed = enforced.clone();
    rehearsed.config.mode = Mode::DryRun;
    let mut steps = 0;
    for _ in 0..60 {
        let plans = (
            enforced.cycle(&lab),
            rehearsed.cycle_with(&lab, |_| Outcome::Would),
        );
        assert_eq!(plans.0, plans.1);
        steps += plans.0.steps.len();
        enforced.now_seconds += 10.0;
        rehearsed.now_seconds += 10.0;
    }
    assert!(steps > 20, "{steps}");
}

#[test]
fn promise_09_a_repeated_snapshot_causes_nothing_new() {
    let lab = Lab::new(1, 1).process("gpu01", 10, "bob", None, &[(0, GIB)]);
    let after_a_minute = Rule {
        for_duration: seconds(60),
        ..rule(RuleKind::NonEnvProcesses, Action::Terminate)
    };
    let repeats: [fn(&mut genv_core::model::Snapshot, f64); 4] = [
        |snapshot, at| snapshot.timestamp_seconds = at,
        |snapshot, at| read_at(snapshot, "gpu", at),
        |snapshot, at| read_at(snapshot, "processes", at),
        |snapshot, at| read_at(snapshot, "state", at),
    ];
    for (number, repeat) in repeats.iter().enumerate() {
        let mut daemon = Daemon::new(vec![after_a_minute.clone()]);
        for _ in 0..100 {
            // Received anew again and again, but some of what it says is always of noon.
            let mut hosts = lab.at(daemon.now_seconds);
            let mut snapshot = (**hosts[0].snapshot.as_ref().unwrap()).clone();
            repeat(&mut snapshot, NOON);
            hosts[0].snapshot = Some(Arc::new(snapshot));
            let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Done);
            assert_eq!(plan.violations.len(), 1, "{number}");
            assert_eq!(plan.steps, [], "{number}");
            daemon.now_seconds += 10.0;
        }
        // Nothing is due for the time that nobody observed.
        let stage = daemon.plan(&lab).violations[0].stage.clone();
        let until_seconds = daemon.now_seconds + 60.0;
        assert_eq!(stage, Stage::Pending { until_seconds }, "{number}");
    }
    // The very same input, after its steps: nothing to do.
    let mut daemon = Daemon::new(vec![rule(RuleKind::NonEnvProcesses, Action::Kill)]);
    let first = daemon.cycle(&lab);
    assert_eq!(actions(&first), ["terminate 10"]);
    assert_eq!(daemon.cycle(&lab).steps, []);
}

fn read_at(snapshot: &mut genv_core::model::Snapshot, collector: &str, at: f64) {
    snapshot
        .collectors
        .get_mut(collector)
        .unwrap()
        .timestamp_seconds = Some(at);
}

#[test]
fn promise_09_a_stale_snapshot_causes_nothing() {
    let lab = Lab::new(1, 1).process("gpu01", 10, "bob", None, &[(0, GIB)]);
    let daemon = Daemon::new(vec![rule(RuleKind::NonEnvProcesses, Action::Terminate)]);
    let acts_at_age = |age: f64| {
        let mut hosts = lab.at(NOON);
        hosts[0].received_timestamp_seconds = Some(NOON - age);
        let plan = plan(&daemon.input(&hosts, &lab), &daemon.history);
        assert_eq!(plan.missing_hosts.is_empty(), !plan.steps.is_empty());
        !plan.steps.is_empty()
    };
    assert!(acts_at_age(0.0));
    assert!(acts_at_age(30.0));
    assert!(!acts_at_age(30.1));
    assert!(!acts_at_age(-3600.0));
    assert!(!acts_at_age(f64::NAN));
    assert!(!acts_at_age(f64::INFINITY));
}

#[test]
fn a_source_that_fails_stops_what_needs_it_and_nothing_else() {
    let mut lab = Lab::new(1, 2)
        .environment("gpu01", "e1", "alice")
        .attach("gpu01", "e1", 0, 60.0)
        .process("gpu01", 10, "bob", None, &[(0, GIB)]);
    let devices = RuleKind::MaxDevicesPerUser {
        limits: limit(0),
        scope: Scope::Host,
    };
    let rules = vec![
        rule(RuleKind::NonEnvProcesses, Action::Terminate),
        rule(devices, Action::Detach),
    ];
    let daemon = Daemon::new(rules);
    assert_eq!(actions(&daemon.plan(&lab)), ["terminate 10", "detach e1:0"]);
    // The driver hangs.
    let failed = CollectorStatus {
        success: false,
        current: false,
        ..CollectorStatus::default()
    };
    lab.hosts[0]
        .collectors
        .insert("gpu".to_owned(), failed.clone());
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0"]);
    assert!(daemon.plan(&lab).missing_hosts.is_empty());
    // The state cannot be read: nobody knows what is outside.
    lab.hosts[0].collectors.insert("state".to_owned(), failed);
    assert_eq!(actions(&daemon.plan(&lab)), [""; 0]);
    assert_eq!(daemon.plan(&lab).missing_hosts, names(&["gpu01"]));
}

#[test]
fn a_silent_host_forgets_nothing_and_lets_no_time_pass() {
    let mut lab = Lab::new(1, 1).process("gpu01", 10, "bob", None, &[(0, GIB)]);
    let mut daemon = Daemon::new(vec![Rule {
        for_duration: seconds(60),
        warn: vec![seconds(60)],
        ..rule(RuleKind::NonEnvProcesses, Action::Terminate)
    }]);
    daemon.run(&lab, 90);
    lab.silent.insert("gpu01".to_owned());
    assert!(daemon.run(&lab, 3600).is_empty());
    lab.silent.clear();
    let steps = daemon.run(&lab, 3600);
    // 40 of the 60 seconds that he was told were left; the first look after the silence adds none.
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].0, 3690.0 + 40.0);
}

#[test]
fn promise_17_with_a_host_missing_nothing_is_done_about_what_counts_over_all() {
    let lab = |missing: bool| {
        let mut lab = Lab::new(3, 2);
        for (host, eid) in [("gpu01", "a"), ("gpu02", "b"), ("gpu03", "c")] {
            lab = lab
                .environment(host, eid, "alice")
                .attach(host, eid, 0, 60.0)
                .process(host, 10, "alice", Some(eid), &[(0, 40 * GIB)]);
        }
        if missing {
            lab.silent.insert("gpu03".to_owned());
        }
        lab
    };
    let scope = Scope::AllHosts;
    let kinds = [
        (
            RuleKind::MaxDevicesPerUser {
                limits: limit(1),
                scope,
            },
            Action::Detach,
        ),
        (
            RuleKind::MaxEnvironmentsPerUser {
                limits: limit(1),
                scope,
            },
            Action::Detach,
        ),
        (
            RuleKind::MaxHostsPerUser { limits: limit(1) },
            Action::Detach,
        ),
        (
            RuleKind::MaxMemoryPerUser {
                limits: limit(50 * GIB),
                per: MemoryPer::Total,
                scope,
            },
            Action::Terminate,
        ),
    ];
    for (kind, action) in kinds {
        let mut daemon = Daemon::new(vec![rule(kind.clone(), action)]);
        let plan = daemon.plan(&lab(true));
        assert_eq!(plan.missing_hosts, names(&["gpu03"]));
        // What is known is reported, and waits.
        assert_eq!(plan.violations.len(), 1, "{kind:?}");
        let why = "no fresh facts from gpu03".to_owned();
        assert_eq!(plan.violations[0].stage, Stage::Held { why });
        assert!(daemon.run(&lab(true), 600).is_empty(), "{kind:?}");
        assert!(!daemon.run(&lab(false), 10).is_empty(), "{kind:?}");
        // A host that the rule does not look at may be silent.
        let mut elsewhere = rule(kind.clone(), action);
        elsewhere.selector.except_hosts = HostSet(names(&["gpu03"]));
        let plan = Daemon::new(vec![elsewhere]).plan(&lab(true));
        assert!(!plan.steps.is_empty(), "{kind:?}");
    }
}

#[test]
fn clocks_that_jump_hurry_nothing() {
    let lab = Lab::new(1, 1).process("gpu01", 10, "bob", None, &[(0, GIB)]);
    let warned = Rule {
        for_duration: seconds(60),
        warn: vec![seconds(120)],
        ..rule(RuleKind::NonEnvProcesses, Action::Terminate)
    };
    for jump in [-86_400.0, -3600.0, -1.0, 3600.0, 86_400.0] {
        let mut daemon = Daemon::new(vec![warned.clone()]);
        let first = daemon.run(&lab, 100);
        assert_eq!(first.len(), 2);
        // He was warned 40 s ago, and has 80 s left.
        daemon.now_seconds += jump;
        let steps = daemon.run(&lab, 1000);
        let after = steps[0].0 - (100.0 + jump);
        assert_eq!(steps.len(), 1, "{jump}");
        assert!((80.0..=100.0).contains(&after), "{jump}: {after}");
    }
}

#[test]
fn a_damaged_history_is_an_error_and_another_version_says_so() {
    let mut daemon = Daemon::new(every_kind(Action::Kill));
    let lab = Lab::new(1, 1)
        .environment("gpu01", "e\n1", "alice")
        .attach("gpu01", "e\n1", 0, 60.0)
        .process("gpu01", 10, "bob", None, &[(0, GIB)]);
    daemon.run(&lab, 100);
    let text = daemon.history.to_json().unwrap();
    assert_eq!(History::parse(&text).unwrap(), daemon.history);
    for end in [0, 1, 10, text.len() / 2, text.len() - 1] {
        let error = History::parse(&text[..end]).unwrap_err();
        assert!(matches!(error, HistoryError::Damaged(_)), "{error}");
    }
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    let error = History::parse(&newer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the history of violations: it has version 2, and this program knows 1"
    );
}

#[test]
fn who_may_be_a_member_is_neither_matched_nor_denied_what_members_have() {
    let mut lab = Lab::new(1, 4).environment("gpu01", "a", "alice");
    for gpu in 0..4 {
        lab = lab.attach("gpu01", "a", gpu, 60.0);
    }
    let mut limits = limit(1);
    limits.base.groups.insert("staff".to_owned(), 3);
    limits.base.groups.insert("students".to_owned(), 0);
    let kind = RuleKind::MaxDevicesPerUser {
        limits,
        scope: Scope::Host,
    };
    let allowed = |lab: &Lab, selector: Selector| {
        let mut rule = rule(kind.clone(), Action::Detach);
        rule.selector = selector;
        let plan = Daemon::new(vec![rule]).plan(lab);
        plan.violations
            .first()
            .map(|violation| violation.allowed.clone())
    };
    let all = Selector::default;
    let students = || Selector {
        groups: Some(names(&["students"])),
        ..all()
    };
    let not_staff = || Selector {
        except_groups: names(&["staff"]),
        ..all()
    };
    let is = |text: &str| Some(text.to_owned());
    assert_eq!(allowed(&lab, all()), is("1 by default"));
    assert_eq!(allowed(&lab, students()), None);
    assert_eq!(allowed(&lab, not_staff()), is("1 by default"));
    let student = lab.clone().member("alice", "students");
    assert_eq!(allowed(&student, all()), is("0 for members of students"));
    assert_eq!(
        allowed(&student, students()),
        is("0 for members of students")
    );
    lab.groups.clear();
    assert_eq!(allowed(&lab, all()), is("3 for members of staff"));
    assert_eq!(allowed(&lab, students()), None);
    assert_eq!(allowed(&lab, not_staff()), None);
}

#[test]
fn what_counts_over_all_is_not_forgotten_while_a_host_is_silent() {
    let kind = RuleKind::MaxDevicesPerUser {
        limits: limit(1),
        scope: Scope::AllHosts,
    };
    let mut lab = Lab::new(2, 1)
        .environment("gpu01", "a", "alice")
        .environment("gpu02", "b", "alice")
        .attach("gpu01", "a", 0, 60.0)
        .attach("gpu02", "b", 0, 30.0);
    let mut daemon = Daemon::new(vec![Rule {
        for_duration: seconds(100),
        ..rule(kind, Action::Detach)
    }]);
    daemon.run(&lab, 100);
    lab.silent.insert("gpu02".to_owned());
    // What is left of it breaks no rule.
    assert!(daemon.plan(&lab).violations.is_empty());
    daemon.run(&lab, 100);
    lab.silent.clear();
    // 90 s were seen before; the first look after the silence adds none.
    let steps = daemon.run(&lab, 1000);
    assert_eq!(steps[0].0, 200.0 + 10.0);
}

#[test]
fn a_user_who_is_named_by_uid_is_the_same_user() {
    let lab = Lab::new(1, 1).process("gpu01", 10, "bob", None, &[(0, 8 * GIB)]);
    let by_uid = format!("uid:{}", uid("bob"));
    let memory = |user: Option<&str>| {
        let mut limits = limit(4 * GIB);
        limits
            .base
            .users
            .extend(user.map(|user| (user.to_owned(), 6 * GIB)));
        let (per, scope) = (MemoryPer::Total, Scope::Host);
        let kind = RuleKind::MaxMemoryPerUser { limits, per, scope };
        Daemon::new(vec![rule(kind, Action::Terminate)])
    };
    let allowed = |daemon: &Daemon| daemon.plan(&lab).violations[0].allowed.clone();
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
    named.waivers = vec![Waiver {
        users: names(&[&by_uid]),
        rules: names(&[]),
        until_seconds: f64::MAX,
        reason: "thesis".to_owned(),
    }];
    let why = "waived until further notice: thesis".to_owned();
    assert_eq!(named.plan(&lab).violations[0].stage, Stage::Held { why });
}
