//! The processes that wait for devices, and the proof that they wait.
//!
//! The queue is in a file that every user may write. An entry counts only while its process holds a lock (fcntl(2)) on
//! its own file, `genv-waiting-PID`, which no other user may write: the kernel shows the holder of the lock and the
//! owner of the file.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, fchmod, fcntl_lock, fstat, openat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk, geteuid};

use super::atomic::{Disk, RealDisk, is_leftover};
use super::commit::FILES;
use super::confirmed;
use super::corrupt;
use super::members::ProcessId;
use crate::proc::ProcessTable;

/// The number of places of one user in the queue.
pub(super) const MOST_OF_ONE_USER: usize = 8;

/// The number of directory entries that are searched for leftovers of killed commands: every user may fill the
/// directory.
const MOST_LISTED: usize = 1000;

const PREFIX: &str = "genv-waiting-";

/// A process that waits for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its pid.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// The place of this process in the queue. Other processes see it as long as the value lives.
#[derive(Debug)]
pub(super) struct Place(OwnedFd);

impl Place {
    /// Takes the place of this process if the queue has the process, and gives the place up otherwise. The caller holds
    /// the state's lock.
    pub(super) fn keep(
        place: Option<Self>,
        directory: BorrowedFd<'_>,
        queue: &[Waiting],
    ) -> Option<Self> {
        let own = std::process::id();
        let name = name(own);
        if !queue.iter().any(|it| it.pid == own) {
            if place.is_some() {
                let _ = unlinkat(directory, &name, AtFlags::empty());
            }
            return None;
        }
        place
            .filter(|it| it.is_in_place(directory, &name))
            .or_else(|| {
                // Without the file, other processes overtake this one.
                Self::take(directory, &name).ok()
            })
    }

    fn take(directory: BorrowedFd<'_>, name: &str) -> Result<Self, Errno> {
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(_) => drop(corrupt::move_aside(&RealDisk, directory, name)?),
        }
        let file = RealDisk.create(directory, name)?;
        fchmod(&file, Mode::from_raw_mode(0o644))?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(file))
    }

    fn is_in_place(&self, directory: BorrowedFd<'_>, name: &str) -> bool {
        let named = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        fstat(&self.0).is_ok_and(|own| {
            named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino))
        })
    }
}

/// The user of a process that truly waits; nothing without proof.
pub(super) fn user(directory: BorrowedFd<'_>, pid: u32) -> Option<u32> {
    // A process does not see its own locks.
    if pid == std::process::id() {
        return Some(geteuid().as_raw());
    }
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name(pid), flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    let is_own =
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_mode & 0o022 == 0;
    // A lock for writing needs write access, which only the owner has.
    let lock = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??;
    let holder = lock.pid.map(|it| it.as_raw_nonzero().get().cast_unsigned());
    let holds = lock.typ == FlockType::WriteLock && holder == Some(pid);
    (is_own && holds).then_some(stat.st_uid)
}

/// The processes of a queue that truly wait, by `users`, and still have their pids.
pub(super) fn in_order(
    queue: &[ProcessId],
    users: &HashMap<u32, u32>,
    table: &ProcessTable,
) -> Vec<Waiting> {
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    for process in queue {
        let found = table.lineage.get(&process.pid);
        let is_it = found.map_or_else(
            || table.hidden.contains(&process.pid),
            |found| found.start_time_ticks == process.start_time_ticks,
        );
        let is_first = waiting.iter().all(|it| it.pid != process.pid);
        let Some(&uid) = users.get(&process.pid).filter(|_| is_it && is_first) else {
            continue;
        };
        let places = of_user.entry(uid).or_default();
        if *places < MOST_OF_ONE_USER {
            *places += 1;
            let pid = process.pid;
            waiting.push(Waiting { pid, uid });
        }
    }
    waiting
}

/// Removes the leftovers of killed commands: new contents of files, and places of processes that no longer wait. The
/// caller holds the state's lock.
pub(super) fn remove_leftovers(disk: &dyn Disk, directory: BorrowedFd<'_>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Leftovers in an unreadable directory do no harm.
    let Ok(list) = openat(directory, ".", flags, Mode::empty()) else {
        return;
    };
    let entries = Dir::read_from(list.as_fd()).into_iter().flatten();
    for entry in entries.take(MOST_LISTED).flatten() {
        let Ok(file) = entry.file_name().to_str() else {
            continue;
        };
        let waits_no_more = || {
            let pid = file.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok());
            pid.is_some_and(|pid| user(directory, pid).is_none())
        };
        let is_new =
            FILES.iter().any(|name| is_leftover(file, name)) || confirmed::is_leftover(file);
        if is_new || waits_no_more() {
            let _ = disk.remove(directory, file);
        }
    }
}

fn name(pid: u32) -> String {
    format!("{PREFIX}{pid}")
}

#[cfg(test)]
mod tests;
