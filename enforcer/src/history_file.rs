//! The file `history.json`: the history of violations, which outlives the daemon.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::discriminant;

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::{History, Plan};

pub(crate) const HISTORY_FILE: &str = "history.json";

/// Reads the history. An unusable file is set aside, and a message about it is returned: all violations then begin anew, so
/// that actions come later, not earlier.
pub fn load(directory: &RuntimeDirectory) -> Result<(History, Option<String>), FileError> {
    let Some(content) = directory.read(HISTORY_FILE)? else {
        return Ok((History::default(), None));
    };
    let why = match History::parse(&String::from_utf8_lossy(&content)) {
        Ok(history) => return Ok((history, None)),
        Err(error) => error,
    };
    let aside = directory.set_aside(HISTORY_FILE)?;
    let path = directory.path().join(aside);
    let message = format!("{why}: it is set aside as {}, and every violation begins anew", path.display());
    Ok((History::default(), Some(message)))
}

/// Writes the history, and flushes it to the disk.
///
/// # Errors
/// The file cannot be written; the old file is unchanged.
pub fn save(directory: &RuntimeDirectory, history: &History) -> Result<(), FileError> {
    let content = history.to_json().map_err(|error| FileError {
        what: "write",
        path: directory.path().join(HISTORY_FILE),
        why: error.to_string(),
        remedy: "this is a defect of the program: report it",
    })?;
    directory.replace(HISTORY_FILE, content.as_bytes(), Audience::Own)
}

/// How much older the file may be than the history while only time passes. After a crash, a gap of at least twice this time
/// still counts, which leaves time for the restart.
const LONGEST_LAG_SECONDS: f64 = 15.0;

/// The state of the file, to decide whether the history must be written again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnDisk(Option<Written>);

#[derive(Clone, Copy, Debug)]
struct Written {
    at_seconds: f64,
    urgent: u64,
}

impl OnDisk {
    /// Writes the history after a plan and its steps, unless only a short time has passed since the file was written.
    ///
    /// # Errors
    /// As for [`save`]. The next call tries again.
    pub(crate) fn follow(
        &mut self,
        directory: &RuntimeDirectory,
        history: &History,
        plan: &Plan,
        now_seconds: f64,
    ) -> Result<(), FileError> {
        let urgent = urgent(plan, history);
        let lag = 0.0..LONGEST_LAG_SECONDS;
        let is_recent = |last: Written| last.urgent == urgent && lag.contains(&(now_seconds - last.at_seconds));
        if plan.steps.is_empty() && self.0.is_some_and(is_recent) {
            return Ok(());
        }
        self.0 = None;
        save(directory, history)?;
        self.0 = Some(Written { at_seconds: now_seconds, urgent });
        Ok(())
    }
}

/// A hash of the facts that must be on the disk before the next cycle: the violations with the stage of each, and the GPU
/// at each index. An enforcer that starts after a crash and does not know that a GPU moved to another index would judge its
/// user by the environment that holds this index.
fn urgent(plan: &Plan, history: &History) -> u64 {
    let mut hasher = DefaultHasher::new();
    for position in history.gpu_positions() {
        position.hash(&mut hasher);
    }
    for violation in &plan.violations {
        violation.key.hash(&mut hasher);
        discriminant(&violation.stage).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::lab::due_violation;
    use crate::plan::{Key, Stage, Step, StepKind, Subject, Violation};

    fn violation(username: &str, stage: Stage) -> Violation {
        let subject = Subject::User { username: username.to_owned(), hostname: None };
        Violation { stage, ..due_violation(Key { rule: "rule".to_owned(), subject }, username) }
    }

    #[test]
    fn the_history_is_written_at_each_change_of_a_violation_and_else_after_some_time() {
        let (folder, directory) = RuntimeDirectory::temporary();
        let path = folder.path().join(HISTORY_FILE);
        let mut on_disk = OnDisk::default();
        let mut is_written = |plan: &Plan, now_seconds| {
            let _ = std::fs::remove_file(&path);
            let history = History::default();
            on_disk.follow(&directory, &history, plan, now_seconds).unwrap();
            path.exists()
        };
        let pending = |until_seconds| Stage::Pending { until_seconds };
        let held = |why: &str| Stage::Held { why: why.to_owned() };
        let mut plan = Plan::default();
        assert!(is_written(&plan, 100.0), "the first time");
        assert!(!is_written(&plan, 100.0), "the same");
        plan.violations = vec![violation("alice", pending(160.0))];
        assert!(is_written(&plan, 110.0), "a violation began");
        plan.violations = vec![violation("alice", pending(165.0))];
        assert!(!is_written(&plan, 120.0), "only time passed");
        assert!(is_written(&plan, 125.0), "much of it");
        assert!(is_written(&plan, 124.0), "the clock was set back");
        plan.violations = vec![violation("bob", pending(165.0))];
        assert!(is_written(&plan, 125.0), "another violation");
        plan.violations = vec![violation("bob", held("paused"))];
        assert!(is_written(&plan, 126.0), "it waits");
        plan.steps = vec![Step { key: plan.violations[0].key.clone(), kind: StepKind::Report }];
        assert!(is_written(&plan, 127.0), "a step was tried");
        plan.steps.clear();
        assert!(!is_written(&plan, 128.0));
        plan.violations.clear();
        assert!(is_written(&plan, 129.0), "a violation is gone");
    }

    #[test]
    fn a_gpu_that_moves_to_another_index_is_written_at_once() {
        let (folder, directory) = RuntimeDirectory::temporary();
        let path = folder.path().join(HISTORY_FILE);
        let mut on_disk = OnDisk::default();
        let mut is_written = |uuids: &[&str], now_seconds: f64| {
            let _ = std::fs::remove_file(&path);
            let gpus = uuids.iter().enumerate();
            let gpus =
                gpus.map(|(index, uuid)| format!(r#""{index}":[{{"uuid":"{uuid}","last_seconds":{now_seconds}}}]"#));
            let read = r#"{"times":{},"state_news_seconds":null,"gpu_news_seconds":null}"#;
            let host = format!(r#"{{"read":{read},"occupants":{{{}}}}}"#, gpus.collect::<Vec<_>>().join(","));
            let history = format!(r#"{{"version":1,"violations":[],"kinds":{{}},"hosts":{{"node1":{host}}}}}"#);
            let history = History::parse(&history).unwrap();
            on_disk.follow(&directory, &history, &Plan::default(), now_seconds).unwrap();
            path.exists()
        };
        assert!(is_written(&["GPU-A", "GPU-B"], 100.0), "the first time");
        assert!(!is_written(&["GPU-A", "GPU-B"], 101.0), "seen again");
        assert!(is_written(&["GPU-B"], 102.0), "another GPU at index 0");
        assert!(!is_written(&["GPU-B"], 103.0), "seen again");
    }

    #[test]
    fn a_failed_write_is_repeated_at_the_next_call() {
        let (folder, directory) = RuntimeDirectory::temporary();
        let path = folder.path().join(HISTORY_FILE);
        let (history, plan) = (History::default(), Plan::default());
        let mut on_disk = OnDisk::default();
        on_disk.follow(&directory, &history, &plan, 1.0).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(on_disk.follow(&directory, &history, &plan, 100.0).is_err());
        std::fs::remove_dir(&path).unwrap();
        on_disk.follow(&directory, &history, &plan, 101.0).unwrap();
        assert!(path.is_file());
    }

    #[test]
    fn a_damaged_history_is_set_aside_and_begun_anew() {
        let (_folder, directory) = RuntimeDirectory::temporary();
        assert_eq!(load(&directory).unwrap(), (History::default(), None));
        save(&directory, &History::default()).unwrap();
        assert_eq!(load(&directory).unwrap(), (History::default(), None));
        for damaged in [&b"{\"vers"[..], b"", b"\xff"] {
            directory.replace(HISTORY_FILE, damaged, Audience::Own).unwrap();
            let (history, message) = load(&directory).unwrap();
            assert_eq!(history, History::default());
            assert!(message.is_some_and(|message| message.contains("set aside")));
            assert_eq!(load(&directory).unwrap().1, None);
        }
    }
}
