//! The three files of the state as one: read under the lock, and written so that all change or none.
//!
//! `genv-members.json` is replaced first, then `envs.json`, then `devices.json`. If a command is killed in between, the
//! next command repairs the state: it drops recorded members that `envs.json` lacks, and attachments of ended
//! environments.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::BorrowedFd;
use std::path::Path;

use jiff::tz::TimeZone;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::attachments;
use super::change::EditableState;
use super::confirmed;
use super::data::{ProcessId, Started, Visible};
use super::document::{self, Document, Format, ReadContext};
use super::file::{self, ReadError, Version};
use super::known;
use super::leases;
use super::liveness::Standing;
use super::members::{self, MembersFile, NEVER_TICKS, OtherRecords, boot_id};
use super::queue::Waiting;
use super::shape::{self, Times};
use super::store::StoreError;
use super::waiting;
use super::{DEVICES_FILE, DeviceState, ENVIRONMENTS_FILE, EnvironmentState, MEMBERS_FILE, State, StateError, corrupt};
use crate::files::{Disk, Prepared, io_error, write_remedy};
use crate::model::machine_time_zone;
use crate::proc::{INITIAL_PID_NAMESPACE, ProcessTable};

/// The files of the state, in the order of writing.
pub(super) const FILES: [&str; 3] = [MEMBERS_FILE, ENVIRONMENTS_FILE, DEVICES_FILE];

/// The state as the files have it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) state: State,
    boot_id: String,
    /// The time zone of the times in the files.
    pub(super) time_zone: TimeZone,
    /// The content of each of [`FILES`], with its damage.
    contents: [Option<FileContent>; 3],
}

#[derive(Debug)]
struct FileContent {
    bytes: Vec<u8>,
    damage: Damage,
}

/// The damage of a file.
#[derive(Debug, PartialEq, Eq)]
enum Damage {
    None,
    /// Some entries, or values in entries, are damaged; the text names the first.
    Entries(String),
    /// The whole file is damaged, for the reason `why`; `whole` of its entries are intact.
    File {
        why: String,
        whole: usize,
    },
}

struct ReadDocument<T> {
    document: Document<T>,
    content: Option<FileContent>,
    version: Option<Version>,
}

impl<T> ReadDocument<T> {
    /// Whether the file may have had further entries.
    fn is_lost(&self) -> bool {
        let damage = self.content.as_ref().map(|content| &content.damage);
        matches!(damage, None | Some(Damage::File { .. }))
    }
}

impl Loaded {
    /// Reads the files. Of a damaged file, the whole entries are read.
    pub(super) fn read(directory: BorrowedFd<'_>, path: &Path) -> Result<Self, StateError> {
        let place = StateFiles { directory, path, time_zone: machine_time_zone() };
        let environments: ReadDocument<EnvironmentState> = place.read(&document::ENVIRONMENTS)?;
        let devices: ReadDocument<DeviceState> = place.read(&document::DEVICES)?;
        let members: ReadDocument<MembersFile> = place.read(&members::FORMAT)?;
        let environments_are_lost = environments.is_lost() || environments.document.incomplete;
        let recorded = members.document.entries.into_iter().next().unwrap_or_default();
        let mut listed = environments.document.entries;
        let recorded = recorded.give_facts(&mut listed, environments_are_lost);
        let devices_are_lost = match devices.content {
            None => !recorded.copy.is_empty() || members.content.is_none(),
            Some(_) => devices.is_lost() || !devices.document.damaged.is_empty(),
        };
        let mut warnings = environments.document.warnings;
        warnings.extend(devices.document.warnings);
        let mut state = State {
            installed: true,
            written_timestamp_seconds: environments.version.map(Version::modified_seconds),
            environments: listed,
            devices: devices.document.entries,
            recorded,
            queue: Vec::new(),
            refused_requests: 0,
            leases: HashMap::new(),
            kernels_not_found: BTreeMap::new(),
            incomplete: environments.document.salvaged,
            left_out: environments.document.left_out,
            warnings,
        };
        attachments::put_back(&mut state, &devices.document.damaged);
        attachments::find_bare(&mut state, devices_are_lost);
        confirmed::confirm_members(&mut state.environments, directory);
        state.leases = leases::find(&state.environments, directory);
        Ok(Self {
            state,
            boot_id: boot_id(),
            time_zone: place.time_zone,
            contents: [members.content, environments.content, devices.content],
        })
    }

    /// A sentence for each file that is damaged as a whole.
    pub(super) fn damage(&self, path: &Path) -> Vec<String> {
        let files = FILES.iter().zip(&self.contents);
        let damaged = files.filter_map(|(name, content)| match &content.as_ref()?.damage {
            Damage::File { why, .. } => Some(format!(
                "{} is damaged: {why}. Shown is what is whole in it, and the next change of an environment goes on with that",
                path.join(name).display()
            )),
            Damage::None | Damage::Entries(_) => None,
        });
        damaged.collect()
    }

    /// The editable state. Its queue has the processes of `waiting` that still have their pids.
    pub(super) fn edit(
        &self,
        table: &ProcessTable,
        waiting: &HashMap<u32, Waiting>,
        visible: Visible,
        now_seconds: f64,
    ) -> EditableState {
        let mut editable = EditableState {
            environments: self.state.environments.clone(),
            devices: self.state.devices.clone(),
            queue: waiting::in_order(&self.state.recorded.queue, waiting, table),
            lost: self.state.recorded.lost.clone(),
            bare: self.state.recorded.bare.clone(),
            visible,
            known: self.state.recorded.known.clone(),
            leases: self.state.leases.clone(),
            lost_owners: self.lost_owners(table),
            uid: geteuid().as_raw(),
            devices_known: false,
            requested: None,
            now_seconds,
        };
        editable.attach_visible();
        editable
    }

    /// The users of living lost members, by environment. `table` has the members.
    fn lost_owners(&self, table: &ProcessTable) -> BTreeMap<String, BTreeSet<u32>> {
        let mut owners: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for member in &self.state.recorded.lost {
            let found = table.living(member.process.pid);
            let found = found.filter(|it| it.start_time_ticks == member.process.start_time_ticks);
            if let Some(uid) = found.and_then(|it| it.uid) {
                owners.entry(member.eid.clone()).or_default().insert(table.owner(uid));
            }
        }
        owners
    }
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
                    // The ended member stays in the list. From now on `envs.json` is younger than the process that has
                    // the pid, so that the pid alone would mean that process.
                    (Standing::Ended, _, Some(_)) => Started::At(NEVER_TICKS),
                    (_, _, _) => Started::Unknown,
                },
            };
        }
    }
}

/// The other records of a changed state.
pub(super) fn record(loaded: &mut Loaded, editable: &EditableState, table: &ProcessTable) -> OtherRecords {
    let before = std::mem::take(&mut loaded.state.recorded);
    let mut recorded = OtherRecords::default();
    // A waiting process is the one that has the pid now; a hidden process was recorded before.
    let waiting = editable.queue.iter().filter_map(|&Waiting { pid, .. }| {
        let known = || before.queue.iter().find(|waiting| waiting.pid == pid);
        let process =
            table.lineage.get(&pid).map(|process| ProcessId { pid, start_time_ticks: process.start_time_ticks });
        process.or_else(|| known().copied())
    });
    recorded.queue = waiting.collect();
    recorded.lost.clone_from(&editable.lost);
    recorded.simulated = before.simulated;
    recorded.copy.clone_from(&editable.devices);
    recorded.bare.clone_from(&editable.bare);
    recorded.bare.retain(|eid| editable.environment(eid).is_some());
    recorded.known =
        known::after(&editable.environments, &editable.devices, &loaded.state.environments, &editable.known);
    recorded
}

/// The sentence about the rest of a damaged file.
fn after_damage(name: &str, whole: usize) -> String {
    match name {
        ENVIRONMENTS_FILE if whole == 0 => {
            "No environment in it is whole: those that living processes name are restored by a command of their users, and 'genv activate' starts a new one".to_owned()
        }
        ENVIRONMENTS_FILE => format!("The {whole} environments that are whole in it go on"),
        DEVICES_FILE => format!(
            "{whole} devices in it are whole; environments keep the others by genv-members.json or by what their \
             processes see. 'genv attach' attaches what is missing"
        ),
        _ => "genv fills it again, and there is nothing to do".to_owned(),
    }
}

/// The state directory, to read its files.
struct StateFiles<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    time_zone: TimeZone,
}

impl StateFiles<'_> {
    fn read<T>(&self, format: &Format<T>) -> Result<ReadDocument<T>, StateError> {
        let context = ReadContext { time_zone: &self.time_zone, directory: Some(self.directory) };
        let found = file::find(self.directory, format.name).and_then(|found| {
            let read = found.map(|_| file::read(self.directory, format.name));
            read.transpose()
        });
        let (why, found) = match found {
            Ok(None) => {
                return Ok(ReadDocument { document: Document::default(), content: None, version: None });
            }
            Ok(Some((version, bytes))) => match (format.parse)(&bytes, &context) {
                Ok(document) => {
                    let first = document.warnings.first().cloned();
                    let damage = first.map_or(Damage::None, Damage::Entries);
                    return Ok(ReadDocument {
                        document,
                        content: Some(FileContent { bytes, damage }),
                        version: Some(version),
                    });
                }
                Err(error) => (error.to_string(), Some((version, bytes))),
            },
            // All programs write under the lock: a torn file is damaged.
            Err(ReadError::Torn(why) | ReadError::Damaged { why, .. }) => {
                (why, file::read_damaged(self.directory, format.name))
            }
            // No name is looked up here: the name service may take long, and all commands wait for this one.
            Err(ReadError::Leased(uid)) => (file::leased(&format!("uid:{uid}")), None),
            Err(ReadError::Unreadable { why, remedy }) => {
                let file = self.path.join(format.name);
                return Err(StateError { message: format!("cannot read {}: {why}: {remedy}", file.display()) });
            }
        };
        let (version, bytes) = found.unzip();
        let bytes = bytes.unwrap_or_default();
        let document = (format.salvage)(&bytes, &context);
        let damage = Damage::File { why, whole: document.entries.len() };
        Ok(ReadDocument { document, content: Some(FileContent { bytes, damage }), version })
    }
}

/// Writes the files, and collects notices for the user.
pub(super) struct FileWriter<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) directory: BorrowedFd<'a>,
    pub(super) path: &'a Path,
    pub(super) notices: &'a mut Vec<String>,
}

impl FileWriter<'_> {
    /// Writes the files that change: first all of them beside the old ones, then each in its place.
    pub(super) fn write(
        &mut self,
        loaded: &Loaded,
        editable: &EditableState,
        recorded: &OtherRecords,
        times: &Times,
    ) -> Result<(), StoreError> {
        let new = [
            (
                !recorded.is_empty() || !editable.environments.is_empty(),
                recorded.write(&editable.environments, &loaded.boot_id, times),
            ),
            (!editable.environments.is_empty(), shape::environments(&editable.environments, times)),
            (editable.devices_known || !editable.devices.is_empty(), shape::devices(&editable.devices, times)),
        ];
        let mut prepared = Vec::new();
        for ((name, old), (needed, bytes)) in FILES.iter().zip(&loaded.contents).zip(&new) {
            let changes =
                old.as_ref().map_or(*needed, |old| matches!(old.damage, Damage::File { .. }) || old.bytes != *bytes);
            if !changes {
                continue;
            }
            // No program could read a larger file, and its content would be lost.
            let most_bytes = file::most_bytes(name);
            if bytes.len() as u64 > most_bytes {
                return Err(StoreError::Write {
                    path: self.path.join(name),
                    why: format!("it would have {} bytes, and no more than {most_bytes} are read", bytes.len()),
                    remedy: "end environments that are not needed, or move the file away, and genv makes a new one",
                });
            }
            let file = Prepared::new(self.disk, self.directory, name, bytes);
            let file = file.map_err(|errno| self.failed(name, errno))?;
            let damage = old.as_ref().map_or(&Damage::None, |old| &old.damage);
            prepared.push((*name, file, damage));
        }
        for (name, _, damage) in &prepared {
            self.keep_damaged(name, damage)?;
        }
        for (name, file, _) in prepared {
            file.commit().map_err(|errno| self.failed(name, errno))?;
        }
        Ok(())
    }

    fn keep_damaged(&mut self, name: &str, damage: &Damage) -> Result<(), StoreError> {
        if *damage == Damage::None {
            return Ok(());
        }
        let aside = corrupt::keep_aside(self.disk, self.directory, name);
        let aside = aside.map_err(|errno| self.failed(name, errno))?;
        let file = self.path.join(name);
        let file = file.display();
        self.notices.push(match damage {
            Damage::File { why, whole } => {
                let after = after_damage(name, *whole);
                format!("{file} is damaged: {why}. It is kept as {aside}. {after}")
            }
            Damage::Entries(first) => {
                format!("{file} has damaged entries ({first}): what it was is kept as {aside}")
            }
            Damage::None => return Ok(()),
        });
        Ok(())
    }

    pub(super) fn failed(&self, name: &str, errno: Errno) -> StoreError {
        StoreError::Write { path: self.path.join(name), why: io_error(errno), remedy: write_remedy(errno) }
    }
}
