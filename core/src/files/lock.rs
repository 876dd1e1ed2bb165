//! Locks of files (flock(2)), with the holder of a lock in the errors.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, major, minor, openat, statat};
use rustix::io::{Errno, retry_on_intr};

use super::{io_error, is_in_place, is_regular, open_in_time, write_remedy};
use crate::proc::username;

/// How often a lock file may be replaced by somebody while it is being opened.
pub(crate) const MOST_REPLACEMENTS: u32 = 16;

/// The time limit for several locks together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    all: Option<Duration>,
    since: Instant,
}

impl Patience {
    /// Starts now; `None` waits for ever.
    pub(crate) fn new(all: Option<Duration>) -> Self {
        Self { all, since: Instant::now() }
    }

    fn left(self) -> Option<Duration> {
        let all = self.all?;
        Some(all.saturating_sub(self.since.elapsed()))
    }
}

/// Why a file cannot serve as a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLock {
    /// The name belongs to something else.
    Foreign(&'static str),
    /// The system refuses the file.
    Refused(Errno),
}

/// Why a lock was not had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Somebody else held it for too long.
    #[error(
        "cannot lock {what} with {path}: {} {} s: try again, or see what it does",
        .holder.as_deref().unwrap_or("another process has held it for"), .waited.as_secs_f64(), path = .path.display()
    )]
    TimedOut {
        /// What it protects.
        what: String,
        /// The lock file.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
        /// Who holds it, if the kernel tells, as the beginning of a sentence that a duration ends.
        holder: Option<String>,
    },
    /// There is something at its path that genv would not have put there.
    #[error("cannot lock {what} with {path}: {why}: remove it, and genv makes a new one", path = .path.display())]
    Foreign {
        /// What it protects.
        what: String,
        /// The lock file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be opened or locked here.
    #[error("cannot lock {what} with {path}: {why}: {remedy}", path = .path.display())]
    Failed {
        /// What it protects.
        what: String,
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
}

/// The lock file changes at each attempt.
pub(crate) const REPLACED: NoLock = NoLock::Foreign("another user replaces it again and again");

/// An exclusive lock (flock(2)), released when the value is dropped or the process ends. Programs that
/// it starts do not inherit it.
#[derive(Debug)]
pub struct FileLock {
    file: OwnedFd,
}

impl FileLock {
    /// Locks an open file. Waits in line for at most `patience`, without one for ever; returns nothing if the time is up.
    /// A program that tries again and again would be passed by those that wait in line, as genv 1.4.3 does.
    ///
    /// # Errors
    /// The file system supports no locks, or no thread can be started.
    pub fn take(file: OwnedFd, patience: Option<Duration>) -> Result<Option<Self>, Errno> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(Self { file })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let wait = move || {
            let locked = retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
            locked.map(|()| Self { file })
        };
        let Some(patience) = patience else {
            return wait().map(Some);
        };
        // A thread would wait on for as long as the lock is held.
        if patience.is_zero() {
            return Ok(None);
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        // A lock that comes too late is released, as its file is closed.
        let waiting = thread::Builder::new().spawn(move || {
            let _ = sender.send(wait());
        });
        waiting.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        receiver.recv_timeout(patience).ok().transpose()
    }
}

/// A lock file: in which open directory, and how to speak of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockFile<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a str,
    /// Its whole path.
    pub(crate) path: &'a Path,
    /// What it protects.
    pub(crate) what: &'a str,
    /// The next lock that the holder of this lock takes, and may wait for.
    pub(crate) next: Option<BorrowedFd<'a>>,
}

/// The outcome of one attempt at a lock file.
pub(crate) enum Attempt {
    Locked(FileLock),
    NoLock(NoLock),
}

impl LockFile<'_> {
    /// Waits for the lock; for ever without a patience.
    pub(crate) fn acquire(self, patience: Option<Duration>) -> Result<FileLock, LockError> {
        match self.attempt(Patience::new(patience))? {
            Attempt::Locked(lock) => Ok(lock),
            Attempt::NoLock(why) => Err(self.no_lock(why)),
        }
    }

    /// As [`LockFile::acquire`], but reports a file that cannot be a lock in [`Attempt::NoLock`].
    pub(crate) fn attempt(self, patience: Patience) -> Result<Attempt, LockError> {
        for _ in 0..MOST_REPLACEMENTS {
            let file = match self.open() {
                Ok(file) => file,
                Err(why) => return Ok(Attempt::NoLock(why)),
            };
            let lock = self.lock(file, patience)?;
            // A lock on a file that is not there any more excludes nobody.
            if self.is_in_place(&lock) {
                return Ok(Attempt::Locked(lock));
            }
        }
        Ok(Attempt::NoLock(REPLACED))
    }

    pub(crate) fn lock(self, file: OwnedFd, patience: Patience) -> Result<FileLock, LockError> {
        let stat = fstat(&file).map_err(|errno| self.failed(errno))?;
        let lock = FileLock::take(file, patience.left()).map_err(|errno| self.failed(errno))?;
        lock.ok_or_else(|| LockError::TimedOut {
            what: self.what.to_owned(),
            path: self.path.to_owned(),
            waited: patience.all.unwrap_or_default(),
            holder: self.holder(&stat),
        })
    }

    pub(crate) fn open(self) -> Result<OwnedFd, NoLock> {
        let foreign = |why| Err(NoLock::Foreign(why));
        let everybody = Mode::from_raw_mode(0o666);
        for _ in 0..MOST_REPLACEMENTS {
            // Only a file that was made here is given to everybody: another one may be a link to what is not genv's.
            let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            match openat(self.directory, self.name, new, everybody) {
                Ok(file) => {
                    fchmod(&file, everybody).map_err(NoLock::Refused)?;
                    return Ok(file);
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(NoLock::Refused(errno)),
            }
            let open = |access| open_in_time(self.directory, self.name, access);
            // Network file systems lock only what is open for writing; elsewhere reading is enough.
            let opened = match open(OFlags::RDWR) {
                Err(Errno::ACCESS | Errno::ROFS) => open(OFlags::RDONLY),
                opened => opened,
            };
            let file = match opened {
                Ok(file) => file,
                Err(Errno::NOENT) => continue,
                Err(Errno::LOOP) => return foreign("it is a symbolic link"),
                Err(Errno::ISDIR | Errno::NXIO | Errno::NODEV) => {
                    return foreign("it is not a regular file");
                }
                Err(Errno::AGAIN) => {
                    return foreign("another program has a lease on it (fcntl, F_SETLEASE)");
                }
                Err(errno) => return Err(NoLock::Refused(errno)),
            };
            let stat = fstat(&file).map_err(NoLock::Refused)?;
            if !is_regular(&stat) {
                return foreign("it is not a regular file");
            }
            if stat.st_nlink > 1 {
                return foreign("it is a hard link to a file that has other names");
            }
            return Ok(file);
        }
        Err(REPLACED)
    }

    pub(crate) fn is_in_place(self, lock: &FileLock) -> bool {
        is_in_place(self.directory, self.name, &lock.file)
    }

    /// The error; asks the name service for the owner of the file.
    pub(crate) fn no_lock(self, why: NoLock) -> LockError {
        let owner = self.owner();
        match why {
            NoLock::Foreign(why) => LockError::Foreign {
                what: self.what.to_owned(),
                path: self.path.to_owned(),
                why: format!("{why}{owner}"),
            },
            NoLock::Refused(errno) => LockError::Failed {
                what: self.what.to_owned(),
                path: self.path.to_owned(),
                why: format!("{}{owner}", io_error(errno)),
                remedy: write_remedy(errno),
            },
        }
    }

    /// The owner of the file, as the end of a sentence; empty if there is no file.
    fn owner(self) -> String {
        let stat = statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map(|stat| format!(", of user {}", username(stat.st_uid))).unwrap_or_default()
    }

    fn failed(self, errno: Errno) -> LockError {
        LockError::Failed {
            what: self.what.to_owned(),
            path: self.path.to_owned(),
            why: io_error(errno),
            remedy: write_remedy(errno),
        }
    }
}

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Its pid.
    pub pid: u32,
    /// Its command name, made harmless; `?` if it ended and a child holds the lock on.
    pub name: String,
    /// Its effective uid, if it can be seen.
    pub uid: Option<u32>,
}

impl LockFile<'_> {
    /// Who holds the lock now, if anybody does and the kernel tells.
    pub(crate) fn held_by(self) -> Option<LockHolder> {
        let stat = statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let pid = self.holder_of(&stat)?;
        let name = name_of(pid);
        Some(LockHolder {
            pid,
            name: if name.is_empty() { "?".to_owned() } else { name },
            uid: fs::metadata(format!("/proc/{pid}")).ok().map(|it| it.uid()),
        })
    }
}

impl LockFile<'_> {
    /// The holder of the lock, by `/proc/locks` (proc_locks(5)).
    fn holder(self, stat: &Stat) -> Option<String> {
        let pid = self.holder_of(stat)?;
        let name = name_of(pid);
        Some(if name.is_empty() {
            format!("process {pid} has held it for")
        } else {
            format!("process {pid} ({name}) has held it for")
        })
    }

    /// The process that holds the next lock, or else the process that holds this lock.
    fn holder_of(self, stat: &Stat) -> Option<u32> {
        // A command of this project that holds this lock waits for the next lock, or holds both.
        let next = self.next.and_then(|next| fstat(next).ok());
        holder_in(locks, next.map(|next| place(&next)).as_deref(), &place(stat))
    }
}

/// The holder of the lock `next`, or else of the lock `file`, in up to three lists: one answer of the kernel has a page of
/// lines, and each lock that is released before the next answer makes the kernel skip one line.
fn holder_in(mut list: impl FnMut() -> io::Result<String>, next: Option<&str>, file: &str) -> Option<u32> {
    (0..3).find_map(|_| {
        let locks = list().ok()?;
        let behind = next.and_then(|next| holder_pid(&locks, next));
        behind.or_else(|| holder_pid(&locks, file))
    })
}

fn name_of(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii()).escape_debug().to_string()
}

/// `/proc/locks`, in as few reads as possible: the kernel answers each read with up to a page of lines.
fn locks() -> io::Result<String> {
    let mut text = Vec::with_capacity(64 << 10);
    File::open("/proc/locks")?.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The name of a file in `/proc/locks`.
fn place(stat: &Stat) -> String {
    let (device, inode) = (stat.st_dev, stat.st_ino);
    format!("{:02x}:{:02x}:{inode}", major(device), minor(device))
}

fn holder_pid(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            // Who waits is listed below who holds, behind an arrow.
            [_, "FLOCK", _, "WRITE" | "READ", pid, of, ..] if *of == file => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests;
