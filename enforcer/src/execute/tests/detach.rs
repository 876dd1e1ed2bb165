use genv_core::state::SeenAttachment;

use super::*;
use crate::plan::tests::lab;

fn attachment(stage: &Stage, uid: u32) -> AttachmentTarget {
    let mut state = StateDirectory::new(stage.genv.path());
    let state = genv_core::state::StateSource::read(&mut state).unwrap();
    let attached = state.devices[0].attachments[0].attached_timestamp_seconds.unwrap();
    AttachmentTarget {
        hostname: "here".to_owned(),
        uuid: Some("GPU-0".to_owned()),
        #[expect(clippy::cast_possible_truncation, reason = "a time of this century")]
        attached_seconds: Some(attached as i64),
        ..lab::attachment(&ProcReader::new().username(uid), "E", 0, Vec::new())
    }
}

/// A member of the environment E, which holds the device, with the target that takes it.
fn one() -> (Victim, Stage, AttachmentTarget) {
    let (member, stage) = (Victim::new(), Stage::new(&[]));
    let uid = member.target().uid;
    stage.environment("E", uid, member.pid());
    let target = attachment(&stage, uid);
    (member, stage, target)
}

/// Four processes that use the device of the environment E of a member, with the target that takes it.
fn four(signals_per_minute: u32) -> (Victim, Vec<Victim>, Stage, AttachmentTarget) {
    let (member, victims) = (Victim::new(), [(); 4].map(|()| Victim::claiming("E")));
    let mut stage = Stage::new(&victims.each_ref());
    stage.policy.breaker.signals_per_minute = signals_per_minute;
    let uid = member.target().uid;
    stage.environment("E", uid, member.pid());
    let processes = victims.iter().map(|it| it.inside().into()).collect();
    let target = AttachmentTarget { processes, ..attachment(&stage, uid) };
    (member, victims.into(), stage, target)
}

fn detach(target: &AttachmentTarget) -> Step {
    step(StepKind::Detach(target.clone().into()))
}

#[test]
fn processes_that_may_stay_are_left_alone() {
    let mut victim = Victim::claiming("E");
    let stage = Stage::new(&[&victim]);
    let uid = victim.target().uid;
    stage.environment("E", uid, victim.pid());
    let step = detach(&attachment(&stage, uid));
    let mut dry = stage.executor();
    dry.follow(Policy { mode: Mode::DryRun, ..policy() });
    assert_eq!(dry.execute(&step, "why"), Outcome::Would);
    assert!(stage.attached());
    assert_eq!(stage.executor().execute(&step, "why"), Outcome::Done);
    assert!(!stage.attached());
    assert!(victim.runs());
    assert_eq!(stage.results(), ["would", "intended", "done"]);
}

#[test]
fn what_changed_since_the_plan_is_not_detached() {
    let (member, stage, target) = one();
    let uid = member.target().uid;
    let mut executor = stage.executor();
    let newer =
        AttachmentTarget { attached_seconds: target.attached_seconds.map(|seconds| seconds - 1), ..target.clone() };
    refused(&mut executor, &detach(&newer), "attached to it anew", true);
    let replaced = AttachmentTarget { uuid: Some("GPU-1".to_owned()), ..target.clone() };
    refused(&mut executor, &detach(&replaced), "another GPU is at the index", true);
    stage.environment("E", uid + 1, member.pid());
    refused(&mut executor, &detach(&target), "another user's", true);
    stage.environment("F", uid, member.pid());
    refused(&mut executor, &detach(&target), "has ended", true);
    stage.environment("E", uid, member.pid());
    executor.policy.never.users = [format!("uid:{uid}")].into();
    refused(&mut executor, &detach(&target), "listed under never", false);
    executor.policy.never.users.clear();
    let other_device = AttachmentTarget { gpu: 1, uuid: None, ..target.clone() };
    refused(&mut executor, &detach(&other_device), "not attached", true);
    assert!(stage.attached());
    assert_eq!(executor.execute(&detach(&target), "why"), Outcome::Done);
}

#[test]
fn what_changes_before_the_state_is_locked_is_not_detached() {
    let (member, stage, target) = one();
    let uid = member.target().uid;
    let mut executor = stage.executor();
    let seen = executor.judged_attachment(&target).unwrap();
    let earlier = SeenAttachment { attached_seconds: seen.attached_seconds.map(|it| it - 1), ..seen.clone() };
    let mut refused = |seen: &SeenAttachment, why: &str| {
        let outcome = executor.change_state(seen.clone());
        assert!(format!("{outcome:?}").contains(why), "{outcome:?}");
        assert!(stage.attached());
    };
    refused(&earlier, "attached to it anew");
    stage.environment("E", uid + 1, member.pid());
    refused(&seen, "another user's now");
    stage.environment("F", uid, member.pid());
    refused(&seen, "has ended");
    stage.environment("E", uid, member.pid());
    assert_eq!(executor.change_state(seen), Outcome::Done);
    assert!(!stage.attached());
}

#[test]
fn promise_08_a_device_is_taken_and_its_processes_end_at_the_pace_also_over_a_restart() {
    let (_member, mut victims, stage, target) = four(5);
    let (now, nobody) = (Arc::new(Mutex::new(1000.0)), BTreeSet::new());
    let executor = || stage.executor().clock(clock(&now));
    let alive = |victims: &mut Vec<Victim>| victims.iter_mut().filter_map(|it| it.runs().then_some(())).count();
    let mut first = executor();
    first.begin_cycle(&nobody, &nobody);
    assert_eq!(first.execute(&detach(&target), "why"), Outcome::Done);
    assert!(!stage.attached());
    // The device is one, and three are a cycle's.
    until("two have ended", || alive(&mut victims) == 2);
    refused(&mut first, &kill(&victims[3].inside()), "paced", true);
    let mut second = executor();
    second.begin_cycle(&nobody, &nobody);
    second.end_remaining(|_, _| true);
    second.end_remaining(|rule, process| rule != "rule" || process.pid == victims[2].pid());
    assert_eq!(victims[3].ended_by(), 15);
    assert!(victims[2].runs(), "the administrator keeps it waiting");
    second.begin_cycle(&nobody, &nobody);
    second.end_remaining(|_, _| false);
    assert!(victims[2].runs(), "the minute has no room");
    *now.lock().unwrap() = 1060.0;
    second.begin_cycle(&nobody, &nobody);
    second.end_remaining(|_, _| false);
    assert_eq!(victims[2].ended_by(), 15);
    assert!(!stage.own.path().join("left.json").exists());
    assert!(second.remaining.is_empty());
}

#[test]
fn processes_of_a_device_that_another_machine_had_taken_end_at_the_pace_when_it_asks_again() {
    let (_member, mut victims, stage, target) = four(8);
    let nobody = BTreeSet::new();
    let mut first = stage.executor().requested_by("monitor".to_owned()).unwrap();
    first.begin_cycle(&nobody, &nobody);
    assert_eq!(first.execute(&detach(&target), "why"), Outcome::Done);
    assert!(!stage.attached());
    // The device is one, and three are a user's share of a cycle.
    assert_eq!(victims[0].ended_by(), 15);
    assert_eq!(victims[1].ended_by(), 15);
    assert!(victims[2].runs() && victims[3].runs());
    // A daemon of this host has nothing to do with them.
    let mut daemon = stage.executor();
    daemon.begin_cycle(&nobody, &nobody);
    daemon.end_remaining(|_, _| false);
    assert!(victims[2].runs() && victims[3].runs());
    let mut second = stage.executor().requested_by("monitor".to_owned()).unwrap();
    second.begin_cycle(&nobody, &nobody);
    second.end_remaining(|_, _| false);
    assert_eq!(victims[2].ended_by(), 15);
    assert_eq!(victims[3].ended_by(), 15);
    assert!(!stage.own.path().join("left-asked.json").exists());
}

#[test]
fn what_is_taken_back_uses_up_no_pace_and_is_in_nobodys_reach() {
    let (member, victim) = (Victim::new(), Victim::new());
    let mut stage = Stage::new(&[&victim]);
    stage.policy.breaker.signals_per_minute = 2;
    let uid = member.target().uid;
    stage.environment("E", uid, member.pid());
    let own = attachment(&stage, uid);
    let forced = AttachmentTarget { unconfirmed: true, ..own.clone() };
    let mut executor = stage.executor();
    let nobody = BTreeSet::new();
    executor.begin_cycle(&nobody, &nobody);
    // A cycle has room for one act.
    assert_eq!(executor.execute(&detach(&forced), "why"), Outcome::Done);
    let end = terminate(&victim.target());
    assert_eq!(executor.execute(&end, "why"), Outcome::Done);

    stage.policy.never.users.insert(own.username.clone());
    stage.environment("E", uid, member.pid());
    let mut executor = stage.executor();
    executor.begin_cycle(&nobody, &nobody);
    refused(&mut executor, &detach(&own), "listed", false);
    let forced = AttachmentTarget { unconfirmed: true, ..attachment(&stage, uid) };
    assert_eq!(executor.execute(&detach(&forced), "why"), Outcome::Done);
}
