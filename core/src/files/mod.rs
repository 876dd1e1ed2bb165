//! Files in places where other users may write: opened without following or waiting, replaced as a whole, locked, watched.

mod atomic;
mod events;
mod lock;
mod open;
mod watch;

pub(crate) use atomic::is_leftover;
pub use atomic::{Disk, FlushedDisk, Prepared, RealDisk};
pub(crate) use lock::{Attempt, LockFile, MOST_REPLACEMENTS, NoLock, Patience, REPLACED};
pub use lock::{FileLock, LockError, LockHolder};
pub(crate) use open::open_in_time;
pub use open::{
    is_in_place, is_regular, open, open_folder, open_folder_through_links, open_through_links, read_at_most,
};
pub use watch::Watched;

use rustix::io::Errno;

/// What to do where a file system is mounted read-only.
pub(crate) const READ_ONLY: &str = "its file system is mounted read-only: set GENV_TMPDIR to another directory";

/// The error in words.
pub(crate) fn io_error(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

/// What to do about an error of writing.
pub(crate) fn write_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => "make room on its file system",
        Errno::ROFS => READ_ONLY,
        Errno::ACCESS | Errno::PERM => "let everybody write to its directory, as genv does (0777), or ask who owns it",
        _ => "see whether its file system is mounted and well",
    }
}
