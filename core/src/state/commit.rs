//! The three files of the state as one: read under the lock, and written so that all change or none.
//!
//! `genv-members.json` is replaced first, then `envs.json`, then `devices.json`. Whoever is killed in between leaves
//! what the next command repairs: a recorded member that `envs.json` lacks is dropped, as is an attachment of an
//! environment that ended.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

use super::atomic::{Disk, Prepared};
use super::document::{self, Document, NotADocument};
use super::editable::EditableState;
use super::file::{self, MOST_FILE_BYTES, ReadError, Version, io_error, write_remedy};
use super::liveness::is_member;
use super::members::{self, NEVER_TICKS, ProcessId, Recorded, RecordedMembers, boot_id};
use super::shape::{self, Times};
use super::store::StoreError;
use super::{
    DEVICES_FILE, DeviceState, ENVIRONMENTS_FILE, EnvironmentState, MEMBERS_FILE, State,
    StateError, corrupt,
};
use crate::model::machine_time_zone;
use crate::proc::ProcessTable;

/// In the order in which they are written.
pub(super) const FILES: [&str; 3] = [MEMBERS_FILE, ENVIRONMENTS_FILE, DEVICES_FILE];

/// The state as the files have it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) state: State,
    boot_id: String,
    /// What each of [`FILES`] holds, and whether writing it again loses damaged entries.
    contents: [Option<Content>; 3],
}

#[derive(Debug)]
struct Content {
    bytes: Vec<u8>,
    damaged: bool,
}

struct ReadDocument<T> {
    document: Document<T>,
    content: Option<Content>,
    version: Option<Version>,
}

impl Loaded {
    /// Reads the files; sets aside those that are damaged as a whole.
    pub(super) fn read(files: &mut Files<'_>) -> Result<Self, StoreError> {
        let zone = machine_time_zone();
        let environments: ReadDocument<EnvironmentState> = files
            .read(ENVIRONMENTS_FILE, |content| {
                document::environments(content, &zone)
            })?;
        let devices: ReadDocument<DeviceState> =
            files.read(DEVICES_FILE, |content| document::devices(content, &zone))?;
        let recorded: ReadDocument<RecordedMembers> = files.read(MEMBERS_FILE, |content| {
            members::parse_in_this_boot(content, &zone)
        })?;
        let mut warnings = environments.document.warnings;
        warnings.extend(devices.document.warnings);
        Ok(Self {
            state: State {
                installed: true,
                written_timestamp_seconds: environments.version.map(Version::modified_seconds),
                environments: environments.document.entries,
                devices: devices.document.entries,
                recorded: recorded
                    .document
                    .entries
                    .into_iter()
                    .next()
                    .unwrap_or_default(),
                kernels_not_found: BTreeMap::new(),
                incomplete: environments.document.incomplete,
                warnings,
            },
            boot_id: boot_id(),
            contents: [recorded.content, environments.content, devices.content],
        })
    }

    /// The state to be changed, without those in the queue whose pids others have by now.
    pub(super) fn edit(&self, table: &ProcessTable, now_seconds: f64) -> EditableState {
        let waiting = self.state.recorded.queue.iter().filter(|waiting| {
            let process = table.lineage.get(&waiting.pid);
            process.map_or_else(
                || table.hidden.contains(&waiting.pid),
                |process| process.start_time_ticks == waiting.start_time_ticks,
            )
        });
        EditableState {
            environments: self.state.environments.clone(),
            devices: self.state.devices.clone(),
            queue: waiting.map(|waiting| waiting.pid).collect(),
            devices_known: false,
            now_seconds,
        }
    }
}

/// What is recorded of the members of a changed state.
pub(super) fn record(
    loaded: &mut Loaded,
    editable: &EditableState,
    table: &ProcessTable,
) -> RecordedMembers {
    let before = std::mem::take(&mut loaded.state.recorded);
    let written = loaded.state.written_timestamp_seconds;
    let mut members = HashMap::new();
    for environment in &loaded.state.environments {
        let eid = environment.eid.as_str();
        members.extend(
            environment
                .pids
                .iter()
                .map(|pid| ((eid, *pid), environment)),
        );
    }
    let mut recorded = RecordedMembers::default();
    for environment in &editable.environments {
        let (eid, created) = (
            environment.eid.as_str(),
            environment.created_timestamp_seconds,
        );
        for &pid in &environment.pids {
            let process = table.lineage.get(&pid);
            let start_time_ticks = match members.get(&(eid, pid)) {
                // Whoever joins is who has the pid now.
                None => process.map(|process| process.start_time_ticks),
                Some(was) => {
                    let known = before.of(eid, was.created_timestamp_seconds, pid);
                    match (known, process) {
                        (Recorded::Started(ticks), _) => Some(ticks),
                        (_, Some(process)) if is_member(known, process, written) => {
                            Some(process.start_time_ticks)
                        }
                        // It was left in although it ended. `envs.json` is younger than its successor from now on.
                        (_, Some(_)) => Some(NEVER_TICKS),
                        (_, None) => None,
                    }
                }
            };
            if let Some(start_time_ticks) = start_time_ticks {
                let process = ProcessId {
                    pid,
                    start_time_ticks,
                };
                recorded.record(eid, created, process);
            }
        }
    }
    // Whoever waits is who has the pid now; who may not be seen was known before.
    let waiting = editable.queue.iter().filter_map(|&pid| {
        let known = || before.queue.iter().find(|waiting| waiting.pid == pid);
        let process = table.lineage.get(&pid).map(|process| ProcessId {
            pid,
            start_time_ticks: process.start_time_ticks,
        });
        process.or_else(|| known().copied())
    });
    recorded.queue = waiting.collect();
    recorded
}

/// What users do when a file is lost.
fn after_loss(name: &str) -> &'static str {
    match name {
        ENVIRONMENTS_FILE => "all environments have ended, 'genv activate' starts a new one",
        DEVICES_FILE => "nobody is attached any more, 'genv attach' attaches again",
        _ => "genv fills it again, and there is nothing to do",
    }
}

/// Where the files are, and who is told.
pub(super) struct Files<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) directory: BorrowedFd<'a>,
    pub(super) path: &'a Path,
    pub(super) notices: &'a mut Vec<String>,
}

impl Files<'_> {
    fn read<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&[u8]) -> Result<Document<T>, NotADocument>,
    ) -> Result<ReadDocument<T>, StoreError> {
        let none = || ReadDocument {
            document: Document::default(),
            content: None,
            version: None,
        };
        let found = file::find(self.directory, name).and_then(|found| {
            let read = found.map(|_| file::read(self.directory, name));
            read.transpose()
        });
        let why = match found {
            Ok(None) => return Ok(none()),
            Ok(Some((version, bytes))) => match parse(&bytes) {
                Ok(document) => {
                    let damaged = !document.warnings.is_empty();
                    return Ok(ReadDocument {
                        document,
                        content: Some(Content { bytes, damaged }),
                        version: Some(version),
                    });
                }
                Err(error) => error.to_string(),
            },
            // Whoever writes without the lock does not know how to write at all.
            Err(ReadError::Torn(why) | ReadError::Damaged { why, .. }) => why,
            Err(ReadError::Unreadable { why, remedy }) => {
                let file = self.path.join(name);
                return Err(StoreError::Read(StateError {
                    message: format!("cannot read {}: {why}: {remedy}", file.display()),
                }));
            }
        };
        let aside = corrupt::move_aside(self.disk, self.directory, name)
            .map_err(|errno| self.failed(name, errno))?;
        self.notices.push(format!(
            "{} is damaged: {why}. It was moved to {aside}, and a new one begins: {}",
            self.path.join(name).display(),
            after_loss(name)
        ));
        Ok(none())
    }

    /// Writes the files that change: first all of them beside the old ones, then each in its place.
    pub(super) fn write(
        &mut self,
        loaded: &Loaded,
        editable: &EditableState,
        recorded: &RecordedMembers,
        times: &Times,
    ) -> Result<(), StoreError> {
        let new = [
            (!recorded.is_empty(), recorded.write(&loaded.boot_id, times)),
            (
                !editable.environments.is_empty(),
                shape::environments(&editable.environments, times),
            ),
            (
                editable.devices_known || !editable.devices.is_empty(),
                shape::devices(&editable.devices, times),
            ),
        ];
        let mut prepared = Vec::new();
        for ((name, old), (needed, bytes)) in FILES.iter().zip(&loaded.contents).zip(&new) {
            let changes = old.as_ref().map_or(*needed, |old| old.bytes != *bytes);
            if !changes {
                continue;
            }
            // Nobody could read it, and all that it tells would be lost.
            if bytes.len() as u64 > MOST_FILE_BYTES {
                return Err(StoreError::Write {
                    path: self.path.join(name),
                    why: format!(
                        "it would have {} bytes, and no more than {MOST_FILE_BYTES} are read",
                        bytes.len()
                    ),
                    remedy: "end environments that nobody needs, or move the file away, and genv makes a new one",
                });
            }
            if let Some(old) = old.as_ref().filter(|old| old.damaged) {
                let copy = corrupt::copy_aside(self.disk, self.directory, name, &old.bytes);
                let copy = copy.map_err(|errno| self.failed(name, errno))?;
                self.notices.push(format!(
                    "{} has damaged entries: what it was is kept as {copy}",
                    self.path.join(name).display()
                ));
            }
            let file = Prepared::new(self.disk, self.directory, name, bytes);
            prepared.push((*name, file.map_err(|errno| self.failed(name, errno))?));
        }
        for (name, file) in prepared {
            file.commit().map_err(|errno| self.failed(name, errno))?;
        }
        Ok(())
    }

    fn failed(&self, name: &str, errno: Errno) -> StoreError {
        StoreError::Write {
            path: self.path.join(name),
            why: io_error(errno),
            remedy: write_remedy(errno),
        }
    }
}
