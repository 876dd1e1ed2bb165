//! The files of earlier versions: `envs.json` and `devices.json` of genv 1.x, and `genv-members.json` beside them. They
//! count until the first change, which writes `state.json` and retires them.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::path::Path;

use jiff::tz::TimeZone;
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;

use super::corrupt::free_name;
use super::data::{AttachmentState, DeviceState, EnvironmentState, MemberState, ProcessId, Started};
use super::file::{self, ReadError};
use super::genv1::{self, Listed};
use super::record::{Records, is_time};
use super::shape::{self, Times};
use super::{StateError, surplus};
use crate::files::{Disk, Prepared};
use crate::model::{initial_pid_namespace, parse_local_time};

/// The hooks of shells of earlier versions watch this file.
const ENVIRONMENTS_FILE: &str = "envs.json";
const DEVICES_FILE: &str = "devices.json";
const MEMBERS_FILE: &str = "genv-members.json";

/// All of them.
pub(super) const FILES: [&str; 3] = [ENVIRONMENTS_FILE, DEVICES_FILE, MEMBERS_FILE];

/// The environment that holds all devices in the files of genv 1.x after the import, so that a genv 1.x gives out none.
const MOVED: &str = "moved-to-state.json";

/// What the earlier files have.
pub(super) struct Imported {
    /// When `envs.json` was last written, Unix time.
    pub(super) written_timestamp_seconds: Option<f64>,
    pub(super) records: Records,
}

/// Reads the earlier files; nothing if there are none, or if an import has retired them.
///
/// # Errors
/// A file of genv 1.x cannot be read, or is damaged.
pub(super) fn read(
    directory: BorrowedFd<'_>,
    path: &Path,
    boot_id: &str,
    zone: &TimeZone,
) -> Result<Option<Imported>, StateError> {
    let folder = Folder { directory, path, zone };
    let environments = folder.read(ENVIRONMENTS_FILE, genv1::environments)?;
    let devices = folder.read(DEVICES_FILE, genv1::devices)?;
    if environments.is_none() && devices.is_none() {
        return Ok(None);
    }
    let (written, environments) = environments.unzip();
    let (environments, devices) = (environments.unwrap_or_default(), devices.unwrap_or_default().1);
    let mut records = Records {
        environments: environments.records,
        devices: devices.records,
        warnings: environments.warnings.into_iter().chain(devices.warnings).collect(),
        ..Records::default()
    };
    let has_moved = records.environments.iter().any(|it| it.eid == MOVED);
    records.environments.retain(|it| it.eid != MOVED);
    if has_moved && records.environments.is_empty() {
        return Ok(None);
    }
    // Commands go on without this file: members count by their pids alone then, as with genv 1.x.
    if let Ok(Some((_, content))) = folder.content(MEMBERS_FILE)
        && let Ok(members) = genv1::parse(&content)
        && let Ok(members) = MembersFile::deserialize(members)
        && members.version == 1
    {
        members.give_facts(&mut records, boot_id, zone);
    }
    for environment in &mut records.environments {
        forget_impossible(&mut environment.created_timestamp_seconds);
        forget_impossible(&mut environment.context_seconds);
    }
    records.warnings.extend(surplus::leave_out(&mut records.environments, directory));
    let listed: HashSet<&str> = records.environments.iter().map(|it| it.eid.as_str()).collect();
    for device in &mut records.devices {
        device.attachments.retain(|it| listed.contains(it.eid.as_str()));
        device.attachments.iter_mut().for_each(|it| forget_impossible(&mut it.attached_timestamp_seconds));
    }
    Ok(Some(Imported { written_timestamp_seconds: written, records }))
}

/// The environments that a genv 1.x made in its `envs.json` after the import; none if the file cannot be read.
pub(super) fn made_since(directory: BorrowedFd<'_>, path: &Path, zone: &TimeZone) -> Vec<EnvironmentState> {
    let read = Folder { directory, path, zone }.read(ENVIRONMENTS_FILE, genv1::environments);
    let environments = read.ok().flatten().map(|(_, listed)| listed.records);
    environments.unwrap_or_default().into_iter().filter(|it| it.eid != MOVED).collect()
}

/// Forgets a time that `state.json` cannot have.
fn forget_impossible(seconds: &mut Option<f64>) {
    *seconds = seconds.filter(|it| is_time(Some(*it)));
}

/// The contents that replace the files of genv 1.x after the import, beside the files.
pub(super) fn prepare_retired<'a>(
    disk: &'a dyn Disk,
    directory: BorrowedFd<'a>,
    devices: &[DeviceState],
) -> Vec<Retired<'a>> {
    let times = &Times::here();
    let holder = EnvironmentState {
        eid: MOVED.to_owned(),
        username: Some("root".to_owned()),
        members: vec![MemberState::from(1)],
        ..EnvironmentState::default()
    };
    let attachment = AttachmentState { eid: MOVED.to_owned(), gpu_memory: None, attached_timestamp_seconds: None };
    let held = |it: &DeviceState| DeviceState { attachments: vec![attachment.clone()], ..it.clone() };
    let devices: Vec<DeviceState> = devices.iter().map(held).collect();
    let contents = [
        (DEVICES_FILE, shape::json(&shape::DevicesDocument::new(&devices, times))),
        (ENVIRONMENTS_FILE, shape::json(&shape::EnvironmentsDocument::new(&[holder], times))),
    ];
    // Without room for them the import goes on: they only stop a genv 1.x.
    let prepared = contents.into_iter().filter_map(|(name, content)| {
        let file = Prepared::new(disk, directory, name, &content).ok()?;
        Some(Retired { disk, directory, name, file: Some(file) })
    });
    let members = Retired { disk, directory, name: MEMBERS_FILE, file: None };
    prepared.chain([members]).collect()
}

/// An earlier file that the import retires.
pub(super) struct Retired<'a> {
    disk: &'a dyn Disk,
    directory: BorrowedFd<'a>,
    name: &'a str,
    /// Its new content.
    file: Option<Prepared<'a>>,
}

impl Retired<'_> {
    /// Keeps the file as `NAME.imported`, or with a number if that is taken, and puts the new content in its place.
    pub(super) fn commit(self) {
        let Self { disk, directory, name, file } = self;
        let kept = free_name(directory, &format!("{name}.imported"));
        let kept = kept.and_then(|kept| disk.rename(directory, name, &kept));
        if let (Ok(()) | Err(Errno::NOENT), Some(file)) = (kept, file) {
            // The state is written, and counts without this.
            let _ = file.commit();
        }
    }
}

struct Folder<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    zone: &'a TimeZone,
}

impl Folder<'_> {
    /// The time and the records of a file, if there is the file.
    fn read<T>(
        &self,
        name: &str,
        records: fn(&Value, &TimeZone) -> Result<Listed<T>, String>,
    ) -> Result<Option<(f64, Listed<T>)>, StateError> {
        let failed = |why: String| StateError {
            message: format!(
                "cannot import {}: {why}: repair it, or move it away to go on without it",
                self.path.join(name).display()
            ),
        };
        let content = self.content(name).map_err(|error| {
            failed(match error {
                ReadError::Torn(why) | ReadError::Damaged { why, .. } | ReadError::Unreadable { why, .. } => why,
                // No name is looked up here: all commands may wait for this one.
                ReadError::Leased(uid) => file::leased(&format!("uid:{uid}")),
            })
        })?;
        let Some((written, content)) = content else {
            return Ok(None);
        };
        let mut listed = genv1::parse(&content).and_then(|root| records(&root, self.zone)).map_err(failed)?;
        match listed.left_out {
            Some(left_out) => Err(failed(left_out)),
            None => {
                listed.warnings.iter_mut().for_each(|it| it.insert_str(0, &format!("{name}: ")));
                Ok(Some((written, listed)))
            }
        }
    }

    fn content(&self, name: &str) -> Result<Option<(f64, Vec<u8>)>, ReadError> {
        if file::find(self.directory, name)?.is_none() {
            return Ok(None);
        }
        let (version, content) = file::read(self.directory, name)?;
        Ok(Some((version.modified_seconds(), content)))
    }
}

/// `genv-members.json`: facts that genv 1.x does not record.
#[derive(Deserialize)]
struct MembersFile {
    version: u32,
    boot_id: String,
    members: Vec<FileMember>,
    #[serde(default)]
    queue: Vec<ProcessId>,
    #[serde(default)]
    simulated: Option<bool>,
    #[serde(default)]
    known: Vec<FileKnown>,
}

#[derive(Deserialize)]
struct FileMember {
    eid: String,
    creation: String,
    #[serde(flatten)]
    process: ProcessId,
    #[serde(default = "initial_pid_namespace")]
    pid_namespace: u64,
}

#[derive(Deserialize)]
struct FileKnown {
    eid: String,
    creation: String,
    #[serde(default)]
    context_seconds: Option<f64>,
}

impl MembersFile {
    fn give_facts(self, records: &mut Records, boot_id: &str, zone: &TimeZone) {
        records.simulated = self.simulated;
        let same_boot = self.boot_id == boot_id;
        if same_boot {
            records.queue = self.queue;
        }
        let created = |creation: &str| parse_local_time(creation, zone).ok();
        let members: HashMap<(&str, u32), &FileMember> =
            self.members.iter().map(|it| ((it.eid.as_str(), it.process.pid), it)).collect();
        let known: HashMap<&str, &FileKnown> = self.known.iter().map(|it| (it.eid.as_str(), it)).collect();
        for EnvironmentState { eid, created_timestamp_seconds, members: listed, context_seconds, .. } in
            &mut records.environments
        {
            #[expect(clippy::cast_possible_truncation, reason = "times of files are those of the years to 9999")]
            let began = created_timestamp_seconds.map(|it| it.floor() as i64);
            for member in listed {
                let fact = members.get(&(eid.as_str(), member.pid));
                let Some(fact) = fact.filter(|it| created(&it.creation) == began) else {
                    continue;
                };
                member.started =
                    if same_boot { Started::At(fact.process.start_time_ticks) } else { Started::BeforeThisBoot };
                member.pid_namespace = Some(fact.pid_namespace);
            }
            let known = known.get(eid.as_str()).filter(|it| same_boot && created(&it.creation) == began);
            *context_seconds = known.and_then(|it| it.context_seconds);
        }
    }
}

#[cfg(test)]
mod tests;
