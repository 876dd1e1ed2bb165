//! The lock of genv's state.
//!
//! Two locks in this order: of `genv.lock`, which genv 1.x takes, and of the state directory itself. Every user can replace
//! a file in that directory, and its owner alone the directory: whatever happens to `genv.lock`, no two commands of this
//! project change the state at the same time.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::atomic::RealDisk;
use super::corrupt;
use super::lock::{
    Attempt, FileLock, LockError, LockFile, LockHolder, MOST_REPLACEMENTS, NoLock, Patience,
    REPLACED,
};

/// The lock of genv 1.x.
pub(super) const LOCK_FILE: &str = "genv.lock";

const WHAT: &str = "genv's state";

/// The lock, released when the value is dropped or the process ends.
#[derive(Debug)]
pub(super) struct StateLock {
    _file: Option<FileLock>,
    _folder: Option<FileLock>,
    /// What people are to know of `genv.lock`.
    pub(super) notice: Option<String>,
}

/// Waits for the lock; for ever without a patience. If `repairs`, what has the name `genv.lock` and is no lock is moved away.
pub(super) fn acquire(
    directory: BorrowedFd<'_>,
    path: &Path,
    patience: Option<Duration>,
    repairs: bool,
) -> Result<StateLock, LockError> {
    let patience = Patience::new(patience);
    let lock_path = path.join(LOCK_FILE);
    let next = open_folder(directory);
    let file = of_file(directory, &lock_path, next.as_ref());
    let mut notice = None;
    // Whoever holds the folder's lock never waits for that of the file: each attempt begins with neither.
    for _ in 0..MOST_REPLACEMENTS {
        let lock = match file.attempt(patience)? {
            Attempt::Locked(lock) => Ok(lock),
            // The name service is asked while nothing is locked.
            Attempt::NoLock(why) => Err((why, file.no_lock(why))),
        };
        let folder = lock_folder(directory, path, patience)?;
        match lock {
            Ok(lock) => {
                if folder.is_none() || file.is_in_place(&lock) {
                    return Ok(StateLock {
                        _file: Some(lock),
                        _folder: folder,
                        notice,
                    });
                }
            }
            Err((_, error)) if folder.is_none() => return Err(error),
            Err(_) if !repairs => {
                return Ok(StateLock {
                    _file: None,
                    _folder: folder,
                    notice,
                });
            }
            Err((why, error)) => {
                // Another command may have moved it away meanwhile.
                if file.open().is_err() {
                    if !is_in_the_way(why) {
                        return Err(error);
                    }
                    match corrupt::move_aside(&RealDisk, directory, LOCK_FILE) {
                        Ok(aside) => notice = Some(moved(&error, &lock_path, &aside)),
                        Err(Errno::NOENT | Errno::EXIST) => {}
                        Err(_) => return Err(error),
                    }
                }
            }
        }
    }
    match lock_folder(directory, path, patience)? {
        None => Err(file.no_lock(REPLACED)),
        folder => Ok(StateLock {
            _file: None,
            _folder: folder,
            notice: Some(notice.unwrap_or_else(|| replaced(&lock_path))),
        }),
    }
}

/// Who holds the lock now, if anybody does and the kernel shows it.
pub(super) fn holder(directory: BorrowedFd<'_>, path: &Path) -> Option<LockHolder> {
    let folder = open_folder(directory);
    let file = of_file(directory, path, folder.as_ref()).held_by();
    file.or_else(|| of_folder(directory, path).held_by())
}

/// Whether something has the name that moving away helps against.
const fn is_in_the_way(why: NoLock) -> bool {
    matches!(
        why,
        NoLock::Foreign(_) | NoLock::Refused(Errno::ACCESS | Errno::PERM)
    )
}

fn replaced(path: &Path) -> String {
    format!(
        "{} is replaced again and again, so that a command of genv 1.x may change the state at the same time: see who \
         does that",
        path.display()
    )
}

fn moved(error: &LockError, path: &Path, aside: &str) -> String {
    let why = match error {
        LockError::Foreign { why, .. } | LockError::Failed { why, .. } => why,
        LockError::TimedOut { .. } => "",
    };
    format!(
        "{} is no lock: {why}. It is kept as {aside}, and genv made a new one",
        path.display()
    )
}

fn of_file<'a>(
    directory: BorrowedFd<'a>,
    path: &'a Path,
    folder: Option<&'a OwnedFd>,
) -> LockFile<'a> {
    LockFile {
        directory,
        name: LOCK_FILE,
        path,
        what: WHAT,
        next: folder.map(std::os::fd::AsFd::as_fd),
    }
}

fn of_folder<'a>(directory: BorrowedFd<'a>, path: &'a Path) -> LockFile<'a> {
    LockFile {
        directory,
        name: ".",
        path,
        what: WHAT,
        next: None,
    }
}

/// The directory, open such that it can be locked; nothing where it may not be read.
fn open_folder(directory: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, ".", flags, Mode::empty()).ok()
}

/// The directory's lock; nothing where its file system has none, as network file systems.
fn lock_folder(
    directory: BorrowedFd<'_>,
    path: &Path,
    patience: Patience,
) -> Result<Option<FileLock>, LockError> {
    let Some(folder) = open_folder(directory) else {
        return Ok(None);
    };
    match of_folder(directory, path).lock(folder, patience) {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Failed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
