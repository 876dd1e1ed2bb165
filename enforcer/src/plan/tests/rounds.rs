use genv_core::model::CollectorStatus;

use super::daemon::*;
use super::lab::*;
use crate::config::*;
use crate::plan::*;

fn memory_rule(action: Action) -> Rule {
    Rule {
        for_duration: seconds(20),
        warn: vec![seconds(30)],
        ..rule(
            RuleKind::from(MaxMemoryPerUser { limits: limit(10 * GIB), per: MemoryPer::Total, scope: Scope::Host }),
            action,
        )
    }
}

fn uses(processes: &[(u32, u64)]) -> Lab {
    processes.iter().fold(Lab::new(1, 1), |lab, &(pid, gib)| lab.runs(pid, "bob", None, &[(0, gib * GIB)]))
}

#[test]
fn a_process_that_does_not_go_is_told_once_and_nobody_else_goes_for_it() {
    let lab = uses(&[(10, 8), (11, 6)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Terminate)]);
    assert_eq!(lines(&daemon.run(&lab, 1000)), ["20 report", "20 warn 1/1", "50 terminate 11"]);
    let plan = daemon.plan(&lab);
    assert_eq!(plan.violations[0].stage, Stage::Acted { at_seconds: NOON + 50.0, kill_seconds: None });
    assert_eq!(targets(&plan.violations[0]), ["11"]);
}

#[test]
fn while_a_kill_waits_for_its_grace_nobody_new_is_ended_with_it() {
    let mut daemon = Daemon::new(vec![memory_rule(Action::Kill)]);
    let steps = daemon.run(&uses(&[(10, 8), (11, 6)]), 80);
    assert_eq!(lines(&steps), ["20 report", "20 warn 1/1", "50 terminate 11"]);
    let steps = daemon.run(&uses(&[(10, 8), (11, 6), (12, 7)]), 1000);
    assert_eq!(lines(&steps), ["110 kill 11", "140 warn 1/1", "170 terminate 12", "230 kill 12"]);
}

#[test]
fn promise_18_one_sigkill_and_no_loop() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Kill)]);
    let steps = daemon.run(&lab, 2 * 3600);
    assert_eq!(lines(&steps), ["20 report", "20 warn 1/1", "50 terminate 10", "110 kill 10"]);
    let stage = daemon.plan(&lab).violations[0].stage.clone();
    assert_eq!(stage, Stage::Acted { at_seconds: NOON + 110.0, kill_seconds: None });
}

#[test]
fn a_refusal_for_good_finds_another_and_one_that_passes_is_tried_again() {
    let lab = uses(&[(10, 8), (11, 6)]);
    let refuse = |pid: u32, again: bool| {
        move |step: &Step| match &step.kind {
            StepKind::Terminate(target) if target.pid == pid => {
                Outcome::Refused { reason: "it may not be ended".to_owned(), again }
            }
            _ => Outcome::Done,
        }
    };
    let at_once = Rule { for_duration: seconds(0), warn: Vec::new(), ..memory_rule(Action::Terminate) };
    let mut daemon = Daemon::new(vec![at_once]);
    let mut cycle = |outcome: &dyn Fn(&Step) -> Outcome| {
        let plan = daemon.cycle_with(&lab, outcome);
        daemon.now_seconds += 10.0;
        (actions(&plan), plan.violations[0].stage.clone())
    };
    assert_eq!(cycle(&refuse(11, true)).0, ["terminate 11"]);
    assert_eq!(cycle(&refuse(11, false)).0, ["terminate 11"]);
    assert_eq!(cycle(&refuse(10, false)).0, ["terminate 10"]);
    let (steps, stage) = cycle(&refuse(0, true));
    assert!(steps.is_empty());
    let why = "nothing that may be ended would end it: 10: it may not be ended";
    assert_eq!(stage, Stage::Held { why: why.to_owned() });
}

#[test]
fn what_was_postponed_is_done_later_without_a_new_warning() {
    // Both must go, and only one may this minute.
    let lab = uses(&[(10, 11), (11, 12)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Terminate)]);
    let mut steps = Vec::new();
    while daemon.now_seconds < NOON + 500.0 {
        let at = daemon.now_seconds - NOON;
        let plan = daemon.cycle_with(&lab, |step| match &step.kind {
            StepKind::Terminate(target) if target.pid == 10 && at < 100.0 => {
                Outcome::Refused { reason: "too many signals this minute".to_owned(), again: true }
            }
            _ => Outcome::Done,
        });
        steps.extend(plan.steps.into_iter().map(|step| (at, step.kind)));
        daemon.now_seconds += 10.0;
    }
    let lines = lines(&steps);
    assert_eq!(lines[..3], ["20 report", "20 warn 1/1", "50 terminate 11"]);
    assert!(lines[3..].iter().all(|step| step.ends_with("terminate 10")));
    assert_eq!(lines.last().unwrap(), "100 terminate 10");
}

#[test]
fn who_attaches_again_is_warned_again() {
    let kind = RuleKind::from(MaxDevicesPerUser { limits: limit(1), scope: Scope::Host });
    let rule = Rule { for_duration: seconds(20), warn: vec![seconds(30)], ..rule(kind, Action::Detach) };
    let lab = |attached_before: f64| Lab::new(1, 2).holder("a", "alice", &[(0, 500.0), (1, attached_before)]);
    let mut daemon = Daemon::new(vec![rule]);
    let steps = daemon.run(&lab(100.0), 60);
    assert_eq!(lines(&steps), ["20 report", "20 warn 1/1", "50 detach a:1"]);
    // The environment attaches the device again.
    let steps = daemon.run(&lab(-55.0), 60);
    assert_eq!(lines(&steps), ["80 warn 1/1", "110 detach a:1"]);
    // The old record again, without the time of its writing.
    let steps = daemon.run(&lab(-55.0), 60);
    assert_eq!(lines(&steps), ["140 warn 1/1", "170 detach a:1"]);
}

/// Rules that take the device of a lab in which alice holds one device of each host.
fn detaching_rules() -> Vec<Rule> {
    let scope = Scope::Host;
    let kinds = [
        max_devices_per_user(0, scope),
        max_environments_per_user(0, scope),
        RuleKind::from(MaxHostsPerUser { limits: limit(0) }),
        RuleKind::from(MaxAge { limits: limit(60), leases: false }),
        RuleKind::from(Idle { below: 0.05, over: seconds(20), only_if_free_devices_below: None }),
    ];
    let actions = [Action::Detach, Action::Terminate, Action::Kill];
    let rules = kinds.iter().flat_map(|kind| {
        actions.map(|action| Rule {
            for_duration: seconds(20),
            warn: vec![seconds(10)],
            remember: seconds(60),
            ..rule(kind.clone(), action)
        })
    });
    rules.collect()
}

fn holder() -> Lab {
    Lab::new(1, 1).holder("a", "alice", &[(0, 3600.0)])
}

#[test]
fn a_device_whose_old_record_is_restored_is_taken_again_by_the_next_look() {
    for rule in detaching_rules() {
        let name = format!("{:?} {:?}", rule.kind, rule.action);
        let mut daemon = Daemon::new(vec![rule]);
        let restored = (0..8).flat_map(|_| daemon.run(&holder(), 10));
        let steps: Vec<_> = restored.collect();
        let (first, rest) = steps.split_at(2);
        assert_eq!(short(&first[0].1), "report", "{name}");
        assert_eq!(short(&first[1].1), "warn 1/1", "{name}");
        let begun = rest[0].0;
        let every_look = (0..rest.len()).map(|look| (begun + look as f64 * 10.0, "detach a:0"));
        let every_look: Vec<_> = every_look.map(|(at, deed)| format!("{at} {deed}")).collect();
        assert_eq!(lines(rest), every_look, "{name}");
        assert!(rest.len() > 2, "{name}: {rest:?}");
    }
}

#[test]
fn a_state_that_was_read_before_a_device_was_taken_shows_nothing_new() {
    for rule in detaching_rules() {
        let name = format!("{:?} {:?}", rule.kind, rule.action);
        let mut daemon = Daemon::new(vec![rule]);
        let mut plan = daemon.cycle(&holder());
        while actions(&plan) != ["detach a:0"] {
            daemon.now_seconds += 10.0;
            plan = daemon.cycle(&holder());
        }
        let taken_seconds = daemon.now_seconds;
        let acted = |plan: &Plan| {
            let is_acted = matches!(plan.violations[0].stage, Stage::Acted { .. });
            assert!(is_acted && plan.steps.is_empty(), "{name}: {plan:?}");
        };
        // The same facts, and then facts that were requested earlier and arrive late.
        acted(&daemon.plan(&holder()));
        let mut late = holder();
        late.hosts[0].collectors.insert(
            "state".to_owned(),
            CollectorStatus {
                success: true,
                current: true,
                duration_seconds: Some(2.0),
                timestamp_seconds: Some(taken_seconds + 1.0),
                error: None,
            },
        );
        daemon.now_seconds += 10.0;
        acted(&daemon.cycle(&late));
        daemon.now_seconds += 10.0;
        assert_eq!(actions(&daemon.cycle(&holder())), ["detach a:0"], "{name}");
    }
}

#[test]
fn what_was_only_rehearsed_of_a_device_is_said_once() {
    for rule in detaching_rules() {
        let name = format!("{:?} {:?}", rule.kind, rule.action);
        let mut daemon = Daemon::new(vec![rule]);
        let mut all = Vec::new();
        while daemon.now_seconds < NOON + 200.0 {
            let plan = daemon.cycle_with(&holder(), |_| Outcome::Would);
            all.extend(plan.steps.iter().map(|step| short(&step.kind)));
            daemon.now_seconds += 10.0;
        }
        assert_eq!(all, ["report", "warn 1/1", "detach a:0"], "{name}");
    }
}

#[test]
fn who_could_not_be_warned_is_not_ended() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Terminate)]);
    let mut all = Vec::new();
    for _ in 0..50 {
        let plan = daemon.cycle_with(&lab, |step| match step.kind {
            StepKind::Warn { .. } => Outcome::Failed { reason: "no way to tell".to_owned() },
            _ => Outcome::Done,
        });
        all.extend(plan.steps.iter().map(|step| short(&step.kind)));
        daemon.now_seconds += 10.0;
    }
    assert_eq!(all, ["report", "warn 1/1"]);
    let why = "the user could not be warned: no way to tell".to_owned();
    assert_eq!(daemon.plan(&lab).violations[0].stage, Stage::Held { why });
}

#[test]
fn what_was_only_rehearsed_counts_for_nothing_once_it_is_done() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Kill)]);
    while daemon.now_seconds < NOON + 1000.0 {
        daemon.cycle_with(&lab, |_| Outcome::Would);
        daemon.now_seconds += 10.0;
    }
    daemon.history.forget_rehearsal();
    let mut steps = Vec::new();
    while daemon.now_seconds < NOON + 2000.0 {
        let at = daemon.now_seconds - NOON;
        daemon.history.forget_rehearsal();
        let plan = daemon.cycle(&lab);
        steps.extend(plan.steps.into_iter().map(|step| (at, step.kind)));
        daemon.now_seconds += 10.0;
    }
    // Seen anew from 1000 on.
    assert_eq!(lines(&steps), ["1020 warn 1/1", "1050 terminate 10", "1110 kill 10"]);
}

#[test]
fn what_failed_is_not_tried_again() {
    let lab = uses(&[(10, 20)]);
    let at_once = Rule { for_duration: seconds(0), warn: Vec::new(), ..memory_rule(Action::Terminate) };
    let mut daemon = Daemon::new(vec![at_once]);
    let failed = |_: &Step| Outcome::Failed { reason: "it may not be signalled".to_owned() };
    assert_eq!(actions(&daemon.cycle_with(&lab, failed)), ["terminate 10"]);
    daemon.now_seconds += 10.0;
    assert_eq!(daemon.run(&lab, 600), []);
}

#[test]
fn a_report_keeps_its_time() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Report)]);
    assert_eq!(lines(&daemon.run(&lab, 1000)), ["20 report"]);
    let stage = daemon.plan(&lab).violations[0].stage.clone();
    assert_eq!(stage, Stage::Acted { at_seconds: NOON + 20.0, kill_seconds: None });
}
