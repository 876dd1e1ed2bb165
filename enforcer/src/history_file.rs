//! What must outlive the daemon: the history of violations, in `history.json`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::discriminant;

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::{History, Plan};

/// The file.
pub(crate) const HISTORY_FILE: &str = "history.json";

/// What was remembered. What cannot be used is set aside, and said: violations begin anew then, which acts later
/// rather than sooner.
///
/// # Errors
/// The file cannot be read, or not be set aside.
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
    let said = format!("{why}: it is set aside as {}, and every violation begins anew", path.display());
    Ok((History::default(), Some(said)))
}

/// Writes it down; it is on the disk then.
///
/// # Errors
/// It cannot be written; what was there before still is.
pub fn save(directory: &RuntimeDirectory, history: &History) -> Result<(), FileError> {
    let content = history.to_json().map_err(|error| FileError {
        what: "write",
        path: directory.path().join(HISTORY_FILE),
        why: error.to_string(),
        remedy: "this is a defect of the program: report it",
    })?;
    directory.replace(HISTORY_FILE, content.as_bytes(), Audience::Own)
}

/// For how long what is on the disk may be older than what is remembered, if nothing but time has passed. After a crash
/// time counts on through a gap of twice as much, or more: so much is left for starting again.
const LONGEST_LAG_SECONDS: f64 = 15.0;

/// What is on the disk, as far as that tells whether it must be written anew.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnDisk(Option<Written>);

#[derive(Clone, Copy, Debug)]
struct Written {
    at_seconds: f64,
    stages: u64,
}

impl OnDisk {
    /// Writes down what is remembered after a plan and its steps, unless it differs from what is on the disk by no more
    /// than a little time.
    ///
    /// # Errors
    /// As [`save`]; it is tried again the next time.
    pub(crate) fn follow(
        &mut self,
        directory: &RuntimeDirectory,
        history: &History,
        plan: &Plan,
        now_seconds: f64,
    ) -> Result<(), FileError> {
        let stages = stages(plan);
        let lag = 0.0..LONGEST_LAG_SECONDS;
        let is_recent = |last: Written| last.stages == stages && lag.contains(&(now_seconds - last.at_seconds));
        if plan.steps.is_empty() && self.0.is_some_and(is_recent) {
            return Ok(());
        }
        self.0 = None;
        save(directory, history)?;
        self.0 = Some(Written { at_seconds: now_seconds, stages });
        Ok(())
    }
}

/// Which violations there are, and how far each is.
fn stages(plan: &Plan) -> u64 {
    let mut hasher = DefaultHasher::new();
    for violation in &plan.violations {
        violation.key.hash(&mut hasher);
        discriminant(&violation.stage).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use crate::config::Action;
    use crate::plan::{Key, Stage, Step, StepKind, Subject, Violation};

    use super::*;

    fn violation(username: &str, stage: Stage) -> Violation {
        Violation {
            key: Key {
                rule: "rule".to_owned(),
                subject: Subject::User { username: username.to_owned(), hostname: None },
            },
            username: username.to_owned(),
            uid: None,
            hostname: None,
            action: Action::Warn,
            since_seconds: 0.0,
            stage,
            found: String::new(),
            allowed: String::new(),
            remedy: String::new(),
            targets: Vec::new(),
            unconfirmed: false,
        }
    }

    #[test]
    fn it_is_written_at_once_when_a_violation_comes_goes_or_goes_on_and_else_before_time_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
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
    fn what_could_not_be_written_is_written_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
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
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        assert_eq!(load(&directory).unwrap(), (History::default(), None));
        save(&directory, &History::default()).unwrap();
        assert_eq!(load(&directory).unwrap(), (History::default(), None));
        for damaged in [&b"{\"vers"[..], b"", b"\xff"] {
            directory.replace(HISTORY_FILE, damaged, Audience::Own).unwrap();
            let (history, said) = load(&directory).unwrap();
            assert_eq!(history, History::default());
            assert!(said.is_some_and(|said| said.contains("set aside")));
            assert_eq!(load(&directory).unwrap().1, None);
        }
    }
}
