//! What `genv why` on this host tells of an enforcer elsewhere: what it has warned of and done here. How that enforcer
//! judges what it has not yet come to is known to it alone.

use genv_core::enforcement::{ENFORCEMENT_FILE, HeldViolation};

use super::{Agreed, Intent, Intents, violation};
use crate::directory::{FileError, RuntimeDirectory};
use crate::plan::words;
use crate::plan::{Stage, StepKind};
use crate::{status, told};

/// Where it is below the enforcer's directory: `status.json` there is of the enforcer of this host.
const FOLDER: &str = "elsewhere";

const LOCK: &str = "lock";

/// How long one program waits for another.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// What users are told of a step that was taken, by the clock of this host.
pub(super) fn of(intents: &Intents, intent: &Intent, agreed: &Agreed, now_seconds: f64) -> Option<HeldViolation> {
    let stage = match agreed.step.kind {
        StepKind::Report => return None,
        StepKind::Warn { number, end_seconds: Some(end), .. } => {
            Stage::Warned { given: number, end_seconds: end - intents.now_seconds + now_seconds }
        }
        _ => Stage::Acted { at_seconds: now_seconds, kill_seconds: None },
    };
    let mut violation = violation(intents, intent, agreed);
    violation.since_seconds = now_seconds;
    if let (Stage::Acted { .. }, Some(action)) = (&stage, words::action(&agreed.step.kind)) {
        violation.action = action;
    }
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
    let source = format!("the enforcer on {}", words::name(asked_by));
    told::add(&directory, ENFORCEMENT_FILE, source, new, now_seconds)
}
