//! The lock of genv's state.
//!
//! The lock consists of two locks, in this order: on `genv.lock`, which genv 1.x takes, and on the state directory
//! itself. Every user can replace a file in that directory; only its owner can replace the directory. So no two
//! commands of this project change the state at the same time, even if a user replaces `genv.lock`.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, accessat};
use rustix::io::Errno;

use super::corrupt;
use crate::files::{
    self, Attempt, FileLock, LockError, LockFile, LockHolder, MOST_REPLACEMENTS, NoLock, Patience, REPLACED, RealDisk,
};

/// The lock file of genv 1.x.
pub(super) const LOCK_FILE: &str = "genv.lock";

const WHAT: &str = "genv's state";

/// The lock, released when the value is dropped or the process ends.
#[derive(Debug)]
pub(super) struct StateLock {
    _file: Option<FileLock>,
    _folder: Option<FileLock>,
    /// A message to the user about `genv.lock`.
    pub(super) notice: Option<String>,
}

/// Waits for the lock, without `patience` without a limit. With `repairs`, moves away anything named `genv.lock` that
/// cannot be a lock.
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
    // A holder of the folder's lock never waits for the file's lock: each attempt begins without locks.
    for _ in 0..MOST_REPLACEMENTS {
        let lock = match file.attempt(patience)? {
            Attempt::Locked(lock) => Ok(lock),
            // The name service is called while no lock is held.
            Attempt::NoLock(why) => Err((why, file.no_lock(why))),
        };
        let folder = lock_folder(directory, path, patience)?;
        match lock {
            Ok(lock) => {
                if folder.is_none() || file.is_in_place(&lock) {
                    return Ok(StateLock { _file: Some(lock), _folder: folder, notice });
                }
            }
            Err((_, error)) if folder.is_none() => return Err(error),
            Err(_) if !repairs => {
                return Ok(StateLock { _file: None, _folder: folder, notice });
            }
            Err((why, error)) => {
                // Another command may have moved the obstacle away meanwhile.
                if file.open().is_err() {
                    if !is_in_the_way(why) {
                        return Err(error);
                    }
                    match corrupt::move_aside(&RealDisk, directory, LOCK_FILE) {
                        Ok(aside) => notice = Some(moved(&error, &lock_path, &aside)),
                        // The obstacle is the directory.
                        Err(Errno::NOENT) if !is_writable(directory) => return Err(error),
                        Err(Errno::NOENT | Errno::EXIST) => {}
                        Err(_) => return Err(error),
                    }
                }
            }
        }
    }
    match lock_folder(directory, path, patience)? {
        None => Err(file.no_lock(REPLACED)),
        folder => {
            Ok(StateLock { _file: None, _folder: folder, notice: Some(notice.unwrap_or_else(|| replaced(&lock_path))) })
        }
    }
}

/// The current holder of the lock, if there is one and the kernel shows it.
pub(super) fn holder(directory: BorrowedFd<'_>, path: &Path) -> Option<LockHolder> {
    let folder = open_folder(directory);
    let file = of_file(directory, path, folder.as_ref()).held_by();
    file.or_else(|| of_folder(directory, path).held_by())
}

/// Whether moving the file away removes the obstacle.
const fn is_in_the_way(why: NoLock) -> bool {
    matches!(why, NoLock::Foreign(_) | NoLock::Refused(Errno::ACCESS | Errno::PERM))
}

fn is_writable(directory: BorrowedFd<'_>) -> bool {
    accessat(directory, ".", Access::WRITE_OK, AtFlags::EACCESS).is_ok()
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
    format!("{} is no lock: {why}. It is kept as {aside}, and genv made a new one", path.display())
}

fn of_file<'a>(directory: BorrowedFd<'a>, path: &'a Path, folder: Option<&'a OwnedFd>) -> LockFile<'a> {
    LockFile { directory, name: LOCK_FILE, path, what: WHAT, next: folder.map(std::os::fd::AsFd::as_fd) }
}

fn of_folder<'a>(directory: BorrowedFd<'a>, path: &'a Path) -> LockFile<'a> {
    LockFile { directory, name: ".", path, what: WHAT, next: None }
}

/// The open directory, ready to be locked; `None` if this program may not read it.
fn open_folder(directory: BorrowedFd<'_>) -> Option<OwnedFd> {
    files::open_folder(directory, ".").ok()
}

/// The directory's lock; `None` if the file system supports no locks, as some network file systems.
fn lock_folder(directory: BorrowedFd<'_>, path: &Path, patience: Patience) -> Result<Option<FileLock>, LockError> {
    let Some(folder) = open_folder(directory) else {
        return Ok(None);
    };
    match of_folder(directory, path).lock(folder, patience) {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Failed { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
