//! Facts that are old, repeated or missing, and clocks that jump: nothing new is done about them.

use std::sync::Arc;

use super::daemon::*;
use crate::config::*;
use crate::plan::*;

#[test]
fn promise_09_a_repeated_snapshot_causes_nothing_new() {
    let lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, GIB)]);
    let after_a_minute = rule(NonEnvProcesses, Action::Terminate).timed(60, &[], 0);
    for repeated in ["all", "gpu", "processes", "state"] {
        let mut daemon = Daemon::new(vec![after_a_minute.clone()]);
        for _ in 0..100 {
            // Received anew again and again, but some of what it says is always of noon.
            let mut hosts = lab.at(daemon.now_seconds);
            let mut snapshot = (**hosts[0].snapshot.as_ref().unwrap()).clone();
            match repeated {
                "all" => snapshot.timestamp_seconds = NOON,
                collector => read_at(&mut snapshot, collector, NOON),
            }
            hosts[0].snapshot = Some(Arc::new(snapshot));
            let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Done);
            // For three intervals it is there as it was; then nobody knows whether it is.
            let known = daemon.now_seconds - NOON <= 30.0;
            assert_eq!(plan.violations.len(), usize::from(known), "{repeated}");
            assert_eq!(plan.steps, [], "{repeated}");
            daemon.now_seconds += 10.0;
        }
        // Nothing is due for the time that nobody observed.
        let stage = daemon.plan(&lab).violations[0].stage.clone();
        let until_seconds = daemon.now_seconds + 60.0;
        assert_eq!(stage, Stage::Pending { until_seconds }, "{repeated}");
    }
    // The very same input, after its steps: nothing to do.
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Kill)]);
    let first = daemon.cycle(&lab);
    assert_eq!(actions(&first), ["terminate 10"]);
    assert_eq!(daemon.cycle(&lab).steps, []);
}

fn read_at(snapshot: &mut genv_core::model::Snapshot, collector: &str, at: f64) {
    snapshot.collectors.get_mut(collector).unwrap().timestamp_seconds = Some(at);
}

#[test]
fn promise_09_a_stale_snapshot_causes_nothing() {
    let lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, GIB)]);
    let daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate)]);
    let acts_at_age = |age: f64| {
        let mut hosts = lab.at(NOON);
        hosts[0].received_timestamp_seconds = Some(NOON - age);
        let plan = plan(&daemon.input(&hosts, &lab), &daemon.history);
        assert_eq!(plan.missing_hosts.is_empty(), !plan.steps.is_empty());
        !plan.steps.is_empty()
    };
    assert!(acts_at_age(0.0) && acts_at_age(30.0));
    assert!(![30.1, -3600.0, f64::NAN, f64::INFINITY].into_iter().any(acts_at_age));
}

#[test]
fn promise_09_a_snapshot_that_comes_late_causes_nothing() {
    let lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, GIB)]);
    let empty = Lab::new(1, 1);
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate)]);
    daemon.cycle(&empty);
    daemon.now_seconds += 10.0;
    // Made before the last one, received after it.
    let mut hosts = lab.at(NOON - 5.0);
    hosts[0].received_timestamp_seconds = Some(daemon.now_seconds);
    let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Done);
    assert_eq!(plan.steps, []);
    // If it is the clock of the host that was set back, the next one is new by it.
    daemon.now_seconds += 10.0;
    let mut hosts = lab.at(NOON + 5.0);
    hosts[0].received_timestamp_seconds = Some(daemon.now_seconds);
    let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Done);
    assert_eq!(actions(&plan), ["terminate 10"]);
}

#[test]
fn of_two_hosts_by_one_name_nothing_is_concluded() {
    let mut lab = Lab::new(2, 1).runs(10, "bob", None, &[(0, GIB)]).process("gpu02", 10, "carol", None, &[(0, GIB)]);
    lab.hosts[1].hostname = "gpu01".to_owned();
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate)]);
    let plan = daemon.plan(&lab);
    assert_eq!(plan.missing_hosts, names(&["gpu01"]));
    assert!(plan.violations.is_empty());
    assert!(daemon.run(&lab, 100).is_empty());
}

#[test]
fn a_source_that_fails_stops_what_needs_it_and_nothing_else() {
    let mut lab = Lab::new(1, 2).holder("e1", "alice", &[(0, 60.0)]).runs(10, "bob", None, &[(0, GIB)]);
    let devices = rule(max_devices_per_user(0, Scope::Host), Action::Detach);
    let daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate), devices]);
    assert_eq!(actions(&daemon.plan(&lab)), ["terminate 10", "detach e1:0"]);
    // The driver hangs.
    lab.fail("gpu");
    assert_eq!(actions(&daemon.plan(&lab)), ["detach e1:0"]);
    assert!(daemon.plan(&lab).missing_hosts.is_empty());
    // The state cannot be read: nobody knows what is outside.
    lab.fail("state");
    assert_eq!(actions(&daemon.plan(&lab)), [""; 0]);
    assert_eq!(daemon.plan(&lab).missing_hosts, names(&["gpu01"]));
}

#[test]
fn while_the_driver_hangs_nothing_is_forgotten_and_nothing_is_summed_up_without_it() {
    let mut lab =
        Lab::new(2, 1).runs(10, "bob", None, &[(0, 30 * GIB)]).process("gpu02", 10, "bob", None, &[(0, 30 * GIB)]);
    let in_sum = max_memory(20 * GIB, MemoryPer::Total, Scope::AllHosts);
    let mut outside = rule(NonEnvProcesses, Action::Terminate).timed(60, &[], 0);
    outside.selector.hosts = Some(HostSet(names(&["gpu01"])));
    let mut daemon = Daemon::new(vec![outside, rule(in_sum, Action::Report)]);
    daemon.run(&lab, 50);
    lab.fail("gpu");
    let plan = daemon.plan(&lab);
    let why = "no fresh facts from gpu01".to_owned();
    assert_eq!(plan.violations.len(), 1);
    assert_eq!(plan.violations[0].stage, Stage::Held { why });
    assert!(daemon.run(&lab, 600).is_empty());
    lab.hosts[0].collectors.clear();
    // 40 s were seen before; the first look after the silence adds none.
    let steps = daemon.run(&lab, 100);
    assert_eq!(steps[0].0, 650.0 + 20.0);
}

#[test]
fn a_silent_host_forgets_nothing_and_lets_no_time_pass() {
    let mut lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, GIB)]);
    let mut daemon = Daemon::new(vec![rule(NonEnvProcesses, Action::Terminate).timed(60, &[60], 0)]);
    daemon.run(&lab, 90);
    lab.silent.insert("gpu01".to_owned());
    assert!(daemon.run(&lab, 3600).is_empty());
    lab.silent.clear();
    let steps = daemon.run(&lab, 3600);
    // 40 of the 60 seconds that the user was told were left; the first look after the silence adds none.
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].0, 3690.0 + 40.0);
}

#[test]
fn promise_17_with_a_host_missing_nothing_is_done_about_what_counts_over_all() {
    let lab = |missing: bool| {
        let mut lab = Lab::new(3, 2);
        for (host, eid) in [("gpu01", "a"), ("gpu02", "b"), ("gpu03", "c")] {
            lab = lab.environment(host, eid, "alice").attach(host, eid, 0, 60.0);
            lab = lab.process(host, 10, "alice", Some(eid), &[(0, 40 * GIB)]);
        }
        lab.silent.extend(missing.then(|| "gpu03".to_owned()));
        lab
    };
    let scope = Scope::AllHosts;
    let kinds = [
        (max_devices_per_user(1, scope), Action::Detach),
        (max_environments_per_user(1, scope), Action::Detach),
        (RuleKind::from(MaxHostsPerUser { limits: limit(1) }), Action::Detach),
        (max_memory(50 * GIB, MemoryPer::Total, scope), Action::Terminate),
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

/// alice holds a device of each of two hosts since so long before noon.
fn one_each(first: f64, second: f64) -> Lab {
    let lab = Lab::new(2, 1).holder("a", "alice", &[(0, first)]);
    lab.environment("gpu02", "b", "alice").attach("gpu02", "b", 0, second)
}

#[test]
fn promise_17_a_host_that_says_the_same_for_long_is_missing() {
    let kind = max_devices_per_user(1, Scope::AllHosts);
    let lab = one_each(30.0, 60.0);
    let mut daemon = Daemon::new(vec![rule(kind, Action::Detach).timed(60, &[], 0)]);
    let frozen = lab.at(NOON).remove(1);
    let mut steps = Vec::new();
    for _ in 0..30 {
        // She may have given gpu02 back long ago: what it last said must not cost her gpu01.
        let mut hosts = lab.at(daemon.now_seconds);
        let received = hosts[1].received_timestamp_seconds;
        hosts[1] = frozen.clone();
        hosts[1].received_timestamp_seconds = received;
        let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Done);
        let is_missing = plan.missing_hosts.contains("gpu02");
        assert_eq!(is_missing, daemon.now_seconds - NOON > 30.0);
        steps.extend(plan.steps);
        daemon.now_seconds += 10.0;
    }
    assert_eq!(steps, []);
    assert_eq!(daemon.cycle(&lab).missing_hosts, names(&[]));
    assert!(!daemon.run(&lab, 100).is_empty());
}

#[test]
fn clocks_that_jump_hurry_nothing() {
    let lab = Lab::new(1, 1).runs(10, "bob", None, &[(0, GIB)]);
    let warned = rule(NonEnvProcesses, Action::Terminate).timed(60, &[120], 0);
    for jump in [-86_400.0, -3600.0, -1.0, 3600.0, 86_400.0] {
        let mut daemon = Daemon::new(vec![warned.clone()]);
        let first = daemon.run(&lab, 100);
        assert_eq!(first.len(), 2);
        // The user was warned 40 s ago, and has 80 s left.
        daemon.now_seconds += jump;
        let steps = daemon.run(&lab, 1000);
        let after = steps[0].0 - (100.0 + jump);
        assert_eq!(steps.len(), 1, "{jump}");
        assert!((80.0..=100.0).contains(&after), "{jump}: {after}");
    }
}

#[test]
fn what_counts_over_all_is_not_forgotten_while_a_host_is_silent() {
    let kind = max_devices_per_user(1, Scope::AllHosts);
    let mut lab = one_each(60.0, 30.0);
    let mut daemon = Daemon::new(vec![rule(kind, Action::Detach).timed(100, &[], 0)]);
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

fn skewed(lab: &Lab, now_seconds: f64, ahead: f64) -> Vec<HostSnapshot> {
    let mut hosts = lab.at(now_seconds);
    let mut snapshot = (**hosts[0].snapshot.as_ref().unwrap()).clone();
    snapshot.timestamp_seconds += ahead;
    for collector in ["gpu", "processes", "state"] {
        read_at(&mut snapshot, collector, now_seconds + ahead);
    }
    for environment in &mut snapshot.environments {
        let created = &mut Arc::make_mut(environment).created_timestamp_seconds;
        *created = created.map(|at| at + ahead);
    }
    let attachments = snapshot.devices.iter_mut();
    for attachment in attachments.flat_map(|device| Arc::make_mut(&mut device.attachments)) {
        let attached = &mut attachment.attached_timestamp_seconds;
        *attached = attached.map(|at| at + ahead);
    }
    hosts[0].snapshot = Some(Arc::new(snapshot));
    hosts
}

#[test]
fn a_clock_that_is_off_by_hours_makes_a_host_neither_stale_nor_fresh_nor_its_environments_old() {
    let max_age = |seconds| vec![rule(MaxAge { limits: limit(seconds), leases: false }, Action::Detach)];
    let lab = Lab::new(1, 1).holder("e1", "alice", &[(0, 60.0)]);
    for ahead in [-7200.0, 0.0, 7200.0, 7231.0] {
        // It was activated an hour ago.
        for (most, found) in [(3500, 1), (3700, 0)] {
            let mut daemon = Daemon::new(max_age(most));
            for _ in 0..5 {
                let hosts = skewed(&lab, daemon.now_seconds, ahead);
                let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Would);
                assert!(plan.missing_hosts.is_empty(), "{ahead}");
                assert_eq!(plan.violations.len(), found, "{ahead} {most}");
                daemon.now_seconds += 10.0;
            }
        }
        // What came long ago is old, also if it claims to be of now.
        let mut daemon = Daemon::new(max_age(3500));
        let mut hosts = skewed(&lab, daemon.now_seconds, ahead);
        hosts[0].received_timestamp_seconds = Some(daemon.now_seconds - 100.0);
        let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Would);
        assert_eq!(plan.missing_hosts.len(), 1, "{ahead}");
    }
}

#[test]
fn the_newest_on_all_hosts_is_the_newest_whatever_their_clocks_say() {
    let kind = max_devices_per_user(1, Scope::AllHosts);
    let lab = one_each(300.0, 60.0);
    for ahead in [-7200.0, 0.0, 7200.0] {
        let mut daemon = Daemon::new(vec![rule(kind.clone(), Action::Detach)]);
        let hosts = skewed(&lab, daemon.now_seconds, ahead);
        let plan = daemon.cycle_on(&hosts, &lab, |_| Outcome::Would);
        let hit: Vec<_> = plan.violations[0].targets.iter().map(Target::hostname).collect();
        assert_eq!(hit, ["gpu02"], "{ahead}");
    }
}
