//! Opening and reading the files of `/proc`.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::path::Arg;
use rustix::process::{Pid, test_kill_process};

use super::stat::Stat;
use super::{Lineage, UserNamespace};

/// The most bytes of a file that are read. The kernel allows environs of 6 MiB; a claim beyond this limit is not found.
pub(super) const MOST_READ_BYTES: usize = 1 << 20;

/// The number of threads that are searched for one that has not ended.
const MOST_THREADS: usize = 16;

/// Why a process cannot be read.
pub(super) enum Absence {
    Vanished,
    Hidden,
}

impl From<Errno> for Absence {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::SRCH => Self::Vanished,
            _ => Self::Hidden,
        }
    }
}

/// An open `/proc`, with the values that convert its ticks to time.
pub(super) struct Root<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) boot_time_seconds: f64,
    pub(super) ticks_per_second: f64,
    pub(super) namespace: &'static UserNamespace,
}

impl Root<'_> {
    /// A lineage. `uid` is a uid of this program's user namespace.
    pub(super) fn lineage(&self, start_time_ticks: u64, parent: u32, uid: Option<u32>) -> Lineage {
        #[expect(clippy::cast_precision_loss, reason = "a tick is exact for 2 million years of uptime")]
        let ticks = start_time_ticks as f64;
        Lineage {
            start_time_ticks,
            start_timestamp_seconds: self.boot_time_seconds + ticks / self.ticks_per_second,
            parent,
            uid: uid.and_then(|uid| self.namespace.user(uid)),
        }
    }
}

/// The content of a file.
pub(super) struct Content<'a> {
    pub(super) content: &'a [u8],
    /// Whether this is the whole file.
    pub(super) whole: bool,
}

/// Opens a file and reads it into the buffer, which grows up to [`MOST_READ_BYTES`].
pub(super) fn read<'a>(
    directory: BorrowedFd<'_>,
    name: impl Arg,
    buffer: &'a mut Vec<u8>,
) -> Result<Content<'a>, Errno> {
    read_from(&open(directory, name)?, buffer)
}

/// Opens a file to read it.
pub(super) fn open(directory: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    openat(directory, name, flags, Mode::empty())
}

/// Reads a file from its beginning into the buffer, which grows up to [`MOST_READ_BYTES`].
///
/// A read that does not fill the buffer is the last one, since the kernel creates a file of `/proc` in one piece.
pub(super) fn read_from<'a>(file: &OwnedFd, buffer: &'a mut Vec<u8>) -> Result<Content<'a>, Errno> {
    let mut length = 0;
    loop {
        let read = retry_on_intr(|| pread(file, &mut buffer[length..], length as u64))?;
        length += read;
        let whole = length < buffer.len();
        if whole || length >= MOST_READ_BYTES {
            return Ok(Content { content: &buffer[..length], whole });
        }
        buffer.resize(length * 2, 0);
    }
}

pub(super) fn read_stat<'a>(
    directory: BorrowedFd<'_>,
    name: impl Arg,
    buffer: &'a mut Vec<u8>,
) -> Result<Stat<'a>, Errno> {
    let stat = read(directory, name, buffer)?;
    Stat::parse(stat.content).ok_or(Errno::INVAL)
}

/// The first threads of a process that the kernel lists. The kernel lists an ended thread only if it is the process's
/// first thread.
pub(super) fn threads(directory: BorrowedFd<'_>, task: impl Arg) -> Result<Vec<String>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let task = openat(directory, task, flags, Mode::empty())?;
    let entries = Dir::new(task)?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    let threads = names.filter(|name| name.parse::<u32>().is_ok());
    Ok(threads.take(MOST_THREADS).collect())
}

/// The meaning of an error of opening a process.
pub(super) fn absence(live: bool, pid: u32, errno: Errno) -> Absence {
    match Absence::from(errno) {
        // With `hidepid=2` a hidden process seems not to exist; signal 0 reaches it.
        Absence::Vanished if live && exists(pid) => Absence::Hidden,
        absence => absence,
    }
}

/// Whether a process exists, even if it is hidden (kill(2)).
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}
