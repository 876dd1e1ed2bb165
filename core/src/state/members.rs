//! `genv-members.json`: what genv 1.x does not know of the members of environments.
//!
//! A pid alone may have been given to another process since. This file, which only this project writes, has the
//! start times of members, and who waits in the queue. It adds to `envs.json` and never contradicts it: what is
//! not there is dropped here, unless it was lost there with a damaged file.

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::document::{self, Document, Format, NotADocument};
use super::file::MOST_FILE_BYTES;
use super::known::{FileKnown, Known, KnownEnvironments};
use super::shape::{self, DevicesDocument, Times};
use super::{DeviceState, EnvironmentState, MEMBERS_FILE, salvage, value};
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
    /// Members of environments that a damaged `envs.json` has lost.
    pub(super) lost: Vec<LostMember>,
    /// Whether the devices of the state are invented, if that is known.
    pub(super) simulated: Option<bool>,
    /// The devices as they were last written, for the case that `devices.json` is lost.
    pub(super) copy: Vec<DeviceState>,
    /// Environments of which a damaged `devices.json` may have lost the devices.
    pub(super) bare: BTreeSet<String>,
    /// What was last known of environments that hold devices.
    pub(super) known: KnownEnvironments,
}

/// A member of an environment of which nothing else is known any more. While it lives the environment keeps its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostMember {
    pub(super) eid: String,
    /// When the environment was made, Unix time.
    pub(super) created_seconds: Option<i64>,
    pub(super) process: ProcessId,
    /// See [`RecordedMembers::is_job`].
    pub(super) is_job: bool,
}

/// More lost members than this are no mishap: anybody may write there.
const MOST_LOST: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Record {
    /// When the environment was made, Unix time: another one may have its id by now.
    created_seconds: Option<i64>,
    /// Absent: the machine was started again since.
    start_time_ticks: Option<u64>,
    is_job: bool,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<FileMember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    simulated: Option<bool>,
    /// As `devices.json` has them.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    devices: Value,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    bare: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    known: Vec<FileKnown>,
}

#[derive(Serialize, Deserialize)]
struct FileMember {
    eid: String,
    /// As `envs.json` has it.
    creation: String,
    #[serde(flatten)]
    process: ProcessId,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    job: bool,
}

impl RecordedMembers {
    /// Whether a member is a *job*: a process that was started in the environment and that a command wrote down. Living, it
    /// keeps the environment for genv 1.x; here, only while it works on a device (see docs/files.md).
    #[must_use]
    pub fn is_job(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> bool {
        let record = self.members.get(&(eid.to_owned(), pid));
        record.is_some_and(|it| it.is_job && it.created_seconds == whole(created_timestamp_seconds))
    }

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
        self.members.is_empty()
            && self.queue.is_empty()
            && self.lost.is_empty()
            && self.simulated.is_none()
            && self.copy.is_empty()
            && self.bare.is_empty()
            && self.known.is_empty()
    }

    /// Takes note of what `envs.json` does not have and should, if it lost some (`damaged`); forgets what it has again.
    pub(super) fn find_lost(&mut self, environments: &[EnvironmentState], damaged: bool) {
        let known: HashSet<&str> = environments.iter().map(|it| it.eid.as_str()).collect();
        self.lost
            .retain(|member| !known.contains(member.eid.as_str()));
        let before: HashSet<(String, u32)> = self
            .lost
            .iter()
            .map(|it| (it.eid.clone(), it.process.pid))
            .collect();
        let missing = self.members.iter().filter(|((eid, pid), _)| {
            damaged && !known.contains(eid.as_str()) && !before.contains(&(eid.clone(), *pid))
        });
        self.lost.extend(missing.filter_map(|((eid, pid), record)| {
            Some(LostMember {
                eid: eid.clone(),
                created_seconds: record.created_seconds,
                process: ProcessId {
                    pid: *pid,
                    start_time_ticks: record.start_time_ticks?,
                },
                is_job: record.is_job,
            })
        }));
        self.lost
            .sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        self.lost.truncate(MOST_LOST);
    }

    /// Gives environments without a member, which no program writes, those that are recorded of them.
    pub(super) fn fill_empty(&self, environments: &mut [EnvironmentState]) {
        let is_empty = |it: &&mut EnvironmentState| it.pids.is_empty() && it.kernel_ids.is_empty();
        let empty = environments.iter_mut().filter(is_empty);
        let mut empty: HashMap<String, &mut EnvironmentState> =
            empty.map(|it| (it.eid.clone(), it)).collect();
        if empty.is_empty() {
            return;
        }
        for ((eid, pid), record) in &self.members {
            let Some(environment) = empty.get_mut(eid) else {
                continue;
            };
            let created = whole(environment.created_timestamp_seconds);
            if created.is_none() || created == record.created_seconds {
                environment.pids.push(*pid);
            }
        }
        for environment in empty.into_values() {
            environment.pids.sort_unstable();
        }
    }

    /// Records a member.
    pub(super) fn record(
        &mut self,
        eid: &str,
        created_timestamp_seconds: Option<f64>,
        process: ProcessId,
        is_job: bool,
    ) {
        let record = Record {
            created_seconds: whole(created_timestamp_seconds),
            start_time_ticks: Some(process.start_time_ticks),
            is_job,
        };
        self.members.insert((eid.to_owned(), process.pid), record);
    }

    /// The file. The copy of the devices is left out where it would be larger than what is read.
    pub(super) fn write(&self, boot_id: &str, times: &Times) -> Vec<u8> {
        let bytes = self.write_with(&self.copy, boot_id, times);
        if bytes.len() as u64 <= MOST_FILE_BYTES {
            bytes
        } else {
            self.write_with(&[], boot_id, times)
        }
    }

    fn write_with(&self, copy: &[DeviceState], boot_id: &str, times: &Times) -> Vec<u8> {
        #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
        let member = |eid: &str, created: Option<i64>, process, job| FileMember {
            eid: eid.to_owned(),
            creation: times.text(created.map(|seconds| seconds as f64)),
            process,
            job,
        };
        let members = self.members.iter().filter_map(|((eid, pid), record)| {
            let start_time_ticks = record.start_time_ticks?;
            Some(member(
                eid,
                record.created_seconds,
                ProcessId {
                    pid: *pid,
                    start_time_ticks,
                },
                record.is_job,
            ))
        });
        let mut members: Vec<FileMember> = members.collect();
        members.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        let lost = self.lost.iter();
        let lost = lost.map(|it| member(&it.eid, it.created_seconds, it.process, it.is_job));
        shape::json(&File {
            version: VERSION,
            boot_id: boot_id.to_owned(),
            members,
            queue: self.queue.clone(),
            lost: lost.collect(),
            simulated: self.simulated,
            devices: DevicesDocument::new(copy, times).list(),
            bare: self.bare.clone(),
            known: self.known.values().map(|it| it.to_file(times)).collect(),
        })
    }
}

pub(super) const FORMAT: Format<RecordedMembers> = Format {
    name: MEMBERS_FILE,
    parse: parse_in_this_boot,
    salvage: |content, time_zone| salvage(content, &boot_id(), time_zone),
};

/// What is whole in a damaged file, if it is of this boot.
fn salvage(content: &[u8], boot_id: &str, time_zone: &TimeZone) -> Document<RecordedMembers> {
    let boot = Value::from(boot_id).to_string();
    let same_boot = !boot_id.is_empty() && String::from_utf8_lossy(content).contains(&boot);
    let process = ["pid", "start_time_ticks"];
    let records = if same_boot {
        salvage::records(content, &process)
    } else {
        Vec::new()
    };
    let (mut members, mut queue) = (Vec::new(), Vec::new());
    for record in records {
        if let Ok(member) = FileMember::deserialize(&record) {
            members.push(member);
        } else if let Ok(waiting) = ProcessId::deserialize(&record) {
            queue.push(waiting);
        }
    }
    let file = File {
        version: VERSION,
        boot_id: boot_id.to_owned(),
        members,
        queue,
        lost: Vec::new(),
        simulated: None,
        devices: json!(salvage::records(content, &document::DEVICE_KEYS)),
        bare: BTreeSet::new(),
        known: Vec::new(),
    };
    Document {
        incomplete: true,
        ..document(file, true, time_zone)
    }
}

/// Reads the file, as the machine is running now.
fn parse_in_this_boot(
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
    Ok(document(file, same_boot, time_zone))
}

fn document(file: File, same_boot: bool, time_zone: &TimeZone) -> Document<RecordedMembers> {
    let copy = document::devices_of(&json!({ "devices": file.devices }), time_zone);
    let created = |member: &FileMember| parse_local_time(&member.creation, time_zone).ok();
    let members = file.members.into_iter().map(|member| {
        let record = Record {
            created_seconds: created(&member),
            start_time_ticks: same_boot.then_some(member.process.start_time_ticks),
            is_job: member.job,
        };
        ((member.eid, member.process.pid), record)
    });
    let lost = file
        .lost
        .into_iter()
        .filter(|_| same_boot)
        .map(|member| LostMember {
            created_seconds: created(&member),
            eid: member.eid,
            process: member.process,
            is_job: member.job,
        });
    let known = file
        .known
        .into_iter()
        .filter(|_| same_boot)
        .map(|it| Known::of_file(it, time_zone))
        .map(|it| (it.environment.eid.clone(), it));
    let recorded = RecordedMembers {
        members: members.collect(),
        queue: if same_boot { file.queue } else { Vec::new() },
        lost: lost.collect(),
        simulated: file.simulated,
        copy: copy.unwrap_or_default().entries,
        bare: file.bare,
        known: known.collect(),
    };
    Document {
        entries: vec![recorded],
        ..Document::default()
    }
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
