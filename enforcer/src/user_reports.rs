//! Reports of actions for their users, in a file: `genv why` and the enforcer's page show them for a week.

use std::collections::BTreeMap;

use genv_core::enforcement::{ENFORCEMENT_VERSION, Enforcement, EnforcementConfig, HeldViolation};

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::words;
use crate::plan::{Stage, StepKind, Violation};
use crate::status;

/// How long a report of an action is kept.
pub(crate) const KEPT_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// The largest number of reports of one user, and of all users. The oldest reports are removed.
const MAX_OF_USER: usize = 100;
const MOST: usize = 2000;

/// The report of a completed action.
pub(crate) fn of_action(violation: &Violation, step: &StepKind, now_seconds: f64) -> HeldViolation {
    let remedy = violation.remedy();
    let held = status::held(&Violation {
        stage: Stage::Acted { at_seconds: now_seconds, kill_seconds: None },
        targets: Vec::from_iter(words::step_target(step)),
        action: words::action(step).unwrap_or(violation.action),
        ..violation.clone()
    });
    HeldViolation { remedy, ..held }
}

/// The reports of the enforcer's own actions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Actions {
    /// The oldest first.
    pub(crate) reports: Vec<HeldViolation>,
    /// Why those before the start are not known.
    pub(crate) unread: Option<FileError>,
}

impl Actions {
    /// The reports of earlier daemons.
    pub(crate) fn load(directory: &RuntimeDirectory, file: &str) -> Self {
        match read(directory, file) {
            Ok(reports) => Self { reports, unread: None },
            Err(error) => Self { reports: Vec::new(), unread: Some(error) },
        }
    }
}

/// The reports of a file. A missing file counts as empty.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub(crate) fn read(directory: &RuntimeDirectory, file: &str) -> Result<Vec<HeldViolation>, FileError> {
    let Some(content) = directory.read(file)? else {
        return Ok(Vec::new());
    };
    let kept: Enforcement = serde_json::from_slice(&content).map_err(|error| FileError {
        what: "read",
        path: directory.path().join(file),
        why: format!("it is damaged ({error})"),
        remedy: "unless a later action has replaced it, move it away; then restart genv-enforcer. 'genv-enforcer report' shows its actions",
    })?;
    Ok(kept.violations)
}

/// Adds reports to those of a file, and writes the file. A report replaces warnings about the same subject, and expired
/// reports are removed. The caller keeps other programs from writing the file.
///
/// # Errors
/// The file cannot be written; its content is unchanged.
pub(crate) fn add(
    directory: &RuntimeDirectory,
    file: &str,
    source: String,
    violations: &mut Vec<HeldViolation>,
    new: Vec<HeldViolation>,
    now_seconds: f64,
) -> Result<(), FileError> {
    violations
        .retain(|it| !is_expired(it, now_seconds) && !new.iter().any(|new| it.stage == "warned" && is_same(new, it)));
    violations.extend(new);
    let mut of_user: BTreeMap<String, usize> = BTreeMap::new();
    for violation in violations.iter() {
        *of_user.entry(violation.username.clone()).or_default() += 1;
    }
    violations.retain(|it| {
        let count = of_user.entry(it.username.clone()).or_default();
        let is_kept = *count <= MAX_OF_USER;
        *count -= 1;
        is_kept
    });
    let excess = violations.len().saturating_sub(MOST);
    violations.drain(..excess);
    let kept = Enforcement {
        version: ENFORCEMENT_VERSION,
        updated_timestamp_seconds: now_seconds,
        mode: "enforce".to_owned(),
        config: EnforcementConfig { source, ..EnforcementConfig::default() },
        violations: violations.clone(),
        ..Enforcement::default()
    };
    let content = serde_json::to_vec(&kept).unwrap_or_default();
    directory.replace(file, &content, Audience::Everybody)
}

/// Whether a report is expired: the time of a warned action has passed, or an action is older than [`KEPT_SECONDS`].
fn is_expired(report: &HeldViolation, now_seconds: f64) -> bool {
    let at_seconds = report.at_seconds.unwrap_or_default();
    let lasts_seconds = match report.stage.as_str() {
        "warned" => 0.0,
        _ => KEPT_SECONDS,
    };
    at_seconds + lasts_seconds < now_seconds
}

fn is_same(new: &HeldViolation, old: &HeldViolation) -> bool {
    (&new.rule, &new.subject, &new.hostname) == (&old.rule, &old.subject, &old.hostname) && new.username == old.username
}

#[cfg(test)]
mod tests {
    use super::read as read_file;
    use super::*;

    fn told(subject: &str, stage: &str, at_seconds: f64) -> HeldViolation {
        HeldViolation {
            rule: "rule".to_owned(),
            username: "alice".to_owned(),
            subject: subject.to_owned(),
            stage: stage.to_owned(),
            at_seconds: Some(at_seconds),
            ..HeldViolation::default()
        }
    }

    #[test]
    fn a_report_replaces_warnings_about_its_subject_and_expired_reports_are_removed() {
        let (folder, directory) = RuntimeDirectory::temporary();
        let path = folder.path().join("told.json");
        let read = || {
            let told = Enforcement::read_file(&path).unwrap();
            let told = told.unwrap().violations.into_iter();
            told.map(|it| format!("{} {}", it.subject, it.stage)).collect::<Vec<_>>()
        };
        let add = |new: Vec<HeldViolation>, now| {
            let mut kept = read_file(&directory, "told.json").unwrap_or_default();
            add(&directory, "told.json", String::new(), &mut kept, new, now).unwrap();
        };
        add(vec![told("process 1", "warned", 100.0)], 0.0);
        add(vec![told("process 2", "warned", 100.0)], 0.0);
        add(vec![told("process 1", "acted", 100.0)], 100.0);
        assert_eq!(read(), ["process 2 warned", "process 1 acted"]);
        add(vec![told("process 1", "acted", 101.0)], 101.0);
        assert_eq!(read(), ["process 1 acted", "process 1 acted"]);
        add(vec![told("process 4", "warned", 1e9)], 100.5 + KEPT_SECONDS);
        assert_eq!(read(), ["process 1 acted", "process 4 warned"]);
        std::fs::write(&path, "{").unwrap();
        add(vec![told("process 5", "acted", 0.0)], 0.0);
        assert_eq!(read(), ["process 5 acted"]);
        let many = (0..MAX_OF_USER).map(|it| told(&format!("process {}", 10 + it), "acted", 0.0));
        add(many.collect(), 0.0);
        assert_eq!(read().len(), MAX_OF_USER);
        assert_eq!(read()[0], "process 10 acted");
        let others =
            (0..MOST).map(|user| HeldViolation { username: format!("user{user}"), ..told("process 6", "acted", 0.0) });
        add(others.collect(), 0.0);
        assert_eq!(read().len(), MOST);
        assert_eq!(read()[0], "process 6 acted");
    }
}
