//! The directory of the enforcer's own files: nobody else may write there, and nothing that was planted there is
//! followed.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::state::atomic::{Disk, Prepared, RealDisk};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Uid, fchmod, fchown, flock, fstat, fsync, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// A file that is larger was not written by the enforcer.
const MOST_FILE_BYTES: u64 = 64 << 20;

/// How often a lock is tried.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// What could not be done with a file, why, and what to do.
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

/// For whom a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Its owner and group (0640). It is on the disk when it is written.
    Own,
    /// Everybody may read it (0644). It is written anew so often that it need not outlive a power failure.
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

/// The directory, open. Its files belong to whoever owns it, also where root writes them.
#[derive(Debug)]
pub struct RuntimeDirectory {
    path: PathBuf,
    file: OwnedFd,
    owner: (u32, u32),
}

/// Held until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: OwnedFd,
}

impl RuntimeDirectory {
    /// Opens it; makes it (0755) if its parent is there.
    ///
    /// # Errors
    /// It cannot be opened or made, or others may write there.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let path = path.into();
        let error = |what, why: String, remedy| FileError { what, path: path.clone(), why, remedy };
        let failed = |what| move |errno| error(what, io_error(errno), "name another directory with --state-directory");
        match mkdirat(CWD, &path, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("make the directory")(errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = openat(CWD, &path, flags, Mode::empty()).map_err(failed("open the directory"))?;
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts this content into the place of a file: whoever reads it finds the old one or the new one.
    ///
    /// # Errors
    /// It cannot be written; the old one is still there.
    pub fn replace(&self, name: &str, content: &[u8], audience: Audience) -> Result<(), FileError> {
        let disk = OwnDisk { audience, owner: self.owner };
        self.replace_on(&disk, name, content)
    }

    pub(crate) fn replace_on(&self, disk: &dyn Disk, name: &str, content: &[u8]) -> Result<(), FileError> {
        let prepared = Prepared::new(disk, self.file.as_fd(), name, content);
        let replaced = prepared.and_then(Prepared::commit);
        replaced.map_err(|errno| self.failed("write", name, errno))
    }

    /// What a file holds; nothing if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not a file of the enforcer's.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let file = match self.open_own(name, OFlags::RDONLY) {
            Ok(file) => file,
            Err(_) if self.is_absent(name) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut content = Vec::new();
        let limited = File::from(file).take(MOST_FILE_BYTES + 1).read_to_end(&mut content);
        match limited {
            Ok(_) if content.len() as u64 > MOST_FILE_BYTES => Err(self.foreign("read", name, "it is far too large")),
            Ok(_) => Ok(Some(content)),
            Err(error) => Err(self.error("read", name, error.to_string(), "look for errors of the disk")),
        }
    }

    /// Moves a damaged file away, replacing what was moved there before; returns its new name.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn set_aside(&self, name: &str) -> Result<String, FileError> {
        let aside = format!("{name}.damaged");
        let directory = self.file.as_fd();
        renameat(directory, name, directory, &aside).map_err(|errno| self.failed("set aside", name, errno))?;
        Ok(aside)
    }

    /// Removes a file, if there is one.
    ///
    /// # Errors
    /// It is still there.
    pub fn remove(&self, name: &str) -> Result<(), FileError> {
        match unlinkat(self.file.as_fd(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed("remove", name, errno)),
        }
    }

    /// Waits for a lock, a file that only its owner may open, so that nobody else can hold it.
    ///
    /// # Errors
    /// Somebody held it for all that time, or it is no file of the enforcer's.
    pub fn lock(&self, name: &str, patience: Duration) -> Result<DirectoryLock, FileError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(lock) = self.try_lock(name)? {
                return Ok(lock);
            }
            if Instant::now() >= deadline {
                return Err(self.error(
                    "lock",
                    name,
                    format!("another process has held it for {} s", patience.as_secs()),
                    "try again, or see what it does",
                ));
            }
            thread::sleep(LOCK_POLL);
        }
    }

    /// Takes a lock as [`RuntimeDirectory::lock`] does, or nothing if somebody holds it now.
    ///
    /// # Errors
    /// It is no file of the enforcer's.
    pub fn try_lock(&self, name: &str) -> Result<Option<DirectoryLock>, FileError> {
        let file = self.open_or_create(name, OFlags::RDWR, Mode::from_raw_mode(0o600))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(DirectoryLock { _file: file })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.failed("lock", name, errno)),
        }
    }

    /// Opens a file for appending and reading; makes it if there is none.
    ///
    /// # Errors
    /// It cannot be opened or made, or is no file of the enforcer's.
    pub fn append(&self, name: &str, audience: Audience) -> Result<OwnedFd, FileError> {
        self.open_or_create(name, OFlags::RDWR | OFlags::APPEND, audience.mode())
    }

    /// Whether what has this name now is the open file.
    #[must_use]
    pub fn is_in_place(&self, name: &str, file: BorrowedFd<'_>) -> bool {
        let found = statat(self.file.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW);
        match (found, fstat(file)) {
            (Ok(found), Ok(open)) => (found.st_dev, found.st_ino) == (open.st_dev, open.st_ino),
            _ => false,
        }
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

    /// Opens a file only if it is one that the enforcer made.
    fn open_own(&self, name: &str, flags: OFlags) -> Result<OwnedFd, FileError> {
        // Opening a pipe must not wait for its other end.
        let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat(self.file.as_fd(), name, flags | careful, Mode::empty());
        let file = opened.map_err(|errno| match errno {
            Errno::LOOP => self.foreign("open", name, "it is a symbolic link"),
            Errno::ISDIR | Errno::NXIO | Errno::NODEV => self.foreign("open", name, "it is not a regular file"),
            errno => self.failed("open", name, errno),
        })?;
        let stat = fstat(&file).map_err(|errno| self.failed("open", name, errno))?;
        let why = if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
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

    fn write(&self, file: BorrowedFd<'_>, content: &[u8]) -> Result<usize, Errno> {
        let written = RealDisk.write(file, content)?;
        if written == content.len() && self.audience == Audience::Own {
            fsync(file)?;
        }
        Ok(written)
    }

    fn rename(&self, directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<(), Errno> {
        RealDisk.rename(directory, from, to)?;
        if self.audience == Audience::Own {
            fsync(directory)?;
        }
        Ok(())
    }
}

/// Gives what root made to the owner of the directory.
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
