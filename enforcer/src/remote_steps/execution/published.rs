//! The steps of requests that `genv why` shows on this host: warnings and acts. Violations without a step on this host are
//! known only to the machine that sends the requests.

use genv_core::enforcement::{ENFORCEMENT_FILE, HeldViolation};

use super::{ConfirmedStep, RemoteStep, StepRequest, violation};
use crate::directory::{FileError, RuntimeDirectory};
use crate::plan::words;
use crate::plan::{Stage, StepKind};
use crate::{status, user_reports};

/// The folder of the file in the enforcer's directory. `status.json` of the directory is from the enforcer of this host.
const FOLDER: &str = "elsewhere";

const LOCK: &str = "lock";

/// How long one program waits for another program's lock.
const LOCK_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// The entry for an executed step, in times of this host's clock.
pub(super) fn of(
    request: &StepRequest,
    remote: &RemoteStep,
    confirmed: &ConfirmedStep,
    now_seconds: f64,
) -> Option<HeldViolation> {
    let stage = match confirmed.step.kind {
        StepKind::Report => return None,
        StepKind::Warn { number, end_seconds: Some(end), .. } => {
            Stage::Warned { given: number, end_seconds: end - request.now_seconds + now_seconds }
        }
        _ => Stage::Acted { at_seconds: now_seconds, kill_seconds: None },
    };
    let mut violation = violation(request, remote, confirmed);
    violation.since_seconds = now_seconds;
    if let (Stage::Acted { .. }, Some(action)) = (&stage, words::action(&confirmed.step.kind)) {
        violation.action = action;
    }
    violation.stage = stage;
    Some(status::held(&violation))
}

/// Adds entries in place of older entries about the same violations, and removes the entries that are over.
///
/// # Errors
/// The file cannot be written, and keeps its content.
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
    let _lock = directory.lock(LOCK, LOCK_TIMEOUT)?;
    let source = format!("the enforcer on {}", words::name(asked_by));
    // A damaged file is replaced.
    let mut kept = user_reports::read(&directory, ENFORCEMENT_FILE).unwrap_or_default();
    user_reports::add(&directory, ENFORCEMENT_FILE, source, &mut kept, new, now_seconds)
}
