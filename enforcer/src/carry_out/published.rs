//! What `genv why` on this host tells of an enforcer elsewhere: what it has warned of and done here. How that enforcer
//! judges what it has not yet come to is known to it alone.

use genv_core::enforcement::{
    ENFORCEMENT_FILE, ENFORCEMENT_VERSION, Enforcement, EnforcementConfig, HeldViolation,
};

use super::{Agreed, Intent, Intents, violation};
use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::words;
use crate::plan::{Stage, StepKind};
use crate::status;

/// Where it is below the enforcer's directory: `status.json` there is of the enforcer of this host.
const FOLDER: &str = "elsewhere";

const LOCK: &str = "lock";

/// How long one program waits for another.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// What was done is told for so long.
const TOLD_FOR_SECONDS: f64 = 24.0 * 3600.0;

/// More are not told; the oldest go first.
const MOST: usize = 1000;

/// What users are told of a step that was taken, by the clock of this host.
pub(super) fn of(
    intents: &Intents,
    intent: &Intent,
    agreed: &Agreed,
    now_seconds: f64,
) -> Option<HeldViolation> {
    let stage = match agreed.step.kind {
        StepKind::Report => return None,
        StepKind::Warn {
            number,
            end_seconds: Some(end),
            ..
        } => Stage::Warned {
            given: number,
            end_seconds: end - intents.now_seconds + now_seconds,
        },
        _ => Stage::Acted {
            at_seconds: now_seconds,
        },
    };
    let mut violation = violation(intents, intent, agreed);
    violation.since_seconds = now_seconds;
    violation.stage = stage;
    Some(status::held(&violation))
}

/// Adds these to what is told, in the place of what was told of the same before, and leaves out what is over.
///
/// # Errors
/// It cannot be written; what was told before still is.
pub(super) fn add(
    directory: &RuntimeDirectory,
    asked_by: &str,
    new: Vec<HeldViolation>,
    now_seconds: f64,
) -> Result<(), FileError> {
    if new.is_empty() {
        return Ok(());
    }
    let directory = RuntimeDirectory::open(directory.path().join(FOLDER))?;
    let _lock = directory.lock(LOCK, PATIENCE)?;
    // What is damaged is begun anew.
    let told = Enforcement::read(directory.path()).ok().flatten();
    let mut violations = told.unwrap_or_default().violations;
    violations.retain(|it| !is_over(it, now_seconds) && !new.iter().any(|new| is_about(new, it)));
    violations.extend(new);
    let excess = violations.len().saturating_sub(MOST);
    violations.drain(..excess);
    let told = Enforcement {
        version: ENFORCEMENT_VERSION,
        updated_timestamp_seconds: now_seconds,
        mode: "enforce".to_owned(),
        config: EnforcementConfig {
            source: format!("the enforcer on {}", words::name(asked_by)),
            ..EnforcementConfig::default()
        },
        violations,
        ..Enforcement::default()
    };
    let content = serde_json::to_vec(&told).unwrap_or_default();
    directory.replace(ENFORCEMENT_FILE, &content, Audience::Everybody)
}

/// Whether what was warned of should have come, or what was done is long ago.
fn is_over(told: &HeldViolation, now_seconds: f64) -> bool {
    let at_seconds = told.at_seconds.unwrap_or_default();
    let lasts_seconds = match told.stage.as_str() {
        "warned" => 0.0,
        _ => TOLD_FOR_SECONDS,
    };
    at_seconds + lasts_seconds < now_seconds
}

fn is_about(new: &HeldViolation, told: &HeldViolation) -> bool {
    (&new.rule, &new.subject, &new.hostname) == (&told.rule, &told.subject, &told.hostname)
        && new.username == told.username
}

#[cfg(test)]
mod tests {
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
    fn what_is_new_replaces_what_was_told_of_the_same_and_what_is_over_goes() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(folder.path()).unwrap();
        let read = || {
            let told = Enforcement::read(&folder.path().join(FOLDER)).unwrap();
            let told = told.unwrap().violations.into_iter();
            told.map(|it| format!("{} {}", it.subject, it.stage))
                .collect::<Vec<_>>()
        };
        let add = |new: HeldViolation, now| add(&directory, "monitor", vec![new], now).unwrap();
        add(told("process 1", "warned", 100.0), 0.0);
        add(told("process 2", "warned", 100.0), 0.0);
        add(told("process 1", "acted", 100.0), 100.0);
        assert_eq!(read(), ["process 2 warned", "process 1 acted"]);
        add(told("process 3", "acted", 101.0), 101.0);
        assert_eq!(read(), ["process 1 acted", "process 3 acted"]);
        add(told("process 4", "warned", 1e9), 101.0 + TOLD_FOR_SECONDS);
        assert_eq!(read(), ["process 3 acted", "process 4 warned"]);
        let path = folder.path().join(FOLDER).join(ENFORCEMENT_FILE);
        std::fs::write(path, "{").unwrap();
        add(told("process 5", "acted", 0.0), 0.0);
        assert_eq!(read(), ["process 5 acted"]);
        for number in 0..=MOST {
            let subject = format!("process {}", 10 + number);
            add(told(&subject, "acted", 0.0), 0.0);
        }
        assert_eq!(read().len(), MOST);
        assert_eq!(read()[0], "process 11 acted");
    }
}
