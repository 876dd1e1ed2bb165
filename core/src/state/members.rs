//! `genv-members.json`: what genv 1.x does not know of the members of environments.
//!
//! A pid alone is ambiguous: another process may have the pid by now, and another pid namespace has its own process
//! with the pid. This file, which only this project writes, has the start times and namespaces of members, and the
//! queue. It adds to `envs.json` and never contradicts it: a record without a counterpart in `envs.json` is dropped
//! here, unless a damaged file lost the counterpart.
//!
//! Every user may write this file. Confirmations by an environment's user replace its facts, and the file alone ends no
//! member ([`super::liveness`]).

use std::collections::{BTreeSet, HashMap, HashSet};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::document::{self, Document, Format, NotADocument, Reading};
use super::file::MOST_MEMBERS_BYTES;
use super::known::{FileKnown, Known, KnownEnvironments};
use super::shape::{self, DevicesDocument, Times};
use super::strangers::Strangers;
use super::{DeviceState, EnvironmentState, MEMBERS_FILE, salvage, value};
use crate::model::{Joined, initial_pid_namespace, is_initial_pid_namespace, parse_local_time};

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

/// An environment and the pid of a member, in the member's pid namespace.
pub(super) type Place = (String, u32);

/// What is recorded of members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedMembers {
    members: HashMap<Place, Record>,
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
    /// Listed processes that are no members, whatever the records claim.
    pub(super) strangers: Strangers,
}

/// A member of an environment of which nothing else is known any more. While it lives the environment keeps its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostMember {
    pub(super) eid: String,
    /// When the environment was made, Unix time.
    pub(super) created_seconds: Option<i64>,
    pub(super) process: ProcessId,
    /// The inode of its pid namespace.
    pub(super) pid_namespace: u64,
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
    /// The inode of its pid namespace.
    pid_namespace: u64,
    is_job: bool,
    /// Whether the user of the environment confirmed this record.
    is_confirmed: bool,
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
    #[serde(default = "initial_pid_namespace", skip_serializing_if = "is_initial_pid_namespace")]
    pid_namespace: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    job: bool,
}

impl RecordedMembers {
    /// Whether a member is a *job*: a process that was started in the environment and that a command wrote down. Living, it
    /// keeps the environment for genv 1.x; here, only while it works on a device (see docs/files.md).
    #[must_use]
    pub fn is_job(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> bool {
        let record = self.record_of(eid, created_timestamp_seconds, pid);
        record.is_some_and(|it| it.is_job && it.is_confirmed)
    }

    fn record_of(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Option<&Record> {
        if self.members.is_empty() {
            return None;
        }
        let record = self.members.get(&(eid.to_owned(), pid));
        record.filter(|it| it.created_seconds == whole(created_timestamp_seconds))
    }

    /// The inode of a member's pid namespace; `None` if genv 1.x wrote the member.
    pub(super) fn pid_namespace(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Option<u64> {
        let record = self.record_of(eid, created_timestamp_seconds, pid);
        record.map(|it| it.pid_namespace)
    }

    /// Whether the user of an environment confirmed the record of a member.
    pub(super) fn is_confirmed(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> bool {
        let record = self.record_of(eid, created_timestamp_seconds, pid);
        record.is_some_and(|it| it.is_confirmed)
    }

    /// The facts to be confirmed for a member.
    pub(super) fn joined(&self, eid: &str, pid: u32) -> Option<Joined> {
        let record = self.members.get(&(eid.to_owned(), pid))?;
        Some(Joined {
            start_time_ticks: record.start_time_ticks?,
            pid_namespace: record.pid_namespace,
            is_job: record.is_job,
        })
    }

    /// Replaces the file's record of a member with the confirmation of the environment's user.
    pub(super) fn confirm(&mut self, environment: &EnvironmentState, pid: u32, joined: Joined) {
        let record = Record {
            created_seconds: whole(environment.created_timestamp_seconds),
            start_time_ticks: Some(joined.start_time_ticks),
            pid_namespace: joined.pid_namespace,
            is_job: joined.is_job,
            is_confirmed: true,
        };
        self.members.insert((environment.eid.clone(), pid), record);
    }

    /// The records as another program reads them, in this boot or a later one, without any confirmation.
    #[cfg(test)]
    pub(super) fn unconfirmed(mut self, is_of_this_boot: bool) -> Self {
        for record in self.members.values_mut() {
            record.is_confirmed = false;
            record.start_time_ticks = record.start_time_ticks.filter(|_| is_of_this_boot);
        }
        self
    }

    /// What is recorded of a member of an environment that was made at this time.
    #[must_use]
    pub fn of(&self, eid: &str, created_timestamp_seconds: Option<f64>, pid: u32) -> Recorded {
        match self.record_of(eid, created_timestamp_seconds, pid) {
            Some(record) => record.start_time_ticks.map_or(Recorded::BeforeThisBoot, Recorded::Started),
            None => Recorded::Unknown,
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
        self.lost.retain(|member| !known.contains(member.eid.as_str()));
        let before: HashSet<(String, u32)> = self.lost.iter().map(|it| (it.eid.clone(), it.process.pid)).collect();
        let missing = self.members.iter().filter(|((eid, pid), _)| {
            damaged && !known.contains(eid.as_str()) && !before.contains(&(eid.clone(), *pid))
        });
        self.lost.extend(missing.filter_map(|((eid, pid), record)| {
            Some(LostMember {
                eid: eid.clone(),
                created_seconds: record.created_seconds,
                process: ProcessId { pid: *pid, start_time_ticks: record.start_time_ticks? },
                pid_namespace: record.pid_namespace,
                is_job: record.is_job,
            })
        }));
        self.lost.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        self.lost.truncate(MOST_LOST);
    }

    /// Gives environments without a member, which no program writes, those that are recorded of them.
    pub(super) fn fill_empty(&self, environments: &mut [EnvironmentState]) {
        let is_empty = |it: &&mut EnvironmentState| it.pids.is_empty() && it.kernel_ids.is_empty();
        let empty = environments.iter_mut().filter(is_empty);
        let mut empty: HashMap<String, &mut EnvironmentState> = empty.map(|it| (it.eid.clone(), it)).collect();
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

    /// Records a member with this program's own facts.
    pub(super) fn record(
        &mut self,
        eid: &str,
        created_timestamp_seconds: Option<f64>,
        process: ProcessId,
        pid_namespace: u64,
        is_job: bool,
    ) {
        let record = Record {
            created_seconds: whole(created_timestamp_seconds),
            start_time_ticks: Some(process.start_time_ticks),
            pid_namespace,
            is_job,
            is_confirmed: true,
        };
        let place = (eid.to_owned(), process.pid);
        self.strangers.remove(&place);
        self.members.insert(place, record);
    }

    /// The content of the file. A file beyond the size limit loses the copy of the devices first, then the records of
    /// members, which then count by their pids alone, and then the known environments.
    pub(super) fn write(&self, boot_id: &str, times: &Times) -> Vec<u8> {
        let mut part = self.clone();
        for shrink in [
            |_: &mut Self| (),
            |part: &mut Self| part.copy.clear(),
            |part: &mut Self| part.members.clear(),
            |part: &mut Self| part.known.clear(),
        ] {
            shrink(&mut part);
            let bytes = part.write_all(boot_id, times);
            if bytes.len() as u64 <= MOST_MEMBERS_BYTES {
                return bytes;
            }
        }
        part.write_all(boot_id, times)
    }

    fn write_all(&self, boot_id: &str, times: &Times) -> Vec<u8> {
        #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
        let member = |eid: &str, created: Option<i64>, process, pid_namespace, job| FileMember {
            eid: eid.to_owned(),
            creation: times.text(created.map(|seconds| seconds as f64)),
            process,
            pid_namespace,
            job,
        };
        let members = self.members.iter().filter_map(|((eid, pid), record)| {
            let start_time_ticks = record.start_time_ticks?;
            Some(member(
                eid,
                record.created_seconds,
                ProcessId { pid: *pid, start_time_ticks },
                record.pid_namespace,
                record.is_job,
            ))
        });
        let mut members: Vec<FileMember> = members.collect();
        members.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        let lost = self.lost.iter();
        let lost = lost.map(|it| {
            let (created, process) = (it.created_seconds, it.process);
            member(&it.eid, created, process, it.pid_namespace, it.is_job)
        });
        shape::json(&File {
            version: VERSION,
            boot_id: boot_id.to_owned(),
            members,
            queue: self.queue.clone(),
            lost: lost.collect(),
            simulated: self.simulated,
            devices: DevicesDocument::new(&self.copy, times).list(),
            bare: self.bare.clone(),
            known: self.known.values().map(|it| it.to_file(times)).collect(),
        })
    }
}

pub(super) const FORMAT: Format<RecordedMembers> = Format {
    name: MEMBERS_FILE,
    parse: parse_in_this_boot,
    salvage: |content, reading| salvage(content, &boot_id(), reading.time_zone),
};

/// What is whole in a damaged file, if it is of this boot.
fn salvage(content: &[u8], boot_id: &str, time_zone: &TimeZone) -> Document<RecordedMembers> {
    let boot = Value::from(boot_id).to_string();
    let same_boot = !boot_id.is_empty() && String::from_utf8_lossy(content).contains(&boot);
    let process = ["pid", "start_time_ticks"];
    let records = if same_boot { salvage::records(content, &process) } else { Vec::new() };
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
    Document { incomplete: true, ..document(file, true, time_zone) }
}

/// Reads the file, as the machine is running now.
fn parse_in_this_boot(content: &[u8], reading: &Reading<'_>) -> Result<Document<RecordedMembers>, NotADocument> {
    parse(content, &boot_id(), reading.time_zone)
}

/// What the kernel calls the time since the machine was started (random(4)); empty if it does not tell.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Reads the file.
fn parse(content: &[u8], boot_id: &str, time_zone: &TimeZone) -> Result<Document<RecordedMembers>, NotADocument> {
    if content.trim_ascii().is_empty() {
        return Err(NotADocument::Empty);
    }
    let file: File = value::parse_into(content).map_err(|error| NotADocument::Unknown(error.to_string()))?;
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
            pid_namespace: member.pid_namespace,
            is_job: member.job,
            is_confirmed: false,
        };
        ((member.eid, member.process.pid), record)
    });
    let lost = file.lost.into_iter().filter(|_| same_boot).map(|member| LostMember {
        created_seconds: created(&member),
        eid: member.eid,
        process: member.process,
        pid_namespace: member.pid_namespace,
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
        strangers: Strangers::new(),
    };
    Document { entries: vec![recorded], ..Document::default() }
}

#[expect(clippy::cast_possible_truncation, reason = "times of files are whole seconds of the years to 9999")]
fn whole(timestamp_seconds: Option<f64>) -> Option<i64> {
    timestamp_seconds.map(|seconds| seconds.floor() as i64)
}

#[cfg(test)]
mod tests;
