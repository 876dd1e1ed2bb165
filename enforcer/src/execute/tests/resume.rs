use super::*;
use crate::execute::resume::InterruptedStep;
use crate::plan::tests::lab;

fn left(text: &[u8], position: &LogPosition, steps: &[Step]) -> (Stage, Option<String>, Vec<InterruptedStep>) {
    let stage = Stage::new(&[]);
    fs::write(stage.own.path().join("audit.jsonl"), text).unwrap();
    let mut executor = stage.executor();
    let unknown = executor.close_interrupted_action().unwrap();
    let fates = executor.interrupted_steps(position, steps).unwrap();
    (stage, unknown, fates)
}

fn results(stage: &Stage) -> Vec<String> {
    let text = fs::read_to_string(stage.own.path().join("audit.jsonl")).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| line["result"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn wherever_the_audit_breaks_off_each_intention_has_one_outcome() {
    let (victim, stage) = Stage::of_victim();
    let mut executor = stage.executor();
    let position = executor.log_position();
    let step = terminate(&victim.target());
    assert_eq!(executor.execute(&step, "why"), Outcome::Done);
    let text = fs::read(stage.own.path().join("audit.jsonl")).unwrap();
    let first = text.iter().position(|byte| *byte == b'\n').unwrap();
    for length in 0..=text.len() {
        let (stage, unknown, fates) = left(&text[..length], &position, std::slice::from_ref(&step));
        let (expected, outcome): (&[_], _) = match length {
            // The line is whole, whether or not it is ended.
            _ if length >= text.len() - 1 => (&["intended", "done"], Some(Outcome::Done)),
            _ if length >= first => (&["intended", "unknown"], None),
            _ => (&[], None),
        };
        assert_eq!(results(&stage), expected, "{length}");
        assert_eq!(fates[0].outcome, outcome, "{length}");
        assert_eq!(unknown.is_some(), expected.contains(&"unknown"), "{length}");
        // The next start has nothing to add.
        assert_eq!(stage.executor().close_interrupted_action().unwrap(), None);
        assert_eq!(results(&stage), expected, "{length}");
    }
}

#[test]
fn what_another_run_did_is_not_taken_for_what_was_begun() {
    let (victim, stage) = Stage::of_victim();
    let mut executor = stage.executor();
    let step = terminate(&victim.target());
    let before = executor.log_position();
    executor.execute(&step, "why");
    let after = executor.log_position();
    let fate_after = |position: &LogPosition| {
        let steps = std::slice::from_ref(&step);
        executor.interrupted_steps(position, steps).unwrap().remove(0)
    };
    assert_eq!(fate_after(&before).outcome, Some(Outcome::Done));
    assert_eq!(fate_after(&after).outcome, None);
    assert_eq!(fate_after(&stage.executor().log_position()).outcome, None);
}

#[test]
fn processes_that_nobody_came_to_after_their_device_was_taken_are_named() {
    // Were the environment's only process one of those that end, it could end before the other process is looked at.
    let member = Victim::new();
    let (first, second) = (Victim::claiming("7"), Victim::claiming("7"));
    let stage = Stage::new(&[&first, &second]);
    stage.environment("7", first.target().uid, member.pid());
    let target = |victim: &Victim| ProcessTarget { eid: Some("7".to_owned()), ..victim.target() };
    let taken = AttachmentTarget {
        hostname: "here".to_owned(),
        ..lab::attachment(&first.target().username, "7", 0, vec![target(&first).into(), target(&second).into()])
    };
    let step = step(StepKind::Detach(taken.into()));
    let mut executor = stage.executor();
    let position = executor.log_position();
    assert_eq!(executor.execute(&step, "why"), Outcome::Done);
    let text = fs::read_to_string(stage.own.path().join("audit.jsonl")).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 6, "{text}");
    for (count, begun, done) in [(0, 0, false), (1, 0, false), (2, 0, true), (4, 1, true), (6, 2, true)] {
        let text = lines[..count].concat();
        let (_, _, fates) = left(text.as_bytes(), &position, std::slice::from_ref(&step));
        let [interrupted] = fates.as_slice() else { panic!("{fates:?}") };
        assert_eq!(interrupted.outcome.is_some(), done, "{count}");
        let StepKind::Detach(taken) = &interrupted.step.kind else { panic!("{interrupted:?}") };
        if count == 0 {
            // Nothing was begun: nobody is left over.
            assert_eq!(interrupted.left, []);
        } else {
            assert_eq!((taken.processes.len(), interrupted.left.len()), (begun, 2 - begun));
        }
    }
}

#[test]
fn how_something_went_is_written_before_anything_else_is_intended() {
    let (victim, stage) = Stage::of_victim();
    let mut executor = stage.executor();
    let path = |name: &str| stage.own.path().join(name);
    let target = victim.target();
    executor.execute(&terminate(&target), "why");
    // Its own last line comes too late.
    let mut record = executor.record(
        AuditAction::Kill,
        &Target::Process(target.clone().into()),
        &Cause { rule: "rule", why: "why" },
    );
    executor.intend(&mut record).unwrap();
    fs::rename(path("audit.jsonl"), path("kept")).unwrap();
    fs::create_dir(path("audit.jsonl")).unwrap();
    executor.conclude(record, Target::Process(target.into()), &Outcome::Done);
    fs::remove_dir(path("audit.jsonl")).unwrap();
    fs::rename(path("kept"), path("audit.jsonl")).unwrap();
    let other = Victim::new();
    executor.execute(&terminate(&other.target()), "why");
    let expected = ["intended", "done", "intended", "done", "refused"];
    assert_eq!(stage.results(), expected);
}
