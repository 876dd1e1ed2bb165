use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::*;
use crate::control::GivenWaiver;
use crate::output::now_seconds;
use crate::plan::tests::lab::{GIB, Lab, attachment, target, uid};
use crate::reload::Written;
use crate::remote_steps::{Rules, VERSION};

/// The clock of the machine that sends the request is ahead of this machine's clock.
const AHEAD_SECONDS: f64 = 30.0 * 24.0 * 3600.0;

const OUTSIDE: &str = "{kind: non-env-processes, action: terminate, warn: []}";

struct Case {
    lab: Lab,
    config: String,
    control: Control,
    /// Groups by user. Other users are unknown.
    groups: BTreeMap<&'static str, &'static str>,
}

/// The confirmed step and the uid, or the reason of the refusal and whether the step may be sent again.
type Confirmation = Result<(StepKind, Option<u32>), (String, bool)>;

impl Case {
    fn new(lab: Lab, rule: &str) -> Self {
        Self {
            lab,
            config: format!("version: 1\nrules:\n- {rule}\n"),
            control: Control::default(),
            groups: BTreeMap::new(),
        }
    }

    fn confirm(&self, remote: RemoteStep) -> Confirmation {
        let config = Config::of_machine("rules", &self.config, TimeZone::UTC).unwrap();
        let here_seconds = now_seconds();
        let request = StepRequest {
            version: VERSION,
            asked_by: "monitor".to_owned(),
            hostname: "gpu01".to_owned(),
            now_seconds: here_seconds + AHEAD_SECONDS,
            rules: Rules {
                source: "rules".to_owned(),
                written: Written::Yaml(self.config.clone()),
                hash: config.hash.clone(),
                timezone: None,
            },
            steps: vec![remote],
        };
        let publication = Publication { sequence: 1, hosts: self.lab.at(here_seconds) };
        let known = self.groups.clone();
        let mut groups =
            Groups::with_lookup(move |user| known.get(user).map(|group| BTreeSet::from([(*group).to_owned()])))
                .unwrap();
        let local_plan = LocalPlan::new(&request, &config, &publication, &self.control, &mut groups);
        match local_plan.confirm(&request.steps[0]) {
            Ok(confirmed) => {
                assert_eq!(confirmed.step.key, request.steps[0].step.key);
                Ok((confirmed.step.kind, confirmed.uid))
            }
            Err(Outcome::Refused { reason, again }) => Err((reason, again)),
            Err(outcome) => panic!("{outcome:?}"),
        }
    }

    fn confirms(&self, remote: &RemoteStep) {
        let expected = (remote.step.kind.clone(), Some(uid(&remote.username)));
        assert_eq!(self.confirm(remote.clone()), Ok(expected));
    }

    fn refuses(&self, remote: &RemoteStep, why: &str, again: bool) {
        let (reason, may_send_again) = self.confirm(remote.clone()).unwrap_err();
        assert!(reason.contains(why), "{reason}");
        assert_eq!(may_send_again, again, "{reason}");
    }
}

fn process(username: &str, pid: u32) -> ProcessTarget {
    ProcessTarget { comm: Some("python".to_owned()), ..target(username, pid) }
}

fn device(username: &str, eid: &str, gpu: u32, processes: &[u32]) -> AttachmentTarget {
    let processes = processes.iter().map(|&pid| ProcessTarget { eid: Some(eid.to_owned()), ..process(username, pid) });
    attachment(username, eid, gpu, processes.map(Arc::new).collect())
}

fn remote_step(rule: &str, subject: Subject, username: &str, kind: StepKind) -> RemoteStep {
    RemoteStep {
        step: Step { key: Key { rule: rule.to_owned(), subject }, kind },
        username: username.to_owned(),
        action: Action::Terminate,
        found: "found".to_owned(),
        allowed: "allowed".to_owned(),
        remedy: "remedy".to_owned(),
        targets: Vec::new(),
    }
}

fn outside(username: &str, pid: u32, kind: StepKind) -> RemoteStep {
    let subject = Subject::Process { hostname: "gpu01".to_owned(), pid, start_time_ticks: u64::from(pid) * 100 };
    remote_step("non-env-processes", subject, username, kind)
}

/// Ends the process that it is about.
fn terminate(username: &str, pid: u32) -> RemoteStep {
    outside(username, pid, StepKind::Terminate(process(username, pid).into()))
}

fn user(rule: &str, username: &str, hostname: Option<&str>, kind: StepKind) -> RemoteStep {
    let subject = Subject::User { username: username.to_owned(), hostname: hostname.map(str::to_owned) };
    remote_step(rule, subject, username, kind)
}

const fn warn() -> StepKind {
    StepKind::Warn { number: 1, of: 1, end_seconds: None }
}

/// alice's 10 and bob's 12 are outside of any environment, alice's 11 is in one.
fn lab() -> Lab {
    Lab::new(1, 2)
        .holder("1", "alice", &[(1, 600.0)])
        .runs(10, "alice", None, &[(0, GIB)])
        .runs(11, "alice", Some("1"), &[(1, GIB)])
        .runs(12, "bob", None, &[(0, GIB)])
}

#[test]
fn a_step_is_confirmed_if_this_host_finds_the_same_violation() {
    let case = Case::new(lab(), OUTSIDE);
    case.confirms(&terminate("alice", 10));
    case.confirms(&outside("alice", 10, warn()));

    let of_alice = outside("bob", 10, terminate("alice", 10).step.kind);
    for wrong in [terminate("alice", 11), outside("alice", 11, warn()), of_alice] {
        case.refuses(&wrong, "own plan does not show that the rule is broken", true);
    }

    let of_ten = |change: fn(&mut ProcessTarget)| {
        let mut target = process("alice", 10);
        change(&mut target);
        outside("alice", 10, StepKind::Terminate(target.into()))
    };
    for wrong in [
        of_ten(|it| it.pid = 12),
        of_ten(|it| it.start_time_ticks += 1),
        of_ten(|it| it.hostname = "gpu02".to_owned()),
        outside("alice", 10, StepKind::Detach(device("alice", "1", 1, &[]).into())),
    ] {
        case.refuses(&wrong, "own plan would not choose this target", true);
    }
}

#[test]
fn a_step_that_its_rule_does_not_allow_is_refused_for_good() {
    let terminate = terminate("alice", 10);
    let kill = outside("alice", 10, StepKind::Kill(process("alice", 10).into()));
    let mut other_rule = terminate.clone();
    other_rule.step.key.rule = "made-up".to_owned();

    let case = Case::new(lab(), OUTSIDE);
    case.refuses(&kill, "its rule does not kill", false);
    case.refuses(&other_rule, "not among the rules in the request", false);
    let kills = Case::new(lab(), "{kind: non-env-processes, action: kill, warn: []}");
    kills.confirms(&kill);
    kills.confirms(&terminate);
    for action in ["report", "warn"] {
        let case = Case::new(lab(), &format!("{{kind: non-env-processes, action: {action}}}"));
        case.refuses(&terminate, "its rule ends nothing", false);
        case.confirms(&outside("alice", 10, warn()));
        case.confirms(&outside("alice", 10, StepKind::Report));
    }
}

#[test]
fn waivers_and_a_pause_of_this_host_end_by_its_own_clock() {
    let waiver = |rule: &str| GivenWaiver {
        user: "alice".to_owned(),
        rules: [rule.to_owned()].into(),
        until_seconds: now_seconds() + 3600.0,
        reason: "deadline".to_owned(),
        given_seconds: now_seconds(),
    };
    let waived = "that host leaves it alone: waived until";
    let right = terminate("alice", 10);
    let mut case = Case::new(lab(), OUTSIDE);
    case.control.waivers = vec![waiver("non-env-processes")];
    case.refuses(&right, waived, true);
    case.confirms(&terminate("bob", 12));
    case.control = Control { paused_until_seconds: Some(now_seconds() + 3600.0), ..Control::default() };
    case.refuses(&right, "it is paused on that host", true);
    // For a rule over all hosts too.
    let all_hosts = "{kind: max-devices-per-user, limit: 5, scope: all-hosts, action: detach, warn: []}";
    let mut case = Case::new(three_devices(), all_hosts);
    case.control.waivers = vec![waiver("max-devices-per-user")];
    let detach = StepKind::Detach(device("alice", "1", 0, &[]).into());
    case.refuses(&user("max-devices-per-user", "alice", None, detach), waived, true);
}

#[test]
fn the_groups_of_this_host_count_and_an_unknown_user_is_left_alone() {
    let rule = "{kind: non-env-processes, action: terminate, warn: [], match: {groups: [students]}}";
    let right = terminate("alice", 10);
    let mut case = Case::new(lab(), rule);
    case.groups = [("alice", "students"), ("bob", "staff")].into();
    case.confirms(&right);
    case.refuses(&terminate("bob", 12), "does not show", true);

    // Three devices exceed the limit of every group.
    let rule = "{kind: max-devices-per-user, limit: {default: 1, groups: {staff: 2}}, action: detach, warn: []}";
    let mut case = Case::new(three_devices(), rule);
    let detach = StepKind::Detach(device("alice", "1", 2, &[22]).into());
    let step = user("max-devices-per-user", "alice", Some("gpu01"), detach);
    case.refuses(&step, "the groups of this user are not known", true);
    case.groups = [("alice", "students")].into();
    case.confirms(&step);
}

/// alice's environment holds devices 0, 1 and 2, the last of them since last, with a process on each.
fn three_devices() -> Lab {
    let lab = Lab::new(1, 3).environment("gpu01", "1", "alice");
    [0, 1, 2].into_iter().fold(lab, |lab, gpu| {
        lab.attach("gpu01", "1", gpu, 600.0 - f64::from(gpu)).runs(20 + gpu, "alice", Some("1"), &[(gpu, GIB)])
    })
}

#[test]
fn a_detach_has_the_device_and_the_processes_of_the_local_plan() {
    let rule = "{kind: max-devices-per-user, limit: 2, action: detach, warn: []}";
    let case = Case::new(three_devices(), rule);
    let detach = |target: &AttachmentTarget| {
        let kind = StepKind::Detach(target.clone().into());
        user("max-devices-per-user", "alice", Some("gpu01"), kind)
    };
    let newest = device("alice", "1", 2, &[22]);
    case.confirms(&detach(&newest));
    // Processes that the local plan would not end are left out.
    let with_others = device("alice", "1", 2, &[21, 22, 99]);
    let expected = (StepKind::Detach(newest.clone().into()), Some(uid("alice")));
    assert_eq!(case.confirm(detach(&with_others)), Ok(expected));
    case.confirms(&detach(&device("alice", "1", 2, &[])));
    let ends = |pid| {
        let kind = StepKind::Terminate(process("alice", pid).into());
        user("max-devices-per-user", "alice", Some("gpu01"), kind)
    };
    case.confirms(&ends(22));

    let not_taken = "own plan would not choose this target";
    case.refuses(&ends(21), not_taken, true);
    let changed = |change: fn(&mut AttachmentTarget)| {
        let mut target = newest.clone();
        change(&mut target);
        detach(&target)
    };
    for wrong in [
        changed(|it| it.gpu = 1),
        changed(|it| it.eid = "2".to_owned()),
        changed(|it| it.username = "bob".to_owned()),
        changed(|it| it.hostname = "gpu02".to_owned()),
    ] {
        case.refuses(&wrong, not_taken, true);
    }
    let enough = "{kind: max-devices-per-user, limit: 3, action: detach, warn: []}";
    Case::new(three_devices(), enough).refuses(&detach(&newest), "does not show", true);
}

#[test]
fn a_violation_that_one_host_cannot_find_is_believed_for_targets_of_that_user() {
    let all_hosts = "{kind: max-devices-per-user, limit: 5, scope: all-hosts, action: detach, warn: []}";
    let lab = three_devices().environment("gpu01", "2", "bob").runs(30, "bob", None, &[(0, GIB)]);
    let case = Case::new(lab.clone(), all_hosts);
    let all = |username, target: AttachmentTarget| {
        user("max-devices-per-user", username, None, StepKind::Detach(target.into()))
    };
    // The limit is five, and the devices on other hosts are not known here.
    case.confirms(&all("alice", device("alice", "1", 0, &[20])));
    case.confirms(&all("alice", device("alice", "1", 2, &[])));
    case.refuses(&all("alice", device("alice", "1", 7, &[])), "would not choose this target", true);
    case.refuses(&all("bob", device("alice", "1", 0, &[])), "does not show", true);
    // A violation of one host must be in the plan of that host.
    let of_host =
        user("max-devices-per-user", "alice", Some("gpu01"), StepKind::Detach(device("alice", "1", 0, &[]).into()));
    case.refuses(&of_host, "does not show", true);

    let idle = Case::new(lab, "{kind: idle, over: 2h, action: detach, warn: []}");
    let subject = Subject::EnvironmentDevice {
        hostname: "gpu01".to_owned(),
        eid: "1".to_owned(),
        index: genv_core::model::DeviceIndex::gpu(1),
    };
    let detach = StepKind::Detach(device("alice", "1", 1, &[21]).into());
    idle.confirms(&remote_step("idle", subject, "alice", detach));
}

/// bob's 10 uses 8 GiB of a device, his 11 6 GiB of another.
fn much_memory() -> Lab {
    Lab::new(1, 2).runs(10, "bob", None, &[(0, 8 * GIB)]).runs(11, "bob", None, &[(1, 6 * GIB)])
}

#[test]
fn the_process_that_got_sigterm_is_killed_although_another_is_newer() {
    let rule = "{kind: max-memory-per-user, limit: 10gi, per: total, action: kill, warn: []}";
    let case = Case::new(much_memory(), rule);
    let step = |kind: fn(Arc<ProcessTarget>) -> StepKind, pid| {
        let kind = kind(process("bob", pid).into());
        user("max-memory-per-user", "bob", Some("gpu01"), kind)
    };
    case.confirms(&step(StepKind::Terminate, 11));
    case.refuses(&step(StepKind::Terminate, 10), "would not choose this target", true);
    case.confirms(&step(StepKind::Kill, 10));
}

#[test]
fn each_of_several_processes_over_the_limit_is_confirmed() {
    // The sum over all hosts can exceed the limit, whatever this host shows.
    for (limit, hostname) in [("1gi", Some("gpu01")), ("100gi, scope: all-hosts", None)] {
        let rule = format!("{{kind: max-memory-per-user, limit: {limit}, per: total, action: terminate, warn: []}}");
        let case = Case::new(much_memory(), &rule);
        for pid in [10, 11] {
            case.confirms(&user("max-memory-per-user", "bob", hostname, terminate("bob", pid).step.kind));
        }
    }
}
