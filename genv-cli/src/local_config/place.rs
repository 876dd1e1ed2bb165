//! Careful reads of files and folders of other users.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use rustix::io::Errno;

use crate::users;

/// A folder or file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {task} {}: {why}. {remedy}", .path.display().to_string().escape_debug())]
pub(crate) struct LocalConfigError {
    task: &'static str,
    path: PathBuf,
    why: String,
    remedy: &'static str,
}

/// A file or folder that something is done with.
pub(super) struct Place {
    task: &'static str,
    path: PathBuf,
    /// What to do about a mistake in it.
    correct: &'static str,
}

impl Place {
    pub(super) fn new(task: &'static str, path: &Path, correct: &'static str) -> Self {
        let path = path.to_owned();
        Self { task, path, correct }
    }

    pub(super) fn error(&self, why: impl fmt::Display, remedy: &'static str) -> LocalConfigError {
        LocalConfigError { task: self.task, path: self.path.clone(), why: why.to_string(), remedy }
    }

    /// An error about its content.
    pub(super) fn wrong(&self, why: impl fmt::Display) -> LocalConfigError {
        self.error(why, self.correct)
    }

    /// The text of a regular file of the user's, by its name in a directory; nothing if there is none.
    pub(super) fn read(
        &self,
        directory: BorrowedFd<'_>,
        name: &Path,
        most_bytes: u64,
    ) -> Result<Option<String>, LocalConfigError> {
        let flags = NO_WAITING | OFlags::NOFOLLOW;
        let file = match openat(directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| self.cannot_open(errno))?,
        };
        self.check(&file, FileType::RegularFile)?;
        let mut content = Vec::new();
        let read = File::from(file).take(most_bytes + 1).read_to_end(&mut content);
        read.map_err(|error| self.wrong(error))?;
        if content.len() as u64 > most_bytes {
            return Err(self.wrong(format!("it has more than {most_bytes} bytes")));
        }
        let text = String::from_utf8(content).map_err(|_| self.wrong("it is not UTF-8"))?;
        Ok(Some(text))
    }

    pub(super) fn cannot_open(&self, errno: Errno) -> LocalConfigError {
        let itself = "Put the folder or file itself in its place";
        match errno {
            Errno::LOOP => self.error("it is a symbolic link", itself),
            Errno::NOTDIR => self.error("it is a symbolic link or no folder", itself),
            Errno::NXIO => self.wrong("it is not a file"),
            errno => self.error(io::Error::from(errno), "See to it that you may read it"),
        }
    }

    pub(super) fn check(&self, file: &OwnedFd, kind: FileType) -> Result<(), LocalConfigError> {
        let found: Stat = fstat(file).map_err(|errno| self.cannot_open(errno))?;
        if FileType::from_raw_mode(found.st_mode) != kind {
            return Err(self.wrong("it is not a file"));
        }
        if !trusts(rustix::process::geteuid().as_raw(), found.st_uid) {
            let why = format!("it belongs to the user {}", users::shown(found.st_uid));
            return Err(self.error(why, "Only your own and those of root are used"));
        }
        Ok(())
    }
}

/// The beginning of a file of any owner; absent if the file cannot be read or is not regular.
pub(super) fn peek(path: &Path, most_bytes: u64) -> Option<Vec<u8>> {
    // The kind of the file comes first: some devices do something when they are opened.
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let file = File::from(openat(CWD, path, NO_WAITING, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    file.take(most_bytes).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Opening a pipe must not wait for its other end.
const NO_WAITING: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Whether a user uses what belongs to `owner`: it must be the user's own, or root's, who could do anything anyway.
pub(super) const fn trusts(user: u32, owner: u32) -> bool {
    owner == 0 || owner == user
}
