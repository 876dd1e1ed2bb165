//! Opening what another user may have put in a file's place.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Opening a pipe must not wait for its other end, and a terminal must not become that of this program.
const NO_WAITING: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The time for which a lease (fcntl(2), `F_SETLEASE`) may delay a reader. A well-behaved holder, such as a file
/// server, gives the lease up as soon as the kernel asks for it; any other holder keeps it for
/// `/proc/sys/fs/lease-break-time`.
const LEASE_PATIENCE: Duration = Duration::from_millis(50);

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens what has this name, which may be no file, without waiting for another process. A link is not followed.
///
/// # Errors
/// The error of the system: ELOOP for a link, ENXIO for a socket, EAGAIN while a program has a lease on the file.
pub fn open(directory: impl AsFd, name: impl Arg, access: OFlags) -> Result<OwnedFd, Errno> {
    openat(directory, name, access | OFlags::NOFOLLOW | NO_WAITING, Mode::empty())
}

/// As [`open`], but waits a moment for the holder of a lease.
pub(crate) fn open_in_time(directory: BorrowedFd<'_>, name: &str, access: OFlags) -> Result<OwnedFd, Errno> {
    let began = Instant::now();
    loop {
        match open(directory, name, access) {
            Err(Errno::AGAIN) if began.elapsed() < LEASE_PATIENCE => thread::sleep(LEASE_PATIENCE / 10),
            opened => return opened,
        }
    }
}

/// As [`open`], but follows links: for a file that the user of this program has named.
///
/// # Errors
/// The error of the system.
pub fn open_through_links(directory: impl AsFd, name: impl Arg, access: OFlags) -> Result<OwnedFd, Errno> {
    openat(directory, name, access | NO_WAITING, Mode::empty())
}

/// Opens a folder for reading. A link is not followed.
///
/// # Errors
/// The error of the system: ELOOP or ENOTDIR for a link.
pub fn open_folder(directory: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    openat(directory, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
}

/// As [`open_folder`], but follows links: for a folder that the user of this program has named.
///
/// # Errors
/// The error of the system.
pub fn open_folder_through_links(directory: impl AsFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    openat(directory, name, FOLDER, Mode::empty())
}

/// Whether this is a regular file.
pub const fn is_regular(stat: &Stat) -> bool {
    matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile)
}

/// Whether the open file is the one that has this name now.
pub fn is_in_place(directory: impl AsFd, name: impl Arg, file: impl AsFd) -> bool {
    let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    let place = |stat: Stat| (stat.st_dev, stat.st_ino);
    matches!((named.map(place), fstat(file).map(place)), (Ok(named), Ok(open)) if named == open)
}

/// The content of an open file; nothing if it has more than `most_bytes`.
///
/// # Errors
/// It cannot be read.
pub fn read_at_most(file: OwnedFd, most_bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    File::from(file).take(most_bytes + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= most_bytes).then_some(content))
}
