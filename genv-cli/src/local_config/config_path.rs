//! Reads of files and folders that other users may have written.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use genv_core::files::{self, read_at_most};
use genv_core::proc::user_phrase;
use rustix::fs::{CWD, FileType, OFlags, Stat, fstat};
use rustix::io::Errno;

/// The error of a folder or file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {task} {}: {why}. {remedy}", .path.display().to_string().escape_debug())]
pub(crate) struct LocalConfigError {
    task: &'static str,
    path: PathBuf,
    why: String,
    remedy: &'static str,
}

/// A file or folder with the present task, for errors.
pub(super) struct ConfigPath {
    task: &'static str,
    path: PathBuf,
    /// The remedy of an error in the content.
    correct: &'static str,
}

impl ConfigPath {
    pub(super) fn new(task: &'static str, path: &Path, correct: &'static str) -> Self {
        let path = path.to_owned();
        Self { task, path, correct }
    }

    pub(super) fn error(&self, why: impl fmt::Display, remedy: &'static str) -> LocalConfigError {
        LocalConfigError { task: self.task, path: self.path.clone(), why: why.to_string(), remedy }
    }

    /// An error about the content.
    pub(super) fn wrong(&self, why: impl fmt::Display) -> LocalConfigError {
        self.error(why, self.correct)
    }

    /// Reads a regular file in a directory. Absent if there is no such file.
    pub(super) fn read(
        &self,
        directory: BorrowedFd<'_>,
        name: &Path,
        max_bytes: u64,
    ) -> Result<Option<String>, LocalConfigError> {
        let file = match files::open(directory, name, OFlags::RDONLY) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|errno| self.cannot_open(errno))?,
        };
        self.check(&file, FileType::RegularFile)?;
        let content = read_at_most(file, max_bytes).map_err(|error| self.wrong(error))?;
        let content = content.ok_or_else(|| self.wrong(format!("it has more than {max_bytes} bytes")))?;
        let text = String::from_utf8(content).map_err(|_| self.wrong("it is not UTF-8"))?;
        Ok(Some(text))
    }

    pub(super) fn cannot_open(&self, errno: Errno) -> LocalConfigError {
        let itself = "Replace the link by the folder or file itself";
        match errno {
            Errno::LOOP => self.error("it is a symbolic link", itself),
            Errno::NOTDIR => self.error("it is a symbolic link or not a folder", itself),
            Errno::NXIO => self.wrong("it is not a file"),
            errno => self.error(io::Error::from(errno), "Make sure that you may read it"),
        }
    }

    pub(super) fn check(&self, file: &OwnedFd, kind: FileType) -> Result<(), LocalConfigError> {
        let found: Stat = fstat(file).map_err(|errno| self.cannot_open(errno))?;
        if FileType::from_raw_mode(found.st_mode) != kind {
            return Err(self.wrong("it is not a file"));
        }
        if !trusts(rustix::process::geteuid().as_raw(), found.st_uid) {
            let why = format!("it belongs to the user {}", user_phrase(found.st_uid));
            return Err(self.error(why, "Only files of yours and of root are used"));
        }
        Ok(())
    }
}

/// Reads the beginning of a regular file of any owner. Absent after an error.
pub(super) fn peek(path: &Path, max_bytes: u64) -> Option<Vec<u8>> {
    // The type is checked before the open, since the open of some device files has an effect.
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let file = File::from(files::open_through_links(CWD, path, OFlags::RDONLY).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    file.take(max_bytes).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Whether a user trusts files of `owner`: only the user's own files and files of root.
pub(super) const fn trusts(user: u32, owner: u32) -> bool {
    owner == 0 || owner == user
}
