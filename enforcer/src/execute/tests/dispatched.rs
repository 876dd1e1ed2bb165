use super::*;
use crate::host::dispatching_executor;

struct Sender {
    executor: Executor,
    folder: TempDir,
}

impl Sender {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let executor = Self::open(folder.path());
        Self { executor, folder }
    }

    fn open(folder: &Path) -> Executor {
        let policy = Policy { mode: Mode::Enforce, never: Never::default(), breaker: BreakerLimits::default() };
        dispatching_executor("monitor".to_owned(), folder, policy).unwrap()
    }

    /// The result of each line, with the number of its request from 0.
    fn audit(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join(crate::execute::audit::AUDIT_FILE)).unwrap();
        let mut ids: Vec<Value> = Vec::new();
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let known = ids.iter().position(|id| *id == line["id"]);
            let number = known.unwrap_or_else(|| {
                ids.push(line["id"].clone());
                ids.len() - 1
            });
            format!("{} {number}", line["result"].as_str().unwrap())
        });
        lines.collect()
    }
}

fn on_other_host(pid: u32) -> Step {
    terminate(&ProcessTarget { hostname: "gpu02".to_owned(), ..target("alice", pid) })
}

#[test]
fn each_request_has_an_outcome_also_when_the_outcome_is_the_same_as_before() {
    let mut sender = Sender::new();
    let refused = Outcome::Refused { reason: "it is paused on that host".to_owned(), again: true };
    for outcome in [&refused, &refused, &Outcome::Done] {
        let dispatched = sender.executor.dispatch(&on_other_host(7), "why").unwrap();
        sender.executor.conclude_dispatched(&dispatched, outcome, true);
    }
    assert_eq!(sender.audit(), ["asked 0", "refused 0", "asked 1", "refused 1", "asked 2", "done 2"]);
}

#[test]
fn after_a_kill_only_the_requests_without_an_outcome_are_unknown() {
    let mut sender = Sender::new();
    let before = sender.executor.dispatch(&on_other_host(5), "why").unwrap();
    sender.executor.conclude_dispatched(&before, &Outcome::Done, true);
    let position = sender.executor.log_position();
    let concluded = sender.executor.dispatch(&on_other_host(6), "why").unwrap();
    sender.executor.dispatch(&on_other_host(7), "why").unwrap();
    sender.executor.conclude_dispatched(&concluded, &Outcome::Done, true);
    sender.executor.dispatch(&on_other_host(8), "why").unwrap();

    sender.executor = Sender::open(sender.folder.path());
    let closed = sender.executor.close_dispatched(&position).unwrap();
    assert_eq!(closed.len(), 2);
    for (closed, pid) in closed.iter().zip([7, 8]) {
        let about = format!("SIGTERM to process {pid} (id ");
        assert!(closed.starts_with(&about), "{closed}");
        assert!(closed.contains("whether it was done is not known"), "{closed}");
    }
    let expected = ["asked 0", "done 0", "asked 1", "asked 2", "done 1", "asked 3", "unknown 2", "unknown 3"];
    assert_eq!(sender.audit(), expected);
    assert!(sender.executor.close_dispatched(&position).unwrap().is_empty(), "once");
    let steps = [6, 7].map(on_other_host);
    let fates = sender.executor.interrupted_steps(&position, &steps).unwrap();
    let outcomes: Vec<_> = fates.iter().map(|it| it.outcome.clone()).collect();
    assert_eq!(outcomes, [Some(Outcome::Done), None]);
}

#[test]
fn an_outcome_that_is_not_known_is_unknown_in_the_audit_log() {
    let mut sender = Sender::new();
    let dispatched = sender.executor.dispatch(&on_other_host(7), "why").unwrap();
    let lost = Outcome::Failed { reason: "its session ended".to_owned() };
    sender.executor.conclude_dispatched(&dispatched, &lost, false);
    let dispatched = sender.executor.dispatch(&on_other_host(7), "why").unwrap();
    sender.executor.conclude_dispatched(&dispatched, &lost, true);
    assert_eq!(sender.audit(), ["asked 0", "unknown 0", "asked 1", "failed 1"]);
}
