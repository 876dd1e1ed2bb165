use super::daemon::*;
use crate::config::*;
use crate::plan::*;

fn devices(limit: Limits<u64>) -> RuleKind {
    RuleKind::from(MaxDevicesPerUser { limits: limit, scope: Scope::Host })
}

fn of(daemon: &Daemon, lab: &Lab, pid: u32) -> RuleExplanation {
    let mut rules = explained(daemon, lab, pid).rules;
    assert_eq!(rules.len(), 1);
    rules.remove(0)
}

fn explained(daemon: &Daemon, lab: &Lab, pid: u32) -> Explanation {
    let hosts = lab.at(daemon.now_seconds);
    let input = daemon.input(&hosts, lab);
    explain(&input, &daemon.history, "gpu01", pid).unwrap()
}

/// alice's environment has two devices and a process on each; bob's process is outside.
fn lab() -> Lab {
    Lab::new(1, 4)
        .holder("e1", "alice", &[(0, 60.0), (1, 30.0)])
        .runs(10, "alice", Some("e1"), &[(0, GIB)])
        .runs(11, "alice", Some("e1"), &[(1, GIB)])
        .runs(12, "bob", None, &[(2, GIB)])
}

#[test]
fn who_goes_and_who_is_spared_is_told_with_the_limit_and_by_whom_it_is() {
    let mut limits = limit(1);
    limits.base.groups.insert("staff".to_owned(), 1);
    let daemon = Daemon::new(vec![rule(devices(limits), Action::Detach)]);
    let lab = lab().member("alice", "staff");
    let newer = of(&daemon, &lab, 11);
    assert_eq!(newer.standing, Standing::Ends);
    assert_eq!(newer.found.as_deref(), Some("holds 2 devices"));
    assert_eq!(newer.limit.as_deref(), Some("1 device for members of staff"));
    assert_eq!(newer.violations.len(), 1);
    assert_eq!(of(&daemon, &lab, 10).standing, Standing::Spared);
    let other = of(&daemon, &lab, 12);
    assert_eq!(other.standing, Standing::Kept);
    assert_eq!(other.limit.as_deref(), Some("1 device by default"));
    assert_eq!(other.violations, []);
}

#[test]
fn what_is_counted_is_told_too_where_it_is_allowed_or_has_no_limit() {
    let mut limits = limit(5);
    let daemon = Daemon::new(vec![rule(devices(limits.clone()), Action::Detach)]);
    let kept = of(&daemon, &lab(), 10);
    assert_eq!(kept.standing, Standing::Kept);
    assert_eq!(kept.found.as_deref(), Some("holds 2 devices"));
    assert_eq!(kept.limit.as_deref(), Some("5 devices by default"));
    let one = lab().holder("e2", "bob", &[(3, 30.0)]);
    assert_eq!(of(&daemon, &one, 12).found.as_deref(), Some("holds 1 device"));
    limits.base.default = None;
    limits.base.users.insert("bob".to_owned(), 1);
    let daemon = Daemon::new(vec![rule(devices(limits), Action::Detach)]);
    let free = of(&daemon, &lab(), 10);
    assert_eq!(free.limit.as_deref(), Some("no limit for alice"));
    assert_eq!(of(&daemon, &lab(), 12).limit.as_deref(), Some("1 device for bob"));
}

#[test]
fn why_a_rule_does_not_look_at_a_process_is_told() {
    let any = Selector::default;
    for (selector, pid, why) in [
        (any(), 12, "the process is in no environment"),
        (Selector { users: Some(names(&["bob"])), ..any() }, 10, "it does not look at alice"),
        (Selector { except_users: names(&["alice"]), ..any() }, 10, "alice is excepted"),
        (Selector { groups: Some(names(&["staff"])), ..any() }, 10, "alice is in none of its groups"),
        (Selector { except_groups: names(&["students"]), ..any() }, 10, "alice is excepted as a member of students"),
        (Selector { hosts: Some(HostSet(names(&["gpu02"]))), ..any() }, 10, "it does not look at gpu01"),
        (Selector { devices: Some([3].into()), ..any() }, 10, "it does not look at device 0"),
    ] {
        let rule = Rule { selector, ..rule(EnvMemory, Action::Terminate) };
        let found = of(&Daemon::new(vec![rule]), &lab().member("alice", "students"), pid);
        assert_eq!((found.standing, found.why.as_str()), (Standing::NotMatched, why));
        assert_eq!((found.limit, found.found), (None, None));
    }
    let mut unasked = lab();
    unasked.groups.clear();
    let mut rule = rule(EnvMemory, Action::Terminate);
    rule.selector.groups = Some(names(&["staff"]));
    let found = of(&Daemon::new(vec![rule]), &unasked, 10);
    assert_eq!(found.why, "the groups of alice are not known");
}

#[test]
fn promise_03_and_06_unknown_and_out_of_reach_are_safe_and_why_is_told() {
    let daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Kill)]);
    let others = [(13, "root"), (14, "admin"), (15, "carol")];
    let mut lab = others.iter().fold(lab(), |lab, (pid, username)| lab.runs(*pid, username, None, &[(3, GIB)]));
    lab.hide(15, "environ_empty");
    for (pid, why) in [
        (13, "it is root's, outside of containers"),
        (14, "its user, admin, is listed under never"),
        (15, "nobody knows where it belongs (environ_empty), and what is unknown is never acted upon"),
    ] {
        let found = explained(&daemon, &lab, pid);
        assert_eq!(found.out_of_reach.as_deref(), Some(why));
        assert_eq!(found.rules[0].standing, Standing::NotMatched, "{found:?}");
    }
    assert_eq!(explained(&daemon, &lab, 12).out_of_reach, None);
    assert_eq!(of(&daemon, &lab, 12).standing, Standing::Ends);
}

#[test]
fn a_waiver_and_how_far_a_violation_is_are_told() {
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate).timed(60, &[600], 0)]);
    daemon.run(&lab(), 120);
    let found = of(&daemon, &lab(), 12);
    assert_eq!(found.standing, Standing::Ends);
    let Stage::Warned { given: 1, end_seconds } = found.violations[0].stage else {
        panic!("{found:?}");
    };
    assert!((end_seconds - NOON - 660.0).abs() < 1.0, "{end_seconds}");
    daemon.waivers = vec![waiver("bob", &["NonEnvProcesses"])];
    let found = of(&daemon, &lab(), 12);
    assert_eq!(found.standing, Standing::Held);
    assert!(found.waits.as_ref().is_some_and(|it| it.contains("dead")), "{found:?}");
}

#[test]
fn a_rule_that_only_reports_ends_nobody() {
    let daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Report)]);
    let found = of(&daemon, &lab(), 12);
    assert_eq!(found.standing, Standing::Spared);
    assert!(found.why.contains("report"), "{found:?}");
}

#[test]
fn whoever_is_told_to_end_is_a_target_of_the_plan_and_nobody_else() {
    let lab = lab()
        .environment("gpu01", "e2", "alice")
        .attach_memory("gpu01", "e2", 3, 10.0, Some(GIB))
        .runs(20, "alice", Some("e2"), &[(3, 2 * GIB)])
        .runs(21, "alice", Some("e2"), &[(2, GIB)])
        .runs(22, "root", None, &[(2, GIB)]);
    let mut ending = 0;
    for kind in strictest().into_iter().filter(|kind| kind.definition().cannot(Action::Terminate).is_none()) {
        let daemon = Daemon::new(vec![rule(kind, Action::Terminate)]);
        let plan = daemon.plan(&lab);
        let targets = plan.violations.iter().flat_map(|violation| &violation.targets);
        let targets: Vec<_> = targets.flat_map(Target::processes).collect();
        for pid in [10, 11, 12, 20, 21, 22] {
            let found = of(&daemon, &lab, pid);
            let ends = targets.iter().any(|target| target.pid == pid);
            assert_eq!(found.standing == Standing::Ends, ends, "{pid}: {found:?}");
            ending += usize::from(ends);
        }
    }
    assert!(ending >= 9, "{ending}");
}
