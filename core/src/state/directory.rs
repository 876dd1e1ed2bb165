//! The state directory, read without its lock.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::commit::{self, state_of};
use super::data::EnvironmentState;
use super::file::{self, ReadError, Version};
use super::host::{COPY_FILE, STATE_FILE, State, StateError, StateSource};
use super::import;
use super::kernels::Kernels;
use super::liveness;
use super::record::{NoRecords, Records, boot_id};
use super::waiting;
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

/// Reads the state of a state directory. It takes no lock and writes no file.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    search_path: Option<OsString>,
    /// The last content of the file.
    last: Option<(Version, Records)>,
    kernels: Kernels,
    /// Shows which processes of the queue wait.
    processes: ProcReader,
    /// Whether the directory existed at the last read, and the file.
    exists: [bool; 2],
}

impl StateDirectory {
    /// Reads from this directory; it need not exist. Also looks for `genv` on this program's PATH.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            search_path: env::var_os("PATH"),
            last: None,
            kernels: Kernels::default(),
            processes: ProcReader::new(),
            exists: [false; 2],
        }
    }

    /// Looks for `genv` on another PATH.
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.search_path = Some(path.into());
        self
    }

    /// The environments that a genv 1.x has made beside `state.json`. Neither genv knows the devices of the other's
    /// environments.
    pub fn environments_of_genv1(&self) -> Vec<EnvironmentState> {
        let directory = self.open().ok().flatten();
        // The copy is written last: without one, the file may be waiting for its import.
        let imported = directory.filter(|it| exists(it.as_fd(), COPY_FILE));
        imported.map_or_else(Vec::new, |it| import::made_since(it.as_fd(), &self.path, &machine_time_zone()))
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

fn exists(directory: BorrowedFd<'_>, name: &str) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
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
        let existed = self.exists;
        let read = self.read_files();
        let exists = self.exists;
        // What was removed is missing until it is created again. The file of a removed directory is removed with it.
        self.exists = [existed[0] || exists[0], exists[0] && (existed[1] || exists[1])];
        let mut state = read?;
        // The removal ends no environment: the caller keeps the last state, and reports the error.
        if existed[0] && !exists[0] {
            let message = format!(
                "cannot read the state directory {}: it was removed: any command of genv makes it anew",
                self.path.display()
            );
            return Err(StateError { message });
        }
        if existed[1] && !exists[1] {
            return Err(commit::unread(&self.path, STATE_FILE, commit::REMOVED, file::WRITTEN_AGAIN));
        }
        let queue = &state.queued;
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
    /// The state of the file.
    pub(super) fn read_files(&mut self) -> Result<State, StateError> {
        let directory = self.open()?;
        self.exists = [directory.is_some(), false];
        let Some(directory) = directory else {
            return Ok(State { installed: self.genv_is_on_path(), ..State::default() });
        };
        let mut delays = RETRY_DELAYS.iter();
        loop {
            let read = match self.attempt(directory.as_fd()) {
                Ok(Some((version, records))) => {
                    return Ok(state_of(records, Some(version.modified_seconds()), directory.as_fd()));
                }
                Ok(None) => match self.without_file(directory.as_fd()) {
                    // A command may have written the file meanwhile.
                    Ok(state) if !exists(directory.as_fd(), STATE_FILE) => return Ok(state),
                    read => read,
                },
                Err(ReadError::Damaged { why, remedy } | ReadError::Unreadable { why, remedy }) => {
                    return Err(commit::unread(&self.path, STATE_FILE, &why, remedy));
                }
                Err(ReadError::Leased(uid)) => {
                    return Err(commit::unread(&self.path, STATE_FILE, &file::leased(&username(uid)), file::MOVED));
                }
                Err(ReadError::Torn(why)) => Err(commit::unread(&self.path, STATE_FILE, &why, file::DAMAGED)),
            };
            match delays.next() {
                Some(&delay) => thread::sleep(delay),
                None => return read,
            }
        }
    }

    /// The state of a directory without the file: that of earlier versions, or none.
    fn without_file(&mut self, directory: BorrowedFd<'_>) -> Result<State, StateError> {
        let boot_id = boot_id();
        let removed = || Err(commit::unread(&self.path, STATE_FILE, commit::REMOVED, file::WRITTEN_AGAIN));
        if commit::has_copy(directory, &self.path, &boot_id) {
            return removed();
        }
        let imported = import::read(directory, &self.path, &boot_id, &machine_time_zone())?;
        if imported.is_none() && exists(directory, COPY_FILE) {
            return removed();
        }
        self.exists[1] = imported.is_some();
        let (records, written) = imported.map(|it| (it.records, it.written_timestamp_seconds)).unwrap_or_default();
        Ok(state_of(records, written, directory))
    }

    fn attempt(&mut self, directory: BorrowedFd<'_>) -> Result<Option<(Version, Records)>, ReadError> {
        let found = file::find(directory, STATE_FILE);
        self.exists[1] = !matches!(found, Ok(None));
        let Some(found) = found? else {
            return Ok(None);
        };
        if let Some(last) = self.last.as_ref().filter(|(version, _)| *version == found) {
            return Ok(Some(last.clone()));
        }
        let (version, content) = file::read(directory, STATE_FILE)?;
        let records = Records::parse(&content, &boot_id(), directory).map_err(|error| match error {
            NoRecords::OtherVersion(_) => ReadError::Unreadable { why: error.to_string(), remedy: file::OTHER_VERSION },
            NoRecords::Damaged(why) => ReadError::Damaged { why, remedy: file::DAMAGED },
        })?;
        self.last = (version.age() >= file::SETTLED_AFTER).then(|| (version, records.clone()));
        Ok(Some((version, records)))
    }
}

#[cfg(test)]
mod tests;
