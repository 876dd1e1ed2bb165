use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn memory_rule(action: Action) -> Rule {
    rule(max_memory(10 * GIB, MemoryPer::Total, Scope::Host), action).timed(20, &[30], 0)
}

fn refused(reason: &str, again: bool) -> Outcome {
    Outcome::Refused { reason: reason.to_owned(), again }
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
            StepKind::Terminate(target) if target.pid == pid => refused("it may not be ended", again),
            _ => Outcome::Done,
        }
    };
    let mut daemon = Daemon::new(vec![memory_rule(Action::Terminate).timed(0, &[], 0)]);
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
    let steps = daemon.run_with(&lab, 500, |at, step| match &step.kind {
        StepKind::Terminate(target) if target.pid == 10 && at < 100.0 => refused("too many this minute", true),
        _ => Outcome::Done,
    });
    let lines = lines(&steps);
    assert_eq!(lines[..3], ["20 report", "20 warn 1/1", "50 terminate 11"]);
    assert!(lines[3..].iter().all(|step| step.ends_with("terminate 10")));
    assert_eq!(lines.last().unwrap(), "100 terminate 10");
}

#[test]
fn who_attaches_again_is_warned_again() {
    let rule = rule(max_devices_per_user(1, Scope::Host), Action::Detach).timed(20, &[30], 0);
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
    let rules = kinds.iter().flat_map(|kind| actions.map(|action| rule(kind.clone(), action)));
    rules.map(|rule| rule.timed(20, &[10], 60)).collect()
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
        daemon.now_seconds += 10.0;
        let mut late = holder().at(daemon.now_seconds);
        let snapshot = late[0].snapshot.as_mut().map(Arc::make_mut).unwrap();
        let state = snapshot.collectors.get_mut("state").unwrap();
        (state.duration_seconds, state.timestamp_seconds) = (Some(2.0), Some(taken_seconds + 1.0));
        acted(&daemon.cycle_on(&late, &holder(), |_| Outcome::Done));
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
        for _ in 0..20 {
            let steps = daemon.run_with(&holder(), 10, |_, _| Outcome::Would);
            all.extend(steps.iter().map(|(_, kind)| short(kind)));
        }
        assert_eq!(all, ["report", "warn 1/1", "detach a:0"], "{name}");
    }
}

#[test]
fn who_could_not_be_warned_is_not_ended() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Terminate)]);
    let steps = daemon.run_with(&lab, 500, |_, step| match step.kind {
        StepKind::Warn { .. } => Outcome::Failed { reason: "no way to tell".to_owned() },
        _ => Outcome::Done,
    });
    assert_eq!(lines(&steps), ["20 report", "20 warn 1/1"]);
    let why = "the user could not be warned: no way to tell".to_owned();
    assert_eq!(daemon.plan(&lab).violations[0].stage, Stage::Held { why });
}

#[test]
fn what_was_only_rehearsed_counts_for_nothing_once_it_is_done() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Kill)]);
    daemon.run_with(&lab, 1000, |_, _| Outcome::Would);
    let mut steps = Vec::new();
    for _ in 0..100 {
        daemon.history.forget_rehearsal();
        steps.extend(daemon.run(&lab, 10));
    }
    // Seen anew from 1000 on.
    assert_eq!(lines(&steps), ["1020 warn 1/1", "1050 terminate 10", "1110 kill 10"]);
}

#[test]
fn what_failed_is_not_tried_again() {
    let lab = uses(&[(10, 20)]);
    let mut daemon = Daemon::new(vec![memory_rule(Action::Terminate).timed(0, &[], 0)]);
    let failed = |_, _: &Step| Outcome::Failed { reason: "it may not be signalled".to_owned() };
    assert_eq!(lines(&daemon.run_with(&lab, 600, failed)), ["0 report", "0 terminate 10"]);
}
