//! The state directory that is shared with genv 1.x, read without its lock.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use jiff::tz::TimeZone;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::attachments;
use super::confirmed;
use super::document::{self, Document, Format, ReadContext};
use super::file::{self, ReadError, Version};
use super::kernels::Kernels;
use super::leases;
use super::liveness;
use super::members::{self, MembersFile};
use super::refused;
use super::waiting;
use super::{DEVICES_FILE, DeviceState, ENVIRONMENTS_FILE, EnvironmentState, State, StateError, StateSource};
use crate::files::{io_error, open_folder};
use crate::model::machine_time_zone;
use crate::proc::{ProcReader, username};

/// The default state directory, without `GENV_TMPDIR`.
pub const DEFAULT_DIRECTORY: &str = "/var/tmp/genv";

/// The waits before further attempts to read a file that is being written.
const RETRY_DELAYS: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
];

/// The path of a value of `GENV_TMPDIR`; [`DEFAULT_DIRECTORY`] if it is unset or empty.
pub fn directory_path(genv_tmpdir: Option<&OsStr>) -> PathBuf {
    match genv_tmpdir {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        Some(_) | None => PathBuf::from(DEFAULT_DIRECTORY),
    }
}

/// Reads `envs.json` and `devices.json` of a state directory, of every shape that genv has written.
///
/// It takes no lock and writes no file. genv 1.4.3 truncates a file before it writes the file: a file that looks torn
/// is read again for some milliseconds.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    search_path: Option<OsString>,
    environments: RememberedFile<EnvironmentState>,
    devices: RememberedFile<DeviceState>,
    members: RememberedFile<MembersFile>,
    kernels: Kernels,
    /// Shows which processes of the queue wait.
    processes: ProcReader,
    /// Whether the directory existed at the last read.
    exists: bool,
}

/// The last document of a file.
#[derive(Debug)]
struct RememberedFile<T> {
    format: Format<T>,
    last: Option<(Version, Document<T>)>,
    /// Whether the file existed at the last read.
    exists: bool,
}

impl StateDirectory {
    /// Reads from this directory; it need not exist. Also looks for `genv` on this program's PATH.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            search_path: env::var_os("PATH"),
            environments: RememberedFile { format: document::ENVIRONMENTS, last: None, exists: false },
            devices: RememberedFile { format: document::DEVICES, last: None, exists: false },
            members: RememberedFile { format: members::FORMAT, last: None, exists: false },
            kernels: Kernels::default(),
            processes: ProcReader::new(),
            exists: false,
        }
    }

    /// Looks for `genv` on another PATH.
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.search_path = Some(path.into());
        self
    }

    #[cfg(test)]
    pub(super) fn kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = kernels;
        self
    }

    fn genv_is_on_path(&self) -> bool {
        let is_program = |directory: PathBuf| {
            let flags = AtFlags::empty();
            statat(CWD, directory.join("genv"), flags).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o111 != 0
            })
        };
        let path = self.search_path.as_deref();
        path.is_some_and(|path| env::split_paths(path).any(is_program))
    }

    fn open(&self) -> Result<Option<OwnedFd>, StateError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, &self.path, flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(unopened(&self.path, errno)),
        }
    }
}

/// The error of a removed state directory (0) or file (1, 2).
fn removed(path: &Path, what: usize) -> StateError {
    let (path, what, remedy) = match what {
        0 => (path.to_owned(), "the state directory ", "any command of genv makes it anew"),
        1 => (path.join(ENVIRONMENTS_FILE), "", "the next 'genv activate' makes it anew"),
        _ => (path.join(DEVICES_FILE), "", "the next 'genv attach' makes it anew"),
    };
    StateError { message: format!("cannot read {what}{}: it was removed: {remedy}", path.display()) }
}

fn unopened(path: &Path, errno: Errno) -> StateError {
    StateError {
        message: format!(
            "cannot open the state directory {}: {}: {}",
            path.display(),
            io_error(errno),
            file::remedy(errno)
        ),
    }
}

/// Opens the state directory for change, if it is there. See [`open_or_create`].
pub(super) fn open(path: &Path) -> Result<OwnedFd, StateError> {
    DirectoryLocation::of(path).open()
}

/// Opens the state directory for change. A new directory is writable by all users, whatever the umask, as with genv
/// 1.4.3.
///
/// A symbolic link is followed only if root or the caller put it there, as Linux does in directories like `/var/tmp`
/// (proc_sys_fs(5), `protected_symlinks`).
pub(super) fn open_or_create(path: &Path) -> Result<OwnedFd, StateError> {
    if let Some(parent) = path.parent().filter(|_| statat(CWD, path, AtFlags::empty()).is_err()) {
        // An error shows below.
        let _ = std::fs::create_dir_all(parent);
    }
    DirectoryLocation::of(path).open_or_create()
}

/// Opens a directory within the state directory for change, as [`open_or_create`], but no link is followed.
pub(super) fn open_or_create_within(directory: BorrowedFd<'_>, name: &str, path: &Path) -> Result<OwnedFd, StateError> {
    let place = DirectoryLocation { directory, name: name.into(), path, linked: false };
    place.open_or_create()
}

/// The location of a directory that exists or is to be created.
struct DirectoryLocation<'a> {
    directory: BorrowedFd<'a>,
    name: PathBuf,
    /// Its whole path.
    path: &'a Path,
    /// Whether it may be a link.
    linked: bool,
}

impl<'a> DirectoryLocation<'a> {
    fn of(path: &'a Path) -> Self {
        Self {
            directory: CWD,
            // A slash at the end would follow any link.
            name: path.components().collect(),
            path,
            linked: true,
        }
    }

    fn open_or_create(&self) -> Result<OwnedFd, StateError> {
        let unopened = |errno| unopened(self.path, errno);
        let all_users = Mode::from_raw_mode(0o777);
        match mkdirat(self.directory, &self.name, all_users) {
            Ok(()) => {
                let directory = open_folder(self.directory, &self.name).map_err(unopened)?;
                fchmod(&directory, all_users).map_err(unopened)?;
                Ok(directory)
            }
            Err(Errno::EXIST) => self.open(),
            Err(errno) => Err(unopened(errno)),
        }
    }

    fn open(&self) -> Result<OwnedFd, StateError> {
        let unopened = |errno| unopened(self.path, errno);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let open = |more| openat(self.directory, &self.name, flags | more, Mode::empty());
        // The opened file is checked and used, so that a replacement in between has no effect.
        let found = open(OFlags::NOFOLLOW).map_err(unopened)?;
        let stat = fstat(&found).map_err(unopened)?;
        let trusted = self.linked && (stat.st_uid == 0 || stat.st_uid == geteuid().as_raw());
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Ok(found),
            FileType::Symlink if trusted => open(OFlags::DIRECTORY).map_err(unopened),
            FileType::Symlink => Err(StateError {
                message: format!(
                    "cannot open the state directory {}: it is a symbolic link, made by uid {}, that is not \
                     followed: remove it, and genv makes a directory",
                    self.path.display(),
                    stat.st_uid
                ),
            }),
            _ => Err(unopened(Errno::NOTDIR)),
        }
    }
}

impl StateSource for StateDirectory {
    /// Reads the state. Ended kernels are left out; the living members depend on the processes.
    fn read(&mut self) -> Result<State, StateError> {
        let existed = [self.exists, self.environments.exists, self.devices.exists];
        let read = self.read_files();
        let exists = [self.exists, self.environments.exists, self.devices.exists];
        // A removed file is missing until it is created again. The files of a removed directory are removed with it.
        self.exists |= existed[0];
        self.environments.exists = exists[0] && (exists[1] || existed[1]);
        self.devices.exists = exists[0] && (exists[2] || existed[2]);
        let mut state = read?;
        if let Some(what) = (0..3).find(|&it| existed[it] && !exists[it]) {
            // The removal ends no environment: the caller keeps the last state, and reports the error.
            return Err(removed(&self.path, what));
        }
        let queue = &state.recorded.queue;
        if let Some(directory) = self.open()?.filter(|_| !queue.is_empty()) {
            let processes = &mut self.processes;
            state.queue = waiting::now(directory.as_fd(), queue, processes, waiting::waiting);
        }
        let ended = self.kernels.ended(&state.environments);
        state.kernels_not_found = liveness::forget_kernels(&mut state.environments, &ended);
        Ok(state)
    }
}

impl StateDirectory {
    /// The state of the files.
    pub(super) fn read_files(&mut self) -> Result<State, StateError> {
        let directory = self.open()?;
        self.exists = directory.is_some();
        let Some(directory) = directory else {
            return Ok(State { installed: self.genv_is_on_path(), ..State::default() });
        };
        let folder =
            OpenFolder { path: &self.path, directory: directory.as_fd(), time_zone: LazyCell::new(machine_time_zone) };
        let (written, environments) = self.environments.read(&folder)?;
        let (devices_written, devices) = self.devices.read(&folder)?;
        let mut warnings = environments.warnings;
        warnings.extend(devices.warnings);
        // Without this file, members count by their pids alone, as with genv 1.x.
        let members = match self.members.read(&folder) {
            Ok((_, members)) => members.entries,
            Err(error) => {
                warnings.push(error.message);
                Vec::new()
            }
        };
        let is_lost = members.is_empty() && devices_written.is_none();
        let mut listed = environments.entries;
        let has_lost = written.is_none() || environments.incomplete;
        let recorded = members.into_iter().next().unwrap_or_default().give_facts(&mut listed, has_lost);
        let mut state = State {
            installed: true,
            written_timestamp_seconds: written.map(Version::modified_seconds),
            environments: listed,
            devices: devices.entries,
            recorded,
            queue: Vec::new(),
            refused_requests: refused::number(folder.directory),
            leases: HashMap::new(),
            kernels_not_found: BTreeMap::new(),
            incomplete: environments.salvaged,
            left_out: environments.left_out,
            warnings,
        };
        let is_lost = is_lost || devices_written.is_none() && !state.recorded.copy.is_empty();
        attachments::put_back(&mut state, &devices.damaged);
        attachments::find_bare(&mut state, is_lost || !devices.damaged.is_empty());
        confirmed::confirm_members(&mut state.environments, folder.directory);
        state.leases = leases::find(&state.environments, folder.directory);
        Ok(state)
    }
}

/// An open folder with state files.
struct OpenFolder<'a> {
    path: &'a Path,
    directory: BorrowedFd<'a>,
    /// Read only if a file changed.
    time_zone: LazyCell<TimeZone>,
}

impl<T: Clone> RememberedFile<T> {
    /// The document of the file and its version; an empty document if the file does not exist.
    fn read(&mut self, folder: &OpenFolder<'_>) -> Result<(Option<Version>, Document<T>), StateError> {
        let mut delays = RETRY_DELAYS.iter();
        loop {
            let (why, remedy) = match self.attempt(folder) {
                Ok(read) => return Ok(read),
                Err(ReadError::Damaged { why, remedy } | ReadError::Unreadable { why, remedy }) => (why, remedy),
                Err(ReadError::Leased(uid)) => (file::leased(&username(uid)), file::MOVED),
                Err(ReadError::Torn(why)) => match delays.next() {
                    Some(&delay) => {
                        thread::sleep(delay);
                        continue;
                    }
                    None => (why, file::DAMAGED),
                },
            };
            let file = folder.path.join(self.format.name);
            return Err(StateError { message: format!("cannot read {}: {why}: {remedy}", file.display()) });
        }
    }

    fn attempt(&mut self, folder: &OpenFolder<'_>) -> Result<(Option<Version>, Document<T>), ReadError> {
        let found = file::find(folder.directory, self.format.name);
        self.exists = !matches!(found, Ok(None));
        let Some(found) = found? else {
            return Ok((None, Document::default()));
        };
        if let Some((version, document)) = &self.last
            && *version == found
        {
            return Ok((Some(*version), document.clone()));
        }
        let (version, content) = file::read(folder.directory, self.format.name)?;
        let settled = version.age() >= file::SETTLED_AFTER;
        let context = ReadContext { time_zone: &folder.time_zone, directory: Some(folder.directory) };
        let document = (self.format.parse)(&content, &context).map_err(|error| {
            if settled {
                ReadError::Damaged { why: error.to_string(), remedy: file::DAMAGED }
            } else {
                ReadError::Torn(error.to_string())
            }
        })?;
        self.last = settled.then(|| (version, document.clone()));
        Ok((Some(version), document))
    }
}

#[cfg(test)]
mod tests;
