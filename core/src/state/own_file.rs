//! Files in the state directory that belong to one user: their owner alone may write them.
//!
//! Every user may write the state, so they do not show who wrote a value. The kernel does: a reader takes such a
//! file only if it belongs to the user in its name, and no other user may write to it.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, fstat, statat};
use rustix::io::Errno;

use super::corrupt;
use crate::files::{self, Disk, Prepared, is_regular, read_at_most};

/// The most bytes of such a file: this project writes no larger one.
pub(super) const MOST_BYTES: u64 = 64 << 10;

/// The obstacle that kept a file from being replaced.
#[derive(Debug)]
pub(super) struct Obstacle {
    /// The owner of the folder in its place, if there was a folder.
    pub(super) owner: Option<u32>,
    /// The new name of the folder, or the reason why the file was not written.
    pub(super) outcome: Result<String, Errno>,
}

/// The content of a user's file.
pub(super) struct OwnContent {
    pub(super) bytes: Vec<u8>,
    /// Whether the file got its name long after it was written. Every user may move the file away, and later back over
    /// a newer one, but cannot hide the move: the kernel records the time of a rename (st_ctime of inode(7)).
    pub(super) was_moved: bool,
}

/// The most seconds between the last write to a new file and its rename.
const RENAMED_WITHIN_SECONDS: i64 = 2;

/// The content of the file `name`, if it is a file that this user alone may write.
pub(super) fn read(directory: BorrowedFd<'_>, name: &str, uid: u32) -> Option<OwnContent> {
    let file = files::open(directory, name, OFlags::RDONLY).ok()?;
    let stat = fstat(&file).ok()?;
    if !is_regular(&stat) || stat.st_uid != uid || stat.st_mode & 0o022 != 0 {
        return None;
    }
    let bytes = read_at_most(file, MOST_BYTES).ok()??;
    let was_moved = stat.st_ctime.saturating_sub(stat.st_mtime) > RENAMED_WITHIN_SECONDS;
    Some(OwnContent { bytes, was_moved })
}

/// Replaces the caller's file. A folder in its place is moved aside.
pub(super) fn replace(directory: BorrowedFd<'_>, name: &str, content: &[u8]) -> Option<Obstacle> {
    let replace = || Prepared::new(&OwnFile, directory, name, content).and_then(Prepared::commit);
    let errno = replace().err()?;
    // A rename cannot replace a folder, but every user may move the folder away.
    let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let folder = found.filter(|it| FileType::from_raw_mode(it.st_mode) == FileType::Directory);
    let moved_to = folder.and_then(|_| {
        let aside = corrupt::move_aside(&OwnFile, directory, name).ok()?;
        replace().is_ok().then_some(aside)
    });
    Some(Obstacle { owner: folder.map(|it| it.st_uid), outcome: moved_to.ok_or(errno) })
}

/// Whether a file is a leftover of a killed command of any user that wrote a file `PREFIX-UID.json`.
pub(super) fn is_leftover(file: &str, prefix: &str) -> bool {
    let uid = file.strip_prefix('.').and_then(|it| it.strip_prefix(prefix));
    let rest = uid.map(|it| it.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    rest.is_some_and(|rest| rest.starts_with(".json.new"))
}

/// The disk, with files that their owner alone may write.
#[derive(Debug)]
struct OwnFile;

impl Disk for OwnFile {
    fn share(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        fchmod(file, Mode::from_raw_mode(0o644))
    }
}
