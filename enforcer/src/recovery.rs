//! Recovery from a kill of the daemon in the middle of a cycle.
//!
//! Before the first action of a cycle the daemon writes the history, and the actions of the cycle to `begun.json`. The audit
//! has each intention before its action. So the next daemon knows whether each action was done, was not done, or has an
//! unknown outcome.

use serde::{Deserialize, Serialize};

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::execute::{Executor, LogPosition};
use crate::history_file;
use crate::plan::words;
use crate::plan::{History, Step};

const BEGUN_FILE: &str = "begun.json";

/// [`Begun::version`] of what is written.
const VERSION: u32 = 1;

/// The actions that a cycle is about to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun {
    version: u32,
    /// The position in the audit log before the steps.
    #[serde(rename = "mark")]
    position: LogPosition,
    /// The steps that detach, terminate or kill.
    steps: Vec<Step>,
}

/// Writes the history and the steps that are about to be executed to the disk.
///
/// # Errors
/// They cannot be written: no step may be executed.
pub(crate) fn begin(
    directory: &RuntimeDirectory,
    history: &History,
    position: LogPosition,
    steps: Vec<Step>,
) -> Result<(), FileError> {
    history_file::save(directory, history)?;
    let begun = Begun { version: VERSION, position, steps };
    let content = serde_json::to_vec(&begun).expect("texts and numbers are JSON");
    directory.replace(BEGUN_FILE, &content, Audience::Own)
}

/// Removes the list of begun steps, once their outcomes are in the history on the disk.
pub(crate) fn end(directory: &RuntimeDirectory) -> Result<(), FileError> {
    directory.remove(BEGUN_FILE)
}

/// Enters the outcomes of the steps of a killed daemon in the history, by the audit. Steps without a known outcome are planned
/// and verified again. Returns messages for administrators.
///
/// # Errors
/// The audit or the history cannot be read or written. No step may be executed; the caller tries again.
pub(crate) fn recover(
    directory: &RuntimeDirectory,
    executor: &mut Executor,
    history: &mut History,
    now_seconds: f64,
) -> Result<Vec<String>, FileError> {
    let mut faults = Vec::from_iter(executor.close_interrupted_action()?);
    let Some(content) = directory.read(BEGUN_FILE)? else {
        return Ok(faults);
    };
    let begun = serde_json::from_slice::<Begun>(&content);
    let Some(begun) = begun.ok().filter(|begun| begun.version == VERSION) else {
        let path = directory.path().join(directory.set_aside(BEGUN_FILE)?);
        faults.push(format!(
            "the actions of the killed enforcer are not known, since {} is damaged; actions that are still due are planned \
            again",
            path.display()
        ));
        return Ok(faults);
    };
    faults.extend(executor.close_dispatched(&begun.position)?);
    for interrupted in executor.interrupted_steps(&begun.position, &begun.steps)? {
        if let Some(outcome) = &interrupted.outcome {
            history.settle(&interrupted.step, outcome, now_seconds);
        }
        for process in &interrupted.left {
            let process = words::process_target(process);
            faults.push(format!(
                "{process} was to end with its device, and the enforcer was killed before it came to it: see whether it \
                 still uses the device"
            ));
        }
    }
    history_file::save(directory, history)?;
    end(directory)?;
    Ok(faults)
}
