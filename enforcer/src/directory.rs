//! The directory of the enforcer's own files. Only its owner may write there, and planted links and other planted files are
//! refused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use genv_core::files::{self, Disk, FileLock, Prepared, RealDisk, is_regular, read_at_most};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, fsync, mkdirat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The largest file that the enforcer writes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A failed operation on a file: the operation, the reason, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {what} {path}: {why}: {remedy}", path = .path.display())]
pub struct FileError {
    /// The verb.
    pub what: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub why: String,
    /// What to do.
    pub remedy: &'static str,
}

/// The users who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Its owner and group (0640). A write is flushed to the disk.
    Own,
    /// All users (0644). The file is written so often that it need not survive a power failure.
    Everybody,
}

impl Audience {
    const fn mode(self) -> Mode {
        Mode::from_raw_mode(match self {
            Self::Own => 0o640,
            Self::Everybody => 0o644,
        })
    }
}

/// The open directory. Its files belong to the owner of the directory, also if root writes them.
#[derive(Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
    file: OwnedFd,
    owner: (u32, u32),
}

/// A lock, which is released on drop.
#[derive(Debug)]
pub struct DirectoryLock {
    _lock: FileLock,
}

impl RuntimeDirectory {
    /// Opens the directory. A missing directory is made (0755) if its parent exists.
    ///
    /// # Errors
    /// The directory cannot be opened or made, or other users may write there.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        let error = |what, why: String, remedy| FileError { what, path: path.clone(), why, remedy };
        let failed = |what| move |errno| error(what, io_error(errno), "name another directory with --state-directory");
        match mkdirat(CWD, &path, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make the directory")(errno)),
        }
        let file = files::open_folder_through_links(CWD, &path).map_err(failed("open the directory"))?;
        let stat = fstat(&file).map_err(failed("open the directory"))?;
        let user = geteuid();
        if stat.st_uid != user.as_raw() && !user.is_root() {
            return Err(error(
                "use the directory",
                format!("it belongs to the user with uid {}", stat.st_uid),
                "run as that user, or name another directory with --state-directory",
            ));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(error(
                "use the directory",
                "others may write there".to_owned(),
                "take that right from them: chmod go-w",
            ));
        }
        Ok(Self { owner: (stat.st_uid, stat.st_gid), path, file })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces a file atomically: a reader finds the old content or the new content.
    ///
    /// # Errors
    /// The file cannot be written; the old content is still there.
    pub fn replace(&self, name: &str, content: &[u8], audience: Audience) -> Result<(), FileError> {
        let disk = OwnDisk { audience, owner: self.owner };
        let prepared = Prepared::new(&disk, self.file.as_fd(), name, content);
        let replaced = prepared.and_then(Prepared::commit);
        replaced.map_err(|errno| self.failed("write", name, errno))
    }

    /// The content of a file; absent if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a file of the enforcer.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let file = match self.open_own(name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(_) if self.is_absent(name) => return Ok(None),
            Err(error) => return Err(error),
        };
        match read_at_most(file, MAX_FILE_BYTES) {
            Ok(None) => Err(self.foreign("read", name, "it is far too large")),
            Ok(content) => Ok(content),
            Err(error) => Err(self.error("read", name, error.to_string(), "look for errors of the disk")),
        }
    }

    /// Renames a damaged file to `NAME.damaged`, which replaces an earlier one. Returns the new name.
    pub fn set_aside(&self, name: &str) -> Result<String, FileError> {
        let aside = format!("{name}.damaged");
        let directory = self.file.as_fd();
        renameat(directory, name, directory, &aside).map_err(|errno| self.failed("set aside", name, errno))?;
        Ok(aside)
    }

    /// Removes a file, if there is one.
    pub fn remove(&self, name: &str) -> Result<(), FileError> {
        match unlinkat(self.file.as_fd(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", name, errno)),
        }
    }

    /// Waits for a lock: a file that only its owner may open, so that no other user can hold the lock.
    ///
    /// # Errors
    /// Another process held the lock for the whole time, or the file is not a file of the enforcer.
    pub fn lock(&self, name: &str, patience: Duration) -> Result<DirectoryLock, FileError> {
        let lock = self.lock_within(name, patience)?;
        lock.ok_or_else(|| {
            let why = format!("another process has held it for {} s", patience.as_secs());
            self.error("lock", name, why, "try again, or see what it does")
        })
    }

    /// Takes a lock as [`RuntimeDirectory::lock`] does, or returns `None` if another process holds it now.
    ///
    /// # Errors
    /// The file is not a file of the enforcer.
    pub fn try_lock(&self, name: &str) -> Result<Option<DirectoryLock>, FileError> {
        self.lock_within(name, Duration::ZERO)
    }

    fn lock_within(&self, name: &str, patience: Duration) -> Result<Option<DirectoryLock>, FileError> {
        let file = self.open_or_create(name, OFlags::RDWR, Mode::from_raw_mode(0o600))?;
        let lock = FileLock::take(file, Some(patience)).map_err(|errno| self.failed("lock", name, errno))?;
        Ok(lock.map(|lock| DirectoryLock { _lock: lock }))
    }

    /// Opens a file for appending and reading; makes it if there is none.
    ///
    /// # Errors
    /// The file cannot be opened or made, or is not a file of the enforcer.
    pub fn append(&self, name: &str, audience: Audience) -> Result<OwnedFd, FileError> {
        self.open_or_create(name, OFlags::RDWR | OFlags::APPEND, audience.mode())
    }

    /// Whether the open file still has this name.
    pub fn is_in_place(&self, name: &str, file: BorrowedFd<'_>) -> bool {
        files::is_in_place(&self.file, name, file)
    }

    fn open_or_create(&self, name: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, FileError> {
        let new = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(self.file.as_fd(), name, new, mode) {
            Ok(file) => {
                let settle = || -> Result<(), Errno> {
                    give(file.as_fd(), self.owner)?;
                    fchmod(&file, mode)?;
                    fsync(&self.file)
                };
                settle().map_err(|errno| self.failed("make", name, errno))?;
                Ok(file)
            }
            Err(Errno::EXIST) => self.open_own(name, flags),
            Err(errno) => Err(self.failed("make", name, errno)),
        }
    }

    /// Opens a file only if the enforcer made it.
    fn open_own(&self, name: &str, flags: OFlags) -> Result<OwnedFd, FileError> {
        let file = files::open(&self.file, name, flags).map_err(|errno| match errno {
            Errno::LOOP => self.foreign("open", name, "it is a symbolic link"),
            Errno::ISDIR | Errno::NXIO | Errno::NODEV => self.foreign("open", name, "it is not a regular file"),
            errno => self.failed("open", name, errno),
        })?;
        let stat = fstat(&file).map_err(|errno| self.failed("open", name, errno))?;
        let why = if !is_regular(&stat) {
            "it is not a regular file"
        } else if stat.st_nlink != 1 {
            "it is a hard link to a file that has other names"
        } else if stat.st_uid != self.owner.0 {
            "it does not belong to the owner of its directory"
        } else {
            return Ok(file);
        };
        Err(self.foreign("open", name, why))
    }

    fn is_absent(&self, name: &str) -> bool {
        let found = statat(self.file.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW);
        matches!(found, Err(Errno::NOENT))
    }

    fn error(&self, what: &'static str, name: &str, why: String, remedy: &'static str) -> FileError {
        FileError { what, path: self.path.join(name), why, remedy }
    }

    fn foreign(&self, what: &'static str, name: &str, why: &str) -> FileError {
        let remedy = "find out who put it there, and move it away";
        self.error(what, name, why.to_owned(), remedy)
    }

    pub(crate) fn failed(&self, what: &'static str, name: &str, errno: Errno) -> FileError {
        let remedy = match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => "make room on its file system",
            Errno::ACCESS | Errno::PERM => "run as the user whom the directory belongs to",
            _ => "see whether its file system is mounted and well",
        };
        self.error(what, name, io_error(errno), remedy)
    }
}

/// The disk, with files of one owner that are flushed if they must outlive a power failure.
#[derive(Debug)]
struct OwnDisk {
    audience: Audience,
    owner: (u32, u32),
}

impl Disk for OwnDisk {
    fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        give(file, self.owner)?;
        fchmod(file, self.audience.mode())
    }

    fn flush(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.audience {
            Audience::Own => fsync(file),
            Audience::Everybody => Ok(()),
        }
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        RealDisk.rename(directory, from, to)?;
        if self.audience == Audience::Own {
            fsync(directory)?;
        }
        Ok(())
    }
}

/// Gives a file that root made to the owner of the directory.
fn give(file: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> Result<(), Errno> {
    let stat = fstat(file)?;
    if (stat.st_uid, stat.st_gid) == (uid, gid) || !geteuid().is_root() {
        return Ok(());
    }
    fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

fn io_error(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests;
