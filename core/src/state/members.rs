//! `genv-members.json`: what genv 1.x does not know of the members of environments.
//!
//! A pid alone may have been given to another process since. This file, which only this project writes, has the
//! start times of members, and who waits in the queue. It adds to `envs.json` and never contradicts it: what is
//! not there is dropped here.

use std::collections::HashMap;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::document::{Document, NotADocument};
use super::shape::{self, Times};
use super::value;
use crate::model::parse_local_time;

const VERSION: u32 = 1;

/// The start of no process.
pub(super) const NEVER_TICKS: u64 = u64::MAX;

/// A process that outlives no reuse of its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its pid.
    pub pid: u32,
    /// Its start in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time_ticks: u64,
}

/// What is recorded of members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedMembers {
    /// By environment and pid.
    members: HashMap<(String, u32), Record>,
    /// Processes that wait for devices, first come first.
    pub(super) queue: Vec<ProcessId>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Record {
    /// When the environment was made, Unix time: another one may have its id by now.
    created_seconds: Option<i64>,
    /// Absent: the machine was started again since.
    start_time_ticks: Option<u64>,
}

/// What is recorded of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing: genv 1.x wrote it.
    Unknown,
    /// It is the process that started then, clock ticks since boot.
    Started(u64),
    /// It was a process before the machine was started again.
    BeforeThisBoot,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    boot_id: String,
    members: Vec<FileMember>,
    #[serde(default)]
    queue: Vec<ProcessId>,
}

#[derive(Serialize, Deserialize)]
struct FileMember {
    eid: String,
    /// As `envs.json` has it.
    creation: String,
    #[serde(flatten)]
    process: ProcessId,
}

impl RecordedMembers {
    /// What is recorded of a member of an environment that was made at this time.
    #[must_use]
    pub fn of(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Recorded {
        if self.members.is_empty() {
            return Recorded::Unknown;
        }
        match self.members.get(&(eid.to_owned(), pid)) {
            Some(record) if record.created_seconds == whole(created_timestamp_seconds) => record
                .start_time_ticks
                .map_or(Recorded::BeforeThisBoot, Recorded::Started),
            Some(_) | None => Recorded::Unknown,
        }
    }

    /// Whether nothing is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.queue.is_empty()
    }

    /// Records a member.
    pub(super) fn record(
        &mut self,
        eid: &str,
        created_timestamp_seconds: Option<f64>,
        process: ProcessId,
    ) {
        let record = Record {
            created_seconds: whole(created_timestamp_seconds),
            start_time_ticks: Some(process.start_time_ticks),
        };
        self.members.insert((eid.to_owned(), process.pid), record);
    }

    /// The file.
    pub(super) fn write(&self, boot_id: &str, times: &Times) -> Vec<u8> {
        let mut members: Vec<FileMember> = self
            .members
            .iter()
            .filter_map(|((eid, pid), record)| {
                #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
                let created = record.created_seconds.map(|seconds| seconds as f64);
                Some(FileMember {
                    eid: eid.clone(),
                    creation: times.text(created),
                    process: ProcessId {
                        pid: *pid,
                        start_time_ticks: record.start_time_ticks?,
                    },
                })
            })
            .collect();
        members.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        shape::json(&File {
            version: VERSION,
            boot_id: boot_id.to_owned(),
            members,
            queue: self.queue.clone(),
        })
    }
}

/// Reads the file, as the machine is running now.
pub(super) fn parse_in_this_boot(
    content: &[u8],
    time_zone: &TimeZone,
) -> Result<Document<RecordedMembers>, NotADocument> {
    parse(content, &boot_id(), time_zone)
}

/// What the kernel calls the time since the machine was started (random(4)); empty if it does not tell.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Reads the file.
fn parse(
    content: &[u8],
    boot_id: &str,
    time_zone: &TimeZone,
) -> Result<Document<RecordedMembers>, NotADocument> {
    if content.trim_ascii().is_empty() {
        return Err(NotADocument::Empty);
    }
    let file: File =
        value::parse_into(content).map_err(|error| NotADocument::Unknown(error.to_string()))?;
    if file.version != VERSION {
        let why = format!("version {} is not known", file.version);
        return Err(NotADocument::Unknown(why));
    }
    let same_boot = file.boot_id == boot_id;
    let members = file.members.into_iter().map(|member| {
        let record = Record {
            created_seconds: parse_local_time(&member.creation, time_zone).ok(),
            start_time_ticks: same_boot.then_some(member.process.start_time_ticks),
        };
        ((member.eid, member.process.pid), record)
    });
    let members = RecordedMembers {
        members: members.collect(),
        queue: if same_boot { file.queue } else { Vec::new() },
    };
    Ok(Document {
        entries: vec![members],
        incomplete: false,
        warnings: Vec::new(),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "times of files are whole seconds of the years to 9999"
)]
fn whole(timestamp_seconds: Option<f64>) -> Option<i64> {
    timestamp_seconds.map(|seconds| seconds.floor() as i64)
}

#[cfg(test)]
mod tests;
