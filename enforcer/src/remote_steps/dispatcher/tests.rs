use std::sync::{Arc, Mutex};

use genv_remote::HostFailure;
use genv_remote::follow::NotEnforced;
use serde_json::json;

use super::*;
use crate::config::{BreakerLimits, Mode, Never};
use crate::execute::{Executor, Policy};
use crate::host::dispatching_executor;
use crate::plan::tests::lab::{self, Lab};
use crate::plan::{Subject, Target};

#[derive(Debug, Default)]
struct Replies(Mutex<Vec<HostReply>>);

impl Transport for Replies {
    fn send(&self, _: &str, _: Value, on_reply: Box<dyn FnOnce(HostReply) + Send>) {
        let mut replies = self.0.lock().unwrap();
        if !replies.is_empty() {
            on_reply(replies.remove(0));
        }
    }
}

fn target() -> ProcessTarget {
    lab::target("alice", 7)
}

fn step() -> Step {
    Step {
        key: Key {
            rule: "rule".to_owned(),
            subject: Subject::Process { hostname: "gpu01".to_owned(), pid: 7, start_time_ticks: 700 },
        },
        kind: StepKind::Terminate(target().into()),
    }
}

fn violation() -> Violation {
    Violation { targets: vec![Target::Process(target().into())], ..lab::due_violation(step().key, "alice") }
}

fn refused(kind: FailureKind) -> HostReply {
    Err(HostFailure::new(kind, "not now").into())
}

/// The host: away, or up with or without the process.
fn host(process: Option<bool>) -> Vec<HostSnapshot> {
    let mut lab = Lab::new(1, 1);
    if process == Some(true) {
        lab = lab.runs(7, "alice", None, &[(0, 1)]);
        lab.hide(7, "zombie");
    }
    lab.silent.extend(process.is_none().then(|| "gpu01".to_owned()));
    lab.at(0.0)
}

fn executor() -> (Executor, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { mode: Mode::Enforce, never: Never::default(), breaker: BreakerLimits::default() };
    let executor = dispatching_executor("monitor".to_owned(), folder.path(), policy).unwrap();
    (executor, folder)
}

fn send(dispatcher: &mut Dispatcher) -> Vec<(Outcome, bool)> {
    let sent = SentStep { step: step(), violation: violation(), dispatched: None };
    let (executor, _folder) = executor();
    dispatcher.send("gpu01", json!(1), vec![sent], executor.log_position());
    let finished = dispatcher.begin_cycle(&host(Some(true))).into_iter();
    finished.map(|it| (it.outcome, it.is_known)).collect()
}

fn dispatcher(replies: Vec<HostReply>) -> Dispatcher {
    Dispatcher::new(Box::new(Replies(Mutex::new(replies))), false)
}

fn done() -> HostReply {
    Ok(serde_json::to_value(StepReport { version: VERSION, outcomes: vec![Outcome::Done] }).unwrap())
}

#[test]
fn a_host_that_cannot_act_gets_no_request_until_it_was_away_or_for_five_minutes() {
    let unsupported = || refused(FailureKind::Unsupported);
    let mut dispatcher = dispatcher(vec![unsupported(), unsupported(), done()]);
    let again = Outcome::Refused { reason: "not now".to_owned(), again: true };
    assert_eq!(send(&mut dispatcher), [(again.clone(), true)]);
    assert!(!dispatcher.may_send("gpu01", &step()) && dispatcher.may_send("gpu02", &step()));
    assert_eq!(dispatcher.unable().collect::<Vec<_>>(), [("gpu01", "not now")]);
    dispatcher.begin_cycle(&host(None));
    assert!(dispatcher.may_send("gpu01", &step()), "it was away");
    assert_eq!(dispatcher.unable().count(), 0);

    assert_eq!(send(&mut dispatcher), [(again, true)]);
    let (since, _) = dispatcher.unable.get_mut("gpu01").unwrap();
    *since -= UNABLE_FOR / 2;
    dispatcher.begin_cycle(&host(Some(true)));
    assert!(!dispatcher.may_send("gpu01", &step()));
    let (since, _) = dispatcher.unable.get_mut("gpu01").unwrap();
    *since -= UNABLE_FOR / 2;
    dispatcher.begin_cycle(&host(Some(true)));
    assert!(dispatcher.may_send("gpu01", &step()), "five minutes are over");
    assert_eq!(send(&mut dispatcher), [(Outcome::Done, true)]);
}

#[test]
fn a_refused_step_is_sent_again_after_a_minute_and_another_step_at_once() {
    let mut dispatcher = dispatcher(vec![refused(FailureKind::Command), done()]);
    let outcomes = send(&mut dispatcher);
    assert!(matches!(outcomes[..], [(Outcome::Refused { again: true, .. }, true)]));
    let mut other = step();
    other.kind = StepKind::Kill(target().into());
    assert!(!dispatcher.may_send("gpu01", &step()) && dispatcher.may_send("gpu01", &other));
    assert_eq!(dispatcher.unable().count(), 0);
    for since in dispatcher.refused.values_mut() {
        *since -= RETRY_AFTER;
    }
    dispatcher.begin_cycle(&host(Some(true)));
    assert!(dispatcher.may_send("gpu01", &step()));
}

#[test]
fn a_missing_or_wrong_report_is_unknown_and_a_host_that_hangs_gets_no_request() {
    let lost =
        NotEnforced { failure: HostFailure::new(FailureKind::Disconnected, "its session ended"), may_be_done: true };
    let newer = json!({"version": VERSION + 1, "outcomes": [{"result": "done"}]});
    let of_two = json!({"version": VERSION, "outcomes": []});
    for answer in [Err(lost), Ok(json!([])), Ok(newer), Ok(of_two)] {
        let outcomes = send(&mut dispatcher(vec![answer]));
        let [(Outcome::Failed { reason }, false)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert!(reason.starts_with("whether it was done is not known"), "{reason}");
    }
    let mut hangs = dispatcher(Vec::new());
    assert_eq!(send(&mut hangs), []);
    assert!(!hangs.is_idle() && !hangs.may_send("gpu01", &step()));
    assert!(hangs.may_send("gpu02", &step()));
}

#[test]
fn a_host_in_dry_run_has_done_nothing() {
    let would = Ok(json!({"version": VERSION, "outcomes": [{"result": "would"}]}));
    let outcomes = send(&mut dispatcher(vec![would]));
    assert!(matches!(outcomes[..], [(Outcome::Refused { again: true, .. }, true)]));
}

#[test]
fn a_process_that_survives_sigkill_is_unkillable_once_after_some_cycles() {
    let mut dispatcher = dispatcher(Vec::new());
    let (mut executor, _folder) = executor();
    let mut dispatched = || executor.dispatch(&step(), "why").unwrap();
    let unkillable = |dispatcher: &mut Dispatcher, shown| dispatcher.unkillable(&host(shown)).len();
    dispatcher.remember_killed(target(), dispatched());
    for _ in 0..CYCLES_AFTER_KILL {
        assert_eq!(unkillable(&mut dispatcher, Some(true)), 0, "the kernel frees its memory");
        assert_eq!(unkillable(&mut dispatcher, None), 0, "the host is away");
    }
    assert_eq!(unkillable(&mut dispatcher, Some(true)), 1);
    assert_eq!(unkillable(&mut dispatcher, Some(true)), 0);
    assert_eq!(unkillable(&mut dispatcher, Some(false)), 0);
    assert!(dispatcher.killed.is_empty(), "it has ended");

    dispatcher.remember_killed(target(), dispatched());
    assert_eq!(unkillable(&mut dispatcher, Some(false)), 0);
    assert!(dispatcher.killed.is_empty());
    dispatcher.remember_killed(target(), dispatched());
    dispatcher.unkillable(&[]);
    assert!(dispatcher.killed.is_empty(), "its host is not in the list");
}

fn detach(usernames: &[&str]) -> Step {
    let processes = (7..).zip(usernames).map(|(pid, username)| lab::target(username, pid));
    let target = lab::attachment("holder", "e1", 0, processes.map(Arc::new).collect());
    Step { key: step().key, kind: StepKind::Detach(target.into()) }
}

#[test]
fn a_host_is_unfinished_until_the_processes_of_its_detached_device_have_ended() {
    let mut dispatcher = dispatcher(Vec::new());
    let StepKind::Detach(target) = detach(&["alice", "alice"]).kind else { unreachable!() };
    dispatcher.remember_detached(target);
    dispatcher.begin_cycle(&host(Some(true)));
    assert_eq!(dispatcher.take_unfinished(), ["gpu01"]);
    // While the host is away, the processes may be running.
    dispatcher.begin_cycle(&host(None));
    assert!(dispatcher.take_unfinished().is_empty());
    dispatcher.begin_cycle(&host(Some(true)));
    assert_eq!(dispatcher.take_unfinished(), ["gpu01"]);
    dispatcher.begin_cycle(&host(Some(false)));
    assert!(dispatcher.take_unfinished().is_empty());
    dispatcher.begin_cycle(&host(Some(true)));
    assert!(dispatcher.take_unfinished().is_empty(), "the processes have ended");
}

#[test]
fn a_cycle_hits_no_larger_share_of_a_host_s_users_than_of_all_users() {
    let users = (7..).zip(["alice", "bob", "carol", "dave"]);
    let lab = users.fold(Lab::new(1, 1), |lab, (pid, username)| lab.runs(pid, username, None, &[(0, 1)]));
    let hosts = lab.at(0.0);
    let limits = BreakerLimits::default();
    let mut dispatcher = dispatcher(Vec::new());
    dispatcher.begin_cycle(&hosts);
    assert!(dispatcher.may_hit("gpu01", &detach(&["alice"]), &limits));
    assert!(dispatcher.may_hit("gpu01", &detach(&["alice", "bob"]), &limits));
    assert!(!dispatcher.may_hit("gpu01", &detach(&["carol"]), &limits));
    assert!(dispatcher.may_hit("gpu02", &detach(&["carol"]), &limits));
    // Another cycle.
    dispatcher.begin_cycle(&hosts);
    assert!(dispatcher.may_hit("gpu01", &detach(&["carol"]), &limits));
}
