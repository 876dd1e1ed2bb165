//! The record of everything that was done, would have been done or was refused: JSON, one object a line.

use std::os::fd::{AsFd as _, OwnedFd};

use jiff::{SignedDuration, Timestamp};
use rustix::fs::{fstat, fsync, ftruncate};
use rustix::io::{Errno, pread, retry_on_intr, write};
use serde::Serialize;

use crate::directory::{Audience, FileError, RuntimeDirectory};

/// The file's name.
pub const AUDIT_FILE: &str = "audit.jsonl";

/// One line. What is done has two with one `id`: the intention, which is on the disk before anything happens, and how it
/// went.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Record {
    /// When the line was written, UTC.
    pub(super) time: String,
    /// What the two lines of one act have in common.
    pub(super) id: String,
    pub(super) result: Result,
    /// Why it went so, unless it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) action: Action,
    /// `enforce` or `dry-run`.
    pub(super) mode: &'static str,
    pub(super) rule: String,
    /// What was found, and what is allowed.
    pub(super) why: String,
    pub(super) hostname: String,
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
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Action {
    /// SIGTERM.
    #[serde(rename = "SIGTERM")]
    Terminate,
    /// SIGKILL.
    #[serde(rename = "SIGKILL")]
    Kill,
    /// An environment loses a device.
    #[serde(rename = "detach")]
    Detach,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Result {
    /// It is about to be done.
    Intended,
    Done,
    Would,
    Refused,
    Failed,
    /// It was done, and the process is there all the same.
    Unkillable,
}

/// The open file, or none before the first line.
#[derive(Debug, Default)]
pub(super) struct Audit {
    file: Option<OwnedFd>,
}

impl Audit {
    /// Adds a line; flushes it to the disk where something is about to follow from it. Whoever calls holds the lock.
    ///
    /// # Errors
    /// The line is not in the file.
    pub(super) fn write(
        &mut self,
        directory: &RuntimeDirectory,
        record: &Record,
    ) -> std::result::Result<(), FileError> {
        let failed = |errno| directory.failed("write", AUDIT_FILE, errno);
        let file = match self.file.take() {
            // Otherwise it was rotated.
            Some(file) if directory.is_in_place(AUDIT_FILE, file.as_fd()) => file,
            _ => {
                let file = directory.append(AUDIT_FILE, Audience::Own)?;
                end_torn_line(&file).map_err(failed)?;
                file
            }
        };
        append(&file, &line(record)).map_err(failed)?;
        if record.result == Result::Intended {
            fsync(&file).map_err(failed)?;
        }
        self.file = Some(file);
        Ok(())
    }
}

/// The time of a line.
pub(super) fn time(now_seconds: f64) -> String {
    let now = SignedDuration::try_from_secs_f64(now_seconds).and_then(Timestamp::from_duration);
    match now {
        Ok(now) => format!("{now:.3}"),
        Err(_) => now_seconds.to_string(),
    }
}

/// The record in one line of text that does nothing to a terminal.
fn line(record: &Record) -> String {
    let json = serde_json::to_string(record).unwrap_or_else(|error| format!("\"{error}\""));
    let mut line = String::with_capacity(json.len() + 1);
    for character in json.chars() {
        // JSON leaves DEL, C1 controls and marks that turn the direction of text as they are.
        if character.is_control() || is_format(character) {
            line.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

const fn is_format(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Adds the line as a whole or not at all.
fn append(file: &OwnedFd, line: &str) -> std::result::Result<(), Errno> {
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
fn end_torn_line(file: &OwnedFd) -> std::result::Result<(), Errno> {
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
    fn every_field_is_documented() {
        let text = || "a".to_owned();
        let record = Record {
            time: text(),
            id: text(),
            result: Result::Unkillable,
            reason: Some(text()),
            action: Action::Kill,
            mode: "enforce",
            rule: text(),
            why: text(),
            hostname: text(),
            username: text(),
            uid: Some(1),
            pid: Some(1),
            start_time_ticks: Some(1),
            comm: Some(text()),
            eid: Some(text()),
            gpu: Some(1),
        };
        let documentation = include_str!("../../../docs/enforcement.md");
        let json = serde_json::to_value(record).unwrap();
        for field in json.as_object().unwrap().keys() {
            assert!(documentation.contains(&format!("`{field}`")), "{field}");
        }
    }

    #[test]
    fn times_are_utc_with_milliseconds() {
        assert_eq!(time(1_763_667_000.25), "2025-11-20T19:30:00.250Z");
        assert!(!time(f64::MAX).is_empty() && !time(f64::NAN).is_empty());
    }
}
