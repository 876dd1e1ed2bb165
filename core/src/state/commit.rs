//! The state as its file has it: read under the lock, and written as a whole or not at all.
//!
//! `state.json` is replaced first, then its copy. If a command is killed in between, the copy lacks its change, which
//! matters only if the file is damaged before the next change.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::change::EditableState;
use super::data::{EnvironmentState, ProcessId, Started};
use super::failure::StoreError;
use super::file::{self, ReadError, Version};
use super::host::{COPY_FILE, STATE_FILE, State, StateError};
use super::import;
use super::queue::Waiting;
use super::record::{NoRecords, Records, boot_id};
use super::standing::Standing;
use super::waiting;
use super::{confirmed, corrupt, leases, refused};
use crate::files::{Disk, Prepared, io_error, write_remedy};
use crate::model::machine_time_zone;
use crate::proc::{INITIAL_PID_NAMESPACE, ProcessTable};
use crate::text::counted;

/// The state as the file has it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) state: State,
    boot_id: String,
    /// The content of `state.json` and of its copy; nothing of a damaged one.
    contents: [Option<Vec<u8>>; 2],
    damage: Option<Damage>,
    /// Whether the files of earlier versions are to be retired.
    retires: bool,
}

/// The damage of the file.
#[derive(Debug)]
struct Damage {
    why: String,
    /// Whether the state is that of the copy.
    is_copied: bool,
}

/// What is in place of a state file.
enum Found {
    Nothing,
    Whole(Version, Vec<u8>),
    Damaged(String),
}

impl Found {
    fn content(self) -> Option<Vec<u8>> {
        match self {
            Self::Whole(_, content) => Some(content),
            Self::Nothing | Self::Damaged(_) => None,
        }
    }
}

/// Why a missing file is damaged.
pub(super) const REMOVED: &str = "it was removed";

/// Whether the copy of the file counts where the file is missing.
pub(super) fn has_copy(directory: BorrowedFd<'_>, path: &Path, boot_id: &str) -> bool {
    let copy = find(directory, path, COPY_FILE);
    matches!(copy, Ok(Found::Whole(_, content)) if Records::parse(&content, boot_id, directory).is_ok())
}

/// The state with these records.
pub(super) fn state_of(records: Records, written_timestamp_seconds: Option<f64>, directory: BorrowedFd<'_>) -> State {
    let mut state = State {
        installed: true,
        written_timestamp_seconds,
        environments: records.environments,
        devices: records.devices,
        simulated: records.simulated,
        queued: records.queue,
        refused_requests: refused::number(directory),
        warnings: records.warnings,
        ..State::default()
    };
    confirmed::confirm_members(&mut state.environments, directory);
    state.leases = leases::find(&state.environments, directory);
    state
}

impl Loaded {
    /// Reads the file. If it is damaged or removed, its copy counts.
    pub(super) fn read(directory: BorrowedFd<'_>, path: &Path) -> Result<Self, StateError> {
        let boot_id = boot_id();
        let parse = |content: &[u8]| Records::parse(content, &boot_id, directory);
        let import = || import::read(directory, path, &boot_id, &machine_time_zone());
        let file = find(directory, path, STATE_FILE)?;
        // A copy that cannot be read does not count, and is written again.
        let copy = find(directory, path, COPY_FILE).unwrap_or_else(|error| Found::Damaged(error.message));
        let mut loaded = Self {
            state: State { installed: true, ..State::default() },
            boot_id: boot_id.clone(),
            contents: [None, None],
            damage: None,
            retires: false,
        };
        let fault = match file {
            Found::Whole(version, content) => match parse(&content) {
                Ok(records) => {
                    loaded.state = state_of(records, Some(version.modified_seconds()), directory);
                    // The copy is written last: without one, the import may have been interrupted.
                    loaded.retires = matches!(copy, Found::Nothing) && import().is_ok_and(|it| it.is_some());
                    loaded.contents = [Some(content), copy.content()];
                    return Ok(loaded);
                }
                Err(fault) => Some(fault),
            },
            Found::Damaged(why) => Some(NoRecords::Damaged(why)),
            Found::Nothing => None,
        };
        let copied = match &copy {
            Found::Whole(version, content) => Some((version.modified_seconds(), parse(content))),
            Found::Nothing | Found::Damaged(_) => None,
        };
        let is_copied = matches!(copied, Some((_, Ok(_))));
        let why = match (fault, copied) {
            (fault, Some((written, Ok(records)))) => {
                loaded.state = state_of(records, Some(written), directory);
                fault.map_or_else(|| REMOVED.to_owned(), |fault| fault.to_string())
            }
            (_, Some((_, Err(fault @ NoRecords::OtherVersion(_))))) => {
                return Err(unread(path, COPY_FILE, &fault.to_string(), file::OTHER_VERSION));
            }
            (Some(fault @ NoRecords::OtherVersion(_)), _) => {
                return Err(unread(path, STATE_FILE, &fault.to_string(), file::OTHER_VERSION));
            }
            (Some(NoRecords::Damaged(why)), _) => why,
            (None, _) => match import()? {
                Some(mut imported) => {
                    loaded.retires = true;
                    // Their programs look for devices in the files that are retired.
                    let queue = std::mem::take(&mut imported.records.queue);
                    let waiting = queue.iter().filter_map(|it| waiting::waiting(directory, it.pid));
                    imported.records.warnings.extend(waiting.map(|Waiting { pid, uid, .. }| {
                        format!(
                            "process {pid} of uid {uid} waits in the queue of an earlier genv, and gets no device any \
                             more: end it, and start its command again"
                        )
                    }));
                    loaded.state = state_of(imported.records, imported.written_timestamp_seconds, directory);
                    return Ok(loaded);
                }
                None if matches!(copy, Found::Nothing) => return Ok(loaded),
                None => REMOVED.to_owned(),
            },
        };
        loaded.state.incomplete = true;
        loaded.damage = Some(Damage { why, is_copied });
        loaded.contents[1] = copy.content();
        Ok(loaded)
    }

    /// A sentence about a damaged file.
    pub(super) fn damage(&self, path: &Path) -> Option<String> {
        let Damage { why, .. } = self.damage.as_ref()?;
        Some(format!("{} is damaged: {why}. Shown is {}", path.join(STATE_FILE).display(), self.instead()))
    }

    /// What counts in place of a damaged file.
    fn instead(&self) -> String {
        match &self.damage {
            Some(Damage { is_copied: true, .. }) => {
                format!("its copy, with {}", counted(self.state.environments.len(), "environment"))
            }
            _ => "no environment, since its copy is damaged or missing too".to_owned(),
        }
    }

    /// The editable state. Its queue has the processes of `waiting` that still have their pids.
    pub(super) fn edit(
        &self,
        table: &ProcessTable,
        waiting: &HashMap<u32, Waiting>,
        now_seconds: f64,
    ) -> EditableState {
        EditableState {
            environments: self.state.environments.clone(),
            devices: self.state.devices.clone(),
            queue: waiting::in_order(&self.state.queued, waiting, table),
            leases: self.state.leases.clone(),
            uid: geteuid().as_raw(),
            devices_known: false,
            requested: None,
            now_seconds,
        }
    }
}

fn find(directory: BorrowedFd<'_>, path: &Path, name: &str) -> Result<Found, StateError> {
    let found = match file::find(directory, name) {
        Ok(None) => return Ok(Found::Nothing),
        Ok(Some(_)) => file::read(directory, name),
        Err(error) => Err(error),
    };
    match found {
        Ok((version, content)) => Ok(Found::Whole(version, content)),
        // All programs write under the lock: a torn file is damaged.
        Err(ReadError::Torn(why) | ReadError::Damaged { why, .. }) => Ok(Found::Damaged(why)),
        // No name is looked up here: the name service may take long, and all commands wait for this one.
        Err(ReadError::Leased(uid)) => Ok(Found::Damaged(file::leased(&format!("uid:{uid}")))),
        Err(ReadError::Unreadable { why, remedy }) => Err(unread(path, name, &why, remedy)),
    }
}

/// The error of a file that cannot be read.
pub(super) fn unread(path: &Path, name: &str, why: &str, remedy: &str) -> StateError {
    StateError { message: format!("cannot read {}: {why}: {remedy}", path.join(name).display()) }
}

/// Gives the members of a changed state the facts that are recorded: a new member is the process that has the pid now.
pub(super) fn identify_members(loaded: &State, editable: &mut EditableState, table: &ProcessTable) {
    let written = loaded.written_timestamp_seconds;
    let own = table.pid_namespace.unwrap_or(INITIAL_PID_NAMESPACE);
    let before: HashMap<&str, &EnvironmentState> = loaded.environments.iter().map(|it| (it.eid.as_str(), it)).collect();
    for environment in &mut editable.environments {
        let before = before.get(environment.eid.as_str());
        for member in &mut environment.members {
            let process = table.lineage.get(&member.pid);
            let was = before.and_then(|before| Some((*before, before.member(member.pid)?)));
            member.pid_namespace =
                Some(was.map_or(Some(own), |(_, was)| was.pid_namespace).unwrap_or(INITIAL_PID_NAMESPACE));
            member.started = match was {
                None => process.map_or(Started::Unknown, |process| Started::At(process.start_time_ticks)),
                Some((environment, was)) => match (was.standing(environment, table, written), was.started, process) {
                    (Standing::Lives(living), ..) => Started::At(living.start_time_ticks),
                    (_, Started::At(ticks), _) => Started::At(ticks),
                    // The ended member stays in the list. From now on the file is younger than the process that has
                    // the pid, so that the pid alone would mean that process.
                    (Standing::Ended, _, Some(_)) => Started::BeforeThisBoot,
                    (_, started, _) => started,
                },
            };
        }
    }
}

/// The records of a changed state.
pub(super) fn records(before: &State, editable: &EditableState, table: &ProcessTable) -> Records {
    // A waiting process is the one that has the pid now; a hidden process was recorded before.
    let waiting = editable.queue.iter().filter_map(|&Waiting { pid, .. }| {
        let known = || before.queued.iter().find(|waiting| waiting.pid == pid).copied();
        let process = table.lineage.get(&pid);
        process.map(|process| ProcessId { pid, start_time_ticks: process.start_time_ticks }).or_else(known)
    });
    Records {
        environments: editable.environments.clone(),
        devices: editable.devices.clone(),
        queue: waiting.collect(),
        simulated: before.simulated,
        ..Records::default()
    }
}

/// Writes the file and its copy, and collects notices for the user.
pub(super) struct FileWriter<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) directory: BorrowedFd<'a>,
    pub(super) path: &'a Path,
    pub(super) notices: &'a mut Vec<String>,
}

impl FileWriter<'_> {
    /// Writes what changes: first all of it beside the old files, then each in its place.
    pub(super) fn write(&mut self, loaded: &Loaded, records: &mut Records) -> Result<(), StoreError> {
        let is_new = loaded.contents == [None, None] && loaded.damage.is_none() && !loaded.retires;
        if is_new && *records == Records::default() {
            return Ok(());
        }
        let content = records.write(&loaded.boot_id, self.directory).map_err(|why| StoreError::Write {
            path: self.path.join(STATE_FILE),
            why: format!("no program could read it: {why}"),
            remedy: "end environments that are not needed",
        })?;
        let prepare = |name| Prepared::new(self.disk, self.directory, name, &content);
        let prepare = |name| prepare(name).map_err(|errno| self.failed(name, errno));
        let changes = |file: usize| loaded.contents[file].as_ref() != Some(&content);
        let file = changes(0).then(|| prepare(STATE_FILE)).transpose()?;
        let copy = changes(1).then(|| prepare(COPY_FILE)).transpose()?;
        let retired = loaded.retires.then(|| import::prepare_retired(self.disk, self.directory, &records.devices));
        self.keep_damaged(loaded)?;
        if let Some(file) = file {
            file.commit().map_err(|errno| self.failed(STATE_FILE, errno))?;
        }
        retired.into_iter().flatten().for_each(import::Retired::commit);
        let committed = copy.map_or(Ok(()), Prepared::commit).or_else(|_| {
            // Every user may put a folder there, and move it away.
            corrupt::move_aside(self.disk, self.directory, COPY_FILE)?;
            Prepared::new(self.disk, self.directory, COPY_FILE, &content)?.commit()
        });
        if let Err(errno) = committed {
            self.notices.push(self.failed(COPY_FILE, errno).to_string());
        }
        Ok(())
    }

    /// Keeps the file beside if it is damaged, or has records that are left out.
    fn keep_damaged(&mut self, loaded: &Loaded) -> Result<(), StoreError> {
        let file = self.path.join(STATE_FILE);
        let file = file.display();
        let what = match (&loaded.damage, &loaded.state.warnings[..]) {
            (None, []) => return Ok(()),
            (None, warnings) if loaded.contents[0].is_none() => {
                self.notices.extend(warnings.iter().cloned());
                return Ok(());
            }
            (None, warnings) => format!("{file}: {}", warnings.join("; ")),
            (Some(Damage { why, .. }), _) => format!("{file} is damaged: {why}"),
        };
        let aside = match corrupt::keep_aside(self.disk, self.directory, STATE_FILE) {
            Ok(aside) => format!(". It is kept as {aside}"),
            Err(Errno::NOENT) => String::new(),
            Err(errno) => return Err(self.failed(STATE_FILE, errno)),
        };
        let instead = loaded.damage.as_ref().map(|_| format!(". What counts is {}", loaded.instead()));
        self.notices.push(format!("{what}{aside}{}", instead.unwrap_or_default()));
        Ok(())
    }

    pub(super) fn failed(&self, name: &str, errno: Errno) -> StoreError {
        StoreError::Write { path: self.path.join(name), why: io_error(errno), remedy: write_remedy(errno) }
    }
}
