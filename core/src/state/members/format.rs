//! The format of `genv-members.json`: write, parse, and salvage of a damaged file.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{MemberRecord, MembersFile, OtherRecords};
use crate::model::{initial_pid_namespace, is_initial_pid_namespace, parse_local_time};
use crate::proc::INITIAL_PID_NAMESPACE;
use crate::state::data::{EnvironmentState, KnownEnvironment, KnownEnvironments, LostMember, ProcessId, Started};
use crate::state::document::{self, Document, Format, NotADocument, ReadContext};
use crate::state::file::MOST_MEMBERS_BYTES;
use crate::state::known::FileKnown;
use crate::state::shape::{self, DevicesDocument, Times};
use crate::state::{MEMBERS_FILE, salvage, value};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(expecting = "an object")]
struct MembersDocument {
    version: u32,
    boot_id: String,
    members: Vec<FileMember>,
    #[serde(default)]
    queue: Vec<ProcessId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost: Vec<FileMember>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    simulated: Option<bool>,
    /// In the form of `devices.json`.
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
    /// In the form of `envs.json`.
    creation: String,
    #[serde(flatten)]
    process: ProcessId,
    #[serde(default = "initial_pid_namespace", skip_serializing_if = "is_initial_pid_namespace")]
    pid_namespace: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    job: bool,
}

impl OtherRecords {
    /// The content of the file with these records and the members of `environments`. A file beyond the size limit loses
    /// the copy of the devices first, then the records of members, which then count by their pids alone, and then the
    /// known environments.
    pub(in crate::state) fn write(&self, environments: &[EnvironmentState], boot_id: &str, times: &Times) -> Vec<u8> {
        let without_copy = Self { copy: Vec::new(), ..self.clone() };
        let without_known = Self { known: KnownEnvironments::new(), ..without_copy.clone() };
        let shrinking = [(self, environments), (&without_copy, environments), (&without_copy, &[])];
        let written = shrinking.into_iter().map(|(part, environments)| part.write_all(environments, boot_id, times));
        let mut small = written.filter(|bytes| bytes.len() as u64 <= MOST_MEMBERS_BYTES);
        small.next().unwrap_or_else(|| without_known.write_all(&[], boot_id, times))
    }

    fn write_all(&self, environments: &[EnvironmentState], boot_id: &str, times: &Times) -> Vec<u8> {
        let member = |eid: &str, created, process, pid_namespace, job| FileMember {
            eid: eid.to_owned(),
            creation: times.text(created),
            process,
            pid_namespace,
            job,
        };
        let members = environments.iter().flat_map(|environment| {
            let created = environment.created_timestamp_seconds;
            environment.members.iter().filter_map(move |it| {
                let Started::At(start_time_ticks) = it.started else {
                    return None;
                };
                let process = ProcessId { pid: it.pid, start_time_ticks };
                let namespace = it.pid_namespace.unwrap_or(INITIAL_PID_NAMESPACE);
                Some(member(&environment.eid, created, process, namespace, it.is_job))
            })
        });
        let mut members: Vec<FileMember> = members.collect();
        members.sort_unstable_by(|a, b| (&a.eid, a.process.pid).cmp(&(&b.eid, b.process.pid)));
        #[expect(clippy::cast_precision_loss, reason = "files end with the year 9999")]
        let lost = self.lost.iter().map(|it| {
            let created = it.created_seconds.map(|seconds| seconds as f64);
            member(&it.eid, created, it.process, it.pid_namespace, it.is_job)
        });
        shape::json(&MembersDocument {
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

pub(in crate::state) const FORMAT: Format<MembersFile> = Format {
    name: MEMBERS_FILE,
    parse: parse_in_this_boot,
    salvage: |content, context| salvage(content, &boot_id(), context.time_zone),
};

/// The whole records of a damaged file from this boot.
pub(super) fn salvage(content: &[u8], boot_id: &str, time_zone: &TimeZone) -> Document<MembersFile> {
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
    let file = MembersDocument {
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

/// Reads the file for the present boot.
fn parse_in_this_boot(content: &[u8], context: &ReadContext<'_>) -> Result<Document<MembersFile>, NotADocument> {
    parse(content, &boot_id(), context.time_zone)
}

/// The kernel's id of the present boot (random(4)); empty if it cannot be read.
pub(in crate::state) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Reads the file.
pub(super) fn parse(
    content: &[u8],
    boot_id: &str,
    time_zone: &TimeZone,
) -> Result<Document<MembersFile>, NotADocument> {
    if content.trim_ascii().is_empty() {
        return Err(NotADocument::Empty);
    }
    let file: MembersDocument = value::parse_into(content).map_err(|error| NotADocument::Unknown(error.to_string()))?;
    if file.version != VERSION {
        let why = format!("version {} is not known", file.version);
        return Err(NotADocument::Unknown(why));
    }
    let same_boot = file.boot_id == boot_id;
    Ok(document(file, same_boot, time_zone))
}

fn document(file: MembersDocument, same_boot: bool, time_zone: &TimeZone) -> Document<MembersFile> {
    let copy = document::devices_of(&json!({ "devices": file.devices }), time_zone);
    let created = |member: &FileMember| parse_local_time(&member.creation, time_zone).ok();
    let members = file.members.into_iter().map(|member| {
        let record = MemberRecord {
            created_seconds: created(&member),
            started: if same_boot { Started::At(member.process.start_time_ticks) } else { Started::BeforeThisBoot },
            pid_namespace: member.pid_namespace,
            is_job: member.job,
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
        .map(|it| KnownEnvironment::of_file(it, time_zone))
        .map(|it| (it.environment.eid.clone(), it));
    let others = OtherRecords {
        queue: if same_boot { file.queue } else { Vec::new() },
        lost: lost.collect(),
        simulated: file.simulated,
        copy: copy.unwrap_or_default().entries,
        bare: file.bare,
        known: known.collect(),
    };
    Document { entries: vec![MembersFile { members: members.collect(), others }], ..Document::default() }
}
