//! Hosts that are asked, played.

use std::sync::{Arc, Mutex};

use genv_core::model::{Process, Snapshot};
use serde_json::json;

use super::*;
use crate::config::{Action, BreakerLimits, Mode, Never};
use crate::execute::{Executor, Policy};
use crate::host::asking_executor;
use crate::plan::{Subject, Target};

/// Answers as it was told to, in order, and hangs without an answer.
#[derive(Clone, Debug, Default)]
struct Played {
    answers: Arc<Mutex<Vec<Answer>>>,
    asked: Arc<Mutex<usize>>,
}

impl Hosts for Played {
    fn ask(&self, _: &str, _: Value, answered: Box<dyn FnOnce(Answer) + Send>) {
        *self.asked.lock().unwrap() += 1;
        let mut answers = self.answers.lock().unwrap();
        if !answers.is_empty() {
            answered(answers.remove(0));
        }
    }
}

fn target() -> ProcessTarget {
    ProcessTarget {
        hostname: "gpu01".to_owned(),
        pid: 7,
        start_time_ticks: 70,
        uid: 1000,
        username: "alice".to_owned(),
        comm: None,
        eid: None,
        container_id: None,
    }
}

fn step() -> Step {
    Step {
        key: Key {
            rule: "rule".to_owned(),
            subject: Subject::Process { hostname: "gpu01".to_owned(), pid: 7, start_time_ticks: 70 },
        },
        kind: StepKind::Terminate(target().into()),
    }
}

fn violation() -> Violation {
    Violation {
        key: step().key,
        username: "alice".to_owned(),
        uid: Some(1000),
        hostname: Some("gpu01".to_owned()),
        action: Action::Terminate,
        since_seconds: 0.0,
        stage: crate::plan::Stage::Due,
        found: String::new(),
        allowed: String::new(),
        remedy: String::new(),
        targets: vec![Target::Process(target().into())],
        unconfirmed: false,
    }
}

fn refused(kind: FailureKind) -> Answer {
    Err(HostFailure::new(kind, "not now").into())
}

/// What this host shows: nothing if it is away, the process or not if it is up.
fn host(process: Option<bool>) -> Vec<HostSnapshot> {
    let snapshot = process.map(|is_there| {
        let process: Arc<Process> = serde_json::from_value(json!({
            "pid": 7, "start_time_ticks": 70, "attribution": {"state": "unknown", "reason": "zombie"}, "devices": [],
        }))
        .unwrap();
        Arc::new(Snapshot {
            hostname: "gpu01".to_owned(),
            processes: is_there.then_some(process).into_iter().collect(),
            ..Snapshot::default()
        })
    });
    vec![HostSnapshot {
        hostname: "gpu01".to_owned(),
        up: process.is_some(),
        received_timestamp_seconds: None,
        snapshot,
        ssh: None,
    }]
}

fn executor() -> (Executor, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { mode: Mode::Enforce, never: Never::default(), breaker: BreakerLimits::default() };
    let executor = asking_executor("monitor".to_owned(), folder.path(), policy).unwrap();
    (executor, folder)
}

/// Asks a host for one step; how that went.
fn ask(asking: &mut Asking) -> Vec<(Outcome, bool)> {
    let begun = Begun { step: step(), violation: violation(), asked: None };
    let (executor, _folder) = executor();
    asking.ask("gpu01", json!(1), vec![begun], executor.mark());
    let settled = asking.take(&host(Some(true))).into_iter();
    settled.map(|it| (it.outcome, it.is_known)).collect()
}

fn asking(answers: Vec<Answer>) -> Asking {
    let played = Played::default();
    *played.answers.lock().unwrap() = answers;
    Asking::new(Box::new(played), false)
}

fn done() -> Answer {
    Ok(serde_json::to_value(Outcomes { version: VERSION, outcomes: vec![Outcome::Done] }).unwrap())
}

#[test]
fn a_host_that_cannot_act_is_asked_nothing_until_it_was_away_or_five_minutes_are_over() {
    let unsupported = || refused(FailureKind::Unsupported);
    let mut asking = asking(vec![unsupported(), unsupported(), done()]);
    let again = Outcome::Refused { reason: "not now".to_owned(), again: true };
    assert_eq!(ask(&mut asking), [(again.clone(), true)]);
    assert!(!asking.may_ask("gpu01", &step()) && asking.may_ask("gpu02", &step()));
    assert_eq!(asking.unable().collect::<Vec<_>>(), [("gpu01", "not now")]);
    asking.take(&host(None));
    assert!(asking.may_ask("gpu01", &step()), "it was away");
    assert_eq!(asking.unable().count(), 0);

    assert_eq!(ask(&mut asking), [(again, true)]);
    let (since, _) = asking.unable.get_mut("gpu01").unwrap();
    *since -= UNABLE_FOR - Duration::from_secs(10);
    asking.take(&host(Some(true)));
    assert!(!asking.may_ask("gpu01", &step()));
    let (since, _) = asking.unable.get_mut("gpu01").unwrap();
    *since -= Duration::from_secs(10);
    asking.take(&host(Some(true)));
    assert!(asking.may_ask("gpu01", &step()), "five minutes are over");
    assert_eq!(ask(&mut asking), [(Outcome::Done, true)]);
}

#[test]
fn what_a_host_refuses_for_now_is_asked_again_after_a_minute_and_other_things_before() {
    let mut asking = asking(vec![refused(FailureKind::Command), done()]);
    let outcomes = ask(&mut asking);
    assert!(matches!(outcomes[..], [(Outcome::Refused { again: true, .. }, true)]));
    let mut other = step();
    other.kind = StepKind::Kill(target().into());
    assert!(!asking.may_ask("gpu01", &step()) && asking.may_ask("gpu01", &other));
    assert_eq!(asking.unable().count(), 0);
    for (_, refused) in asking.refused.iter_mut() {
        *refused -= ASK_AGAIN_AFTER;
    }
    asking.take(&host(Some(true)));
    assert!(asking.may_ask("gpu01", &step()));
}

#[test]
fn what_may_have_been_done_is_not_known_and_what_hangs_is_not_asked_more() {
    let lost =
        NotEnforced { failure: HostFailure::new(FailureKind::Disconnected, "its session ended"), may_be_done: true };
    let newer = json!({"version": VERSION + 1, "outcomes": [{"result": "done"}]});
    let of_two = json!({"version": VERSION, "outcomes": []});
    for answer in [Err(lost), Ok(json!([])), Ok(newer), Ok(of_two)] {
        let outcomes = ask(&mut asking(vec![answer]));
        let [(Outcome::Failed { reason }, false)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert!(reason.starts_with("whether it was done is not known"), "{reason}");
    }
    let mut hangs = asking(Vec::new());
    assert_eq!(ask(&mut hangs), []);
    assert!(!hangs.is_idle() && !hangs.may_ask("gpu01", &step()));
    assert!(hangs.may_ask("gpu02", &step()));
}

#[test]
fn a_host_that_only_rehearses_has_done_nothing() {
    let would = Ok(json!({"version": VERSION, "outcomes": [{"result": "would"}]}));
    let outcomes = ask(&mut asking(vec![would]));
    assert!(matches!(outcomes[..], [(Outcome::Refused { again: true, .. }, true)]));
}

#[test]
fn a_process_that_stays_though_it_was_killed_is_told_of_once_after_some_cycles() {
    let mut asking = asking(Vec::new());
    let (mut executor, _folder) = executor();
    let mut asked = || executor.ask(&step(), "why").unwrap();
    let told = |asking: &mut Asking, shown| asking.unkillable(&host(shown)).len();
    asking.killed(target(), asked());
    for _ in 0..CYCLES_TO_DIE {
        assert_eq!(told(&mut asking, Some(true)), 0, "it is taken apart");
        assert_eq!(told(&mut asking, None), 0, "nothing is known of it");
    }
    assert_eq!(told(&mut asking, Some(true)), 1);
    assert_eq!(told(&mut asking, Some(true)), 0);
    assert_eq!(told(&mut asking, Some(false)), 0);
    assert!(asking.killed.is_empty(), "it has ended");

    asking.killed(target(), asked());
    assert_eq!(told(&mut asking, Some(false)), 0);
    assert!(asking.killed.is_empty());
    asking.killed(target(), asked());
    asking.unkillable(&[]);
    assert!(asking.killed.is_empty(), "its host is not followed any more");
}

fn detach(usernames: &[&str]) -> Step {
    let processes = usernames.iter().enumerate().map(|(n, username)| ProcessTarget {
        pid: 7 + n as u32,
        username: (*username).to_owned(),
        ..target()
    });
    let target = AttachmentTarget {
        hostname: "gpu01".to_owned(),
        eid: "e1".to_owned(),
        username: "holder".to_owned(),
        gpu: 0,
        uuid: None,
        attached_seconds: None,
        processes: processes.map(Arc::new).collect(),
        unconfirmed: false,
    };
    Step { key: step().key, kind: StepKind::Detach(target) }
}

#[test]
fn a_host_goes_on_with_the_processes_of_a_device_that_it_took_until_they_are_gone() {
    let mut asking = Asking::new(Box::new(Played::default()), false);
    let StepKind::Detach(target) = detach(&["alice", "alice"]).kind else { unreachable!() };
    asking.took(target);
    asking.take(&host(Some(true)));
    assert_eq!(asking.unfinished(), ["gpu01"]);
    // Of a host that is away it is not known.
    asking.take(&host(None));
    assert!(asking.unfinished().is_empty());
    asking.take(&host(Some(true)));
    assert_eq!(asking.unfinished(), ["gpu01"]);
    asking.take(&host(Some(false)));
    assert!(asking.unfinished().is_empty());
    asking.take(&host(Some(true)));
    assert!(asking.unfinished().is_empty(), "they were gone");
}

#[test]
fn of_the_users_of_a_host_a_cycle_hits_no_larger_share_than_of_all() {
    let mut hosts = host(Some(true));
    let snapshot = Arc::make_mut(hosts[0].snapshot.as_mut().unwrap());
    snapshot.processes = ["alice", "bob", "carol", "dave"]
        .iter()
        .enumerate()
        .map(|(n, username)| {
            let process = json!({
                "pid": 7 + n, "start_time_ticks": 70, "uid": 1000 + n, "username": username,
                "attribution": {"state": "outside", "reason": "no_claim"},
                "devices": [{"index": "0", "type": "compute"}],
            });
            Arc::new(serde_json::from_value::<Process>(process).unwrap())
        })
        .collect();
    let limits = BreakerLimits::default();
    let mut asking = Asking::new(Box::new(Played::default()), false);
    asking.take(&hosts);
    assert!(asking.may_hit("gpu01", &detach(&["alice"]), &limits));
    assert!(asking.may_hit("gpu01", &detach(&["alice", "bob"]), &limits));
    assert!(!asking.may_hit("gpu01", &detach(&["carol"]), &limits));
    assert!(asking.may_hit("gpu02", &detach(&["carol"]), &limits));
    // Another cycle.
    asking.take(&hosts);
    assert!(asking.may_hit("gpu01", &detach(&["carol"]), &limits));
}
