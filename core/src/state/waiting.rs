//! The processes that wait for devices, and the proof that they wait.
//!
//! The queue is in a file that every user may write. An entry counts only while its process holds a lock (fcntl(2)) on
//! its own file, `genv-waiting-PID`, which no other user may write: the kernel shows the holder of the lock and the
//! owner of the file. The file contains the request of the process ([`RequestedDevices`]).

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, fchmod, fcntl_lock, fstat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk, geteuid};

use super::confirmed;
use super::corrupt;
use super::data::ProcessId;
use super::host::FILES;
use super::import;
use super::leases;
use super::queue::{MOST_OF_ONE_USER, RequestedDevices, Waiting};
use crate::files::{self, Disk, RealDisk, is_in_place, is_leftover, is_regular};
use crate::proc::{ProcessRequest, ProcessSource, ProcessTable};

/// The number of directory entries that are searched for leftovers of killed commands: every user may fill the
/// directory.
const MOST_LISTED: usize = 1000;

/// The length of the file of a waiting process; a longer file has no request. Its user may write anything into it.
const MOST_REQUEST_BYTES: u64 = 1024;

const PREFIX: &str = "genv-waiting-";

/// The place of this process in the queue. Other processes see it as long as the value lives.
#[derive(Debug)]
pub(super) struct QueuePlace(File);

impl QueuePlace {
    /// Takes the place of this process if the queue has the process, and gives the place up otherwise. The caller holds
    /// the state's lock.
    pub(super) fn keep(place: Option<Self>, directory: BorrowedFd<'_>, queue: &[Waiting]) -> Option<Self> {
        let own = std::process::id();
        let name = name(own);
        let Some(own) = queue.iter().find(|it| it.pid == own) else {
            if place.is_some() {
                let _ = unlinkat(directory, &name, AtFlags::empty());
            }
            return None;
        };
        place.filter(|it| is_in_place(directory, &name, &it.0)).or_else(|| {
            // Without the file, other processes overtake this one.
            Self::take(directory, &name, own.request.as_ref()).ok()
        })
    }

    fn take(directory: BorrowedFd<'_>, name: &str, request: Option<&RequestedDevices>) -> Result<Self, Errno> {
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(_) => drop(corrupt::move_aside(&RealDisk, directory, name)?),
        }
        let mut file = File::from(RealDisk.create(directory, name)?);
        fchmod(&file, Mode::from_raw_mode(0o644))?;
        fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        if let Some(content) = request.and_then(|it| serde_json::to_vec(it).ok()) {
            // A place counts without a request too, as on a full disk.
            let _ = file.write_all(&content);
        }
        Ok(Self(file))
    }
}

/// A process that waits; `None` without proof.
pub(super) fn waiting(directory: BorrowedFd<'_>, pid: u32) -> Option<Waiting> {
    // A process does not see its own locks.
    if pid == std::process::id() {
        return Some(Waiting { pid, uid: geteuid().as_raw(), request: None, since_timestamp_seconds: None });
    }
    let file = files::open(directory, name(pid), OFlags::RDONLY).ok()?;
    let stat = fstat(&file).ok()?;
    let is_own = is_regular(&stat) && stat.st_mode & 0o022 == 0;
    // A lock for writing needs write access, which only the owner has.
    let lock = fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??;
    let holder = lock.pid.map(|it| it.as_raw_nonzero().get().cast_unsigned());
    let holds = lock.typ == FlockType::WriteLock && holder == Some(pid);
    (is_own && holds).then(|| Waiting {
        pid,
        uid: stat.st_uid,
        request: request(file.into()),
        since_timestamp_seconds: Some(stat.st_mtime),
    })
}

fn request(file: File) -> Option<RequestedDevices> {
    let mut content = Vec::new();
    file.take(MOST_REQUEST_BYTES).read_to_end(&mut content).ok()?;
    serde_json::from_slice(&content).ok()
}

/// The search for a place: [`waiting`], except in tests.
pub(super) type FindWaiting = fn(BorrowedFd<'_>, u32) -> Option<Waiting>;

/// The processes of a queue that have a place and are not stopped, by pid.
pub(super) fn places(
    directory: BorrowedFd<'_>,
    queue: &[ProcessId],
    processes: &mut dyn ProcessSource,
    find: FindWaiting,
) -> HashMap<u32, Waiting> {
    let able = queue.iter().filter(|it| processes.can_act(it.pid));
    able.filter_map(|it| Some((it.pid, find(directory, it.pid)?))).collect()
}

/// The processes of a queue that wait now, with proof by the kernel, in order of arrival.
pub(super) fn now(
    directory: BorrowedFd<'_>,
    queue: &[ProcessId],
    processes: &mut dyn ProcessSource,
    find: FindWaiting,
) -> Vec<Waiting> {
    let places = places(directory, queue, processes, find);
    let table =
        processes.read(&ProcessRequest { members: places.keys().copied().collect(), ..ProcessRequest::default() });
    in_order(queue, &places, &table)
}

/// The processes of a queue that have a place in `places` and still have their pids.
pub(super) fn in_order(queue: &[ProcessId], places: &HashMap<u32, Waiting>, table: &ProcessTable) -> Vec<Waiting> {
    let mut of_user: HashMap<u32, usize> = HashMap::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    for process in queue {
        let found = table.lineage.get(&process.pid);
        let is_same = found.map_or_else(
            || table.hidden.contains(&process.pid),
            |found| found.start_time_ticks == process.start_time_ticks,
        );
        let is_first = waiting.iter().all(|it| it.pid != process.pid);
        let place = places.get(&process.pid);
        let Some(place) = place.filter(|_| is_same && is_first) else {
            continue;
        };
        let count = of_user.entry(place.uid).or_default();
        if *count < MOST_OF_ONE_USER {
            *count += 1;
            waiting.push(place.clone());
        }
    }
    waiting
}

/// Removes the leftovers of killed commands: new contents of files, and places of processes that no longer wait. The
/// caller holds the state's lock.
pub(super) fn remove_leftovers(disk: &dyn Disk, directory: BorrowedFd<'_>) {
    // Leftovers in an unreadable directory do no harm.
    let Ok(list) = files::open_folder(directory, ".") else {
        return;
    };
    let entries = Dir::read_from(list.as_fd()).into_iter().flatten();
    for entry in entries.take(MOST_LISTED).flatten() {
        let Ok(file) = entry.file_name().to_str() else {
            continue;
        };
        let waits_no_more = || {
            let pid = file.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok());
            pid.is_some_and(|pid| waiting(directory, pid).is_none())
        };
        let is_new = FILES.iter().chain(&import::FILES).any(|name| is_leftover(file, name))
            || confirmed::is_leftover(file)
            || leases::is_leftover(file);
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
