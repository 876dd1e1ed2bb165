//! The audit: all actions that were done, would have been done or were refused; a JSON object per line.

mod lines;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};

use genv_core::text::is_harmless;
use jiff::{SignedDuration, Timestamp};
use rustix::fs::{fstat, fsync, ftruncate};
use rustix::io::{Errno, pread, retry_on_intr, write};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::resume::LogPosition;
use crate::directory::{Audience, FileError, RuntimeDirectory};
pub(super) use lines::{AuditLine, lines};
use lines::{for_each_line, last_record};

/// The file's name.
pub(crate) const AUDIT_FILE: &str = "audit.jsonl";

/// A line. An action has two lines with one `id`: the intention, which is on the disk before the action, and the outcome.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AuditRecord {
    /// When the line was written, UTC.
    pub(super) time: String,
    /// The common id of the two lines of an action.
    pub(super) id: String,
    pub(super) result: AuditResult,
    /// The reason of the outcome, unless the action was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) action: AuditAction,
    /// `enforce` or `dry-run`.
    pub(super) mode: &'static str,
    pub(super) rule: String,
    /// The found and the allowed value.
    pub(super) why: String,
    pub(super) hostname: String,
    /// The machine whose enforcer requested the action, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asked_by: Option<String>,
    pub(super) username: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start_time_ticks: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) comm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<u32>,
    /// The number of lines that this line stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) more: Option<u64>,
}

/// The kind of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum AuditAction {
    /// SIGTERM.
    #[serde(rename = "SIGTERM")]
    Terminate,
    /// SIGKILL.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// An environment loses a device.
    #[serde(rename = "detach")]
    Detach,
    /// A report that a user has too many records or violations.
    #[serde(rename = "report")]
    Report,
}

/// The outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AuditResult {
    /// The action is about to be done.
    Intended,
    /// A request for the step is about to be sent to another host, which has an audit log of its own.
    #[serde(rename = "asked")]
    Dispatched,
    Done,
    Would,
    Refused,
    Failed,
    /// SIGKILL was sent, and the process still exists.
    Unkillable,
    /// The program ended before it could write the outcome.
    Unknown,
}

/// The open file, or none before the first line.
#[derive(Debug, Default)]
pub(super) struct Audit {
    file: Option<OwnedFd>,
    /// An outcome that could not be written yet. It is written before any other line.
    late: Option<AuditRecord>,
}

impl Audit {
    /// Adds a line, and flushes an intention or a request to the disk. The caller holds the lock.
    ///
    /// # Errors
    /// The line is not in the file.
    pub(super) fn write(&mut self, directory: &RuntimeDirectory, record: &AuditRecord) -> Result<(), FileError> {
        let failed = |errno| directory.failed("write", AUDIT_FILE, errno);
        let file = match self.file.take() {
            // Otherwise it was rotated.
            Some(file) if directory.is_in_place(AUDIT_FILE, file.as_fd()) => file,
            _ => {
                let (file, left) = self.open(directory, &record.time)?;
                if let Some(left) = left {
                    let fault = left.unknown();
                    tracing::error!(event = "fault", fault, "another program was ended");
                }
                file
            }
        };
        self.add_late(&file).map_err(failed)?;
        append(&file, &line(record)).map_err(failed)?;
        if matches!(record.result, AuditResult::Intended | AuditResult::Dispatched) {
            fsync(&file).map_err(failed)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Adds an outcome, now or before the next line.
    ///
    /// # Errors
    /// The line is not in the file yet.
    pub(super) fn conclude(&mut self, directory: &RuntimeDirectory, record: AuditRecord) -> Result<(), FileError> {
        let written = self.write(directory, &record);
        if written.is_err() {
            self.late.get_or_insert(record);
        }
        written
    }

    /// Opens the file. If the last line is an intention without an outcome, adds the outcome `unknown` and returns the intention:
    /// the caller holds the lock, so the program with that intention has ended.
    fn open(&mut self, directory: &RuntimeDirectory, now: &str) -> Result<(OwnedFd, Option<AuditLine>), FileError> {
        let failed = |errno| directory.failed("write", AUDIT_FILE, errno);
        let file = directory.append(AUDIT_FILE, Audience::Own)?;
        end_torn_line(&file).map_err(failed)?;
        self.add_late(&file).map_err(failed)?;
        let left =
            last_record(&file).map_err(failed)?.filter(|record| record.get("result") == Some(&Value::from("intended")));
        let Some(mut left) = left else {
            return Ok((file, None));
        };
        let intention = AuditLine::deserialize(&left).ok();
        left.insert("time".to_owned(), now.into());
        left.insert("result".to_owned(), "unknown".into());
        left.insert("reason".to_owned(), INTERRUPTED.into());
        append(&file, &line(&left)).map_err(failed)?;
        fsync(&file).map_err(failed)?;
        Ok((file, intention))
    }

    /// Closes the last intention of an earlier program if it has no outcome, and returns it.
    pub(super) fn close_interrupted(
        &mut self,
        directory: &RuntimeDirectory,
        now: &str,
    ) -> Result<Option<AuditLine>, FileError> {
        let (file, left) = self.open(directory, now)?;
        self.file = Some(file);
        Ok(left)
    }

    /// Adds `unknown` for each request after `position` that has no outcome in the file, and returns these requests.
    pub(super) fn close_dispatched(
        &mut self,
        directory: &RuntimeDirectory,
        now: &str,
        position: &LogPosition,
    ) -> Result<Vec<AuditLine>, FileError> {
        let mut open: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for_each_line(directory, |bytes| {
            let Ok(record) = serde_json::from_slice::<Map<String, Value>>(bytes) else {
                return;
            };
            let Some(id) = record.get("id").and_then(Value::as_str).map(str::to_owned) else {
                return;
            };
            if record.get("result") == Some(&Value::from("asked")) && position.is_before(&id) {
                open.insert(id, record);
            } else {
                open.remove(&id);
            }
        })?;
        let (file, _) = self.open(directory, now)?;
        let failed = |errno| directory.failed("write", AUDIT_FILE, errno);
        let mut closed = Vec::new();
        for mut record in open.into_values() {
            closed.extend(AuditLine::deserialize(&record).ok());
            record.insert("time".to_owned(), now.into());
            record.insert("result".to_owned(), "unknown".into());
            record.insert("reason".to_owned(), INTERRUPTED.into());
            append(&file, &line(&record)).map_err(failed)?;
        }
        self.file = Some(file);
        Ok(closed)
    }

    fn add_late(&mut self, file: &OwnedFd) -> Result<(), Errno> {
        if let Some(record) = &self.late {
            append(file, &line(record))?;
            self.late = None;
        }
        Ok(())
    }
}

/// Why an outcome is not known.
const INTERRUPTED: &str = "the program that intended it was ended before it could write down how it went";

/// The time of a line.
pub(super) fn time(now_seconds: f64) -> String {
    let now = SignedDuration::try_from_secs_f64(now_seconds).and_then(Timestamp::from_duration);
    match now {
        Ok(now) => format!("{now:.3}"),
        Err(_) => now_seconds.to_string(),
    }
}

/// The record as one line of text without characters that control a terminal.
fn line(record: &impl Serialize) -> String {
    let json = serde_json::to_string(record).unwrap_or_else(|error| format!("\"{error}\""));
    let mut line = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        // JSON leaves DEL, C1 controls and marks that turn the direction of text as they are.
        if is_harmless(character) {
            line.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                line.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    line.push('\n');
    line
}

/// Adds the line as a whole or not at all.
fn append(file: &OwnedFd, line: &str) -> Result<(), Errno> {
    let length = u64::try_from(fstat(file)?.st_size).unwrap_or_default();
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        match retry_on_intr(|| write(file, rest)) {
            Ok(written) if written > 0 => rest = &rest[written..],
            failed => {
                // A part of a line would make the next one unreadable.
                ftruncate(file, length)?;
                return Err(failed.err().unwrap_or(Errno::IO));
            }
        }
    }
    Ok(())
}

/// Ends a line of which a crash left only a part.
fn end_torn_line(file: &OwnedFd) -> Result<(), Errno> {
    let length = u64::try_from(fstat(file)?.st_size).unwrap_or_default();
    let mut last = [b'\n'];
    if length > 0 {
        retry_on_intr(|| pread(file, &mut last, length - 1))?;
    }
    if last == [b'\n'] {
        return Ok(());
    }
    append(file, "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(time(1_763_667_000.25), "2025-11-20T19:30:00.250Z");
        assert!(!time(f64::MAX).is_empty() && !time(f64::NAN).is_empty());
    }
}
