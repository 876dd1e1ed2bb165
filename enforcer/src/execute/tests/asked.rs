//! What is written down of other hosts that are asked.

use super::*;
use crate::host::asking_executor;

struct Asker {
    executor: Executor,
    folder: TempDir,
}

impl Asker {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let executor = Self::open(folder.path());
        Self { executor, folder }
    }

    fn open(folder: &Path) -> Executor {
        let policy = Policy { mode: Mode::Enforce, never: Never::default(), breaker: BreakerLimits::default() };
        asking_executor("monitor".to_owned(), folder, policy).unwrap()
    }

    /// Each line's result, and which question it is about, from 0.
    fn audit(&self) -> Vec<(String, usize)> {
        let text = fs::read_to_string(self.folder.path().join(crate::execute::audit::AUDIT_FILE)).unwrap();
        let mut ids: Vec<Value> = Vec::new();
        let lines = text.lines().map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let known = ids.iter().position(|id| *id == line["id"]);
            let number = known.unwrap_or_else(|| {
                ids.push(line["id"].clone());
                ids.len() - 1
            });
            (line["result"].as_str().unwrap().to_owned(), number)
        });
        lines.collect()
    }
}

fn elsewhere(pid: u32) -> Step {
    terminate(&ProcessTarget {
        hostname: "gpu02".to_owned(),
        pid,
        start_time_ticks: 70,
        uid: STRANGER,
        username: "alice".to_owned(),
        comm: None,
        eid: None,
        container_id: None,
    })
}

fn lines(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    let lines = expected.iter();
    lines.map(|(text, id)| ((*text).to_owned(), *id)).collect()
}

#[test]
fn each_question_has_its_answer_also_when_it_is_the_same_as_before() {
    let mut asker = Asker::new();
    let refused = Outcome::Refused { reason: "it is paused on that host".to_owned(), again: true };
    for outcome in [&refused, &refused, &Outcome::Done] {
        let asked = asker.executor.ask(&elsewhere(7), "why").unwrap();
        asker.executor.answered(&asked, outcome, true);
    }
    let expected = [("asked", 0), ("refused", 0), ("asked", 1), ("refused", 1), ("asked", 2), ("done", 2)];
    assert_eq!(asker.audit(), lines(&expected));
}

#[test]
fn whoever_is_killed_leaves_open_what_was_not_answered_and_nothing_else() {
    let mut asker = Asker::new();
    let before = asker.executor.ask(&elsewhere(5), "why").unwrap();
    asker.executor.answered(&before, &Outcome::Done, true);
    let mark = asker.executor.mark();
    let answered = asker.executor.ask(&elsewhere(6), "why").unwrap();
    asker.executor.ask(&elsewhere(7), "why").unwrap();
    asker.executor.answered(&answered, &Outcome::Done, true);
    asker.executor.ask(&elsewhere(8), "why").unwrap();

    asker.executor = Asker::open(asker.folder.path());
    let closed = asker.executor.close_asked(&mark).unwrap();
    assert_eq!(closed.len(), 2);
    for (closed, pid) in closed.iter().zip([7, 8]) {
        let about = format!("SIGTERM to process {pid} (id ");
        assert!(closed.starts_with(&about), "{closed}");
        assert!(closed.contains("whether it was done is not known"), "{closed}");
    }
    let expected = [
        ("asked", 0),
        ("done", 0),
        ("asked", 1),
        ("asked", 2),
        ("done", 1),
        ("asked", 3),
        ("unknown", 2),
        ("unknown", 3),
    ];
    assert_eq!(asker.audit(), lines(&expected));
    assert!(asker.executor.close_asked(&mark).unwrap().is_empty(), "once");
    let steps = [6, 7].map(elsewhere);
    let became = asker.executor.what_became_of(&mark, &steps).unwrap();
    let outcomes: Vec<_> = became.iter().map(|it| it.outcome.clone()).collect();
    assert_eq!(outcomes, [Some(Outcome::Done), None]);
}

#[test]
fn what_may_have_been_done_is_unknown() {
    let mut asker = Asker::new();
    let asked = asker.executor.ask(&elsewhere(7), "why").unwrap();
    let lost = Outcome::Failed { reason: "its session ended".to_owned() };
    asker.executor.answered(&asked, &lost, false);
    let asked = asker.executor.ask(&elsewhere(7), "why").unwrap();
    asker.executor.answered(&asked, &lost, true);
    let expected = [("asked", 0), ("unknown", 0), ("asked", 1), ("failed", 1)];
    assert_eq!(asker.audit(), lines(&expected));
}
