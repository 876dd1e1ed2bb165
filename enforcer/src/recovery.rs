//! Taking up what a killed daemon was in the middle of.
//!
//! Before the first deed of a cycle the history is on the disk as it was then, and beside it, in `begun.json`, what is
//! about to be done. The audit has each intention before the deed. So the next daemon knows of each deed whether it was
//! done, was not, or that nobody can tell.

use serde::{Deserialize, Serialize};

use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::execute::{Executor, LogPosition};
use crate::history_file;
use crate::plan::words;
use crate::plan::{History, Step};

/// The file.
const BEGUN_FILE: &str = "begun.json";

/// [`Begun::version`] of what is written.
const VERSION: u32 = 1;

/// What a cycle is about to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begun {
    version: u32,
    /// The position in the audit log before the steps.
    #[serde(rename = "mark")]
    position: LogPosition,
    /// All that detaches, terminates or kills.
    steps: Vec<Step>,
}

/// Writes down what is about to be done, and what is remembered until then; both are on the disk then.
///
/// # Errors
/// They cannot be written: nothing may be done.
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

/// All that was begun is in the history, which is on the disk.
///
/// # Errors
/// The file cannot be removed.
pub(crate) fn end(directory: &RuntimeDirectory) -> Result<(), FileError> {
    directory.remove(BEGUN_FILE)
}

/// Settles in the history what an earlier daemon did before it was killed, as the audit tells; what it did not do, or may
/// not have done, is planned and verified anew. Returns what administrators should know.
///
/// # Errors
/// The audit or the history cannot be read or written. Nothing may be done then; it is to be tried again.
pub(crate) fn take_up(
    directory: &RuntimeDirectory,
    executor: &mut Executor,
    history: &mut History,
    now_seconds: f64,
) -> Result<Vec<String>, FileError> {
    let mut faults = Vec::from_iter(executor.take_up_audit()?);
    let Some(content) = directory.read(BEGUN_FILE)? else {
        return Ok(faults);
    };
    let begun = serde_json::from_slice::<Begun>(&content);
    let Some(begun) = begun.ok().filter(|begun| begun.version == VERSION) else {
        let path = directory.path().join(directory.set_aside(BEGUN_FILE)?);
        faults.push(format!(
            "what was being done when the enforcer was killed is not known, for {} is damaged; what is still due is \
             looked at anew",
            path.display()
        ));
        return Ok(faults);
    };
    faults.extend(executor.close_dispatched(&begun.position)?);
    for fate in executor.fates_of(&begun.position, &begun.steps)? {
        if let Some(outcome) = &fate.outcome {
            history.settle(&fate.step, outcome, now_seconds);
        }
        for process in &fate.left {
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
