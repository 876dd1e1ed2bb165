//! The kernel's own process table.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{Pid, test_kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::cgroup::{self, Container};
use super::stat::{self, Stat};
use super::{
    Claim, Lineage, MissingEvidence, ProcessFacts, ProcessRead, ProcessRequest, ProcessSource,
    ProcessTable, UsernameMode, Usernames, environ,
};

/// Where the kernel shows its processes.
const PROC: &str = "/proc";

/// How much of a file is read. The kernel allows environs of 6 MiB; a claim further behind is not looked for.
const MOST_READ_BYTES: usize = 1 << 20;

/// Reads `/proc`.
///
/// All files of one process are opened relative to its directory, which stays that process's: if it
/// ends in between, reading fails, whoever has its pid by then. Reading the environ takes
/// the process's memory lock, and can hang as long as the process's own page faults do: whoever must
/// not wait asks from a thread of its own.
#[derive(Debug)]
pub struct ProcReader {
    root: PathBuf,
    /// Whether `root` shows the processes of this kernel, rather than files that look like it.
    live: bool,
    ticks_per_second: f64,
    boot_time: Option<BootTime>,
    buffer: Vec<u8>,
    path: String,
    /// What stays as it is while a process keeps its user, by pid and start time.
    cache: HashMap<(u32, u64), Identity>,
    usernames: Usernames,
}

#[derive(Clone, Copy, Debug)]
struct BootTime {
    seconds: f64,
    /// What the clocks said when it was read; it moves only when they are set.
    clock_seconds: f64,
}

/// The user and the container of a process.
#[derive(Clone, Debug)]
struct Identity {
    /// Owner of `/proc/PID`, the effective uid when `uid` was read.
    owner: u32,
    uid: Option<u32>,
    container: Option<Container>,
}

/// Why nothing is known of a process.
enum Absence {
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

impl Default for ProcReader {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcReader {
    /// A reader of the running kernel's `/proc`.
    #[must_use]
    pub fn new() -> Self {
        Self::with_root(PROC)
    }

    /// A reader of another directory that is laid out like `/proc`.
    #[must_use]
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        #[expect(
            clippy::cast_precision_loss,
            reason = "clock ticks per second are 100, or 1024 at most"
        )]
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        Self {
            live: root == Path::new(PROC),
            root,
            ticks_per_second,
            boot_time: None,
            buffer: vec![0; 16 * 1024],
            path: String::new(),
            cache: HashMap::new(),
            usernames: Usernames::new(UsernameMode::Name),
        }
    }

    /// Lets [`ProcessSource::username`] answer in another form than names.
    #[must_use]
    pub fn usernames(mut self, mode: UsernameMode) -> Self {
        self.usernames = Usernames::new(mode);
        self
    }

    fn process(&mut self, root: &Root<'_>, pid: u32) -> Result<(ProcessFacts, Lineage), Absence> {
        write_path(&mut self.path, format_args!("{pid}"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(root.directory, self.path.as_str(), flags, Mode::empty())
            .map_err(|errno| absence(self.live, pid, errno))?;
        let directory = directory.as_fd();

        let stat = match read_stat(directory, c"stat", &mut self.buffer) {
            Ok(stat) => stat,
            Err(errno) => return Err(absence(self.live, pid, errno)),
        };
        let comm = String::from_utf8_lossy(stat.comm).into_owned();
        let zombie = stat.is_zombie();
        let lineage = root.lineage(&stat);
        let identity = self.identity(directory, (pid, lineage.start_time_ticks))?;
        let claim = if zombie {
            Claim::Missing(MissingEvidence::Zombie)
        } else {
            self.claim(directory)?
        };
        let facts = ProcessFacts {
            start_time_ticks: lineage.start_time_ticks,
            uid: identity.uid,
            comm,
            container_owner: identity.container.as_ref().and_then(|found| found.owner),
            container_id: identity.container.map(|found| found.id),
            claim,
        };
        Ok((facts, lineage))
    }

    /// Reading `status` costs more than all else together, so it waits for the owner to change.
    fn identity(
        &mut self,
        directory: BorrowedFd<'_>,
        process: (u32, u64),
    ) -> Result<Identity, Absence> {
        let owner = fstat(directory)?.st_uid;
        if let Some(known) = self.cache.get(&process)
            && known.owner == owner
            && self.live
        {
            return Ok(known.clone());
        }
        let uid = match read(directory, c"status", &mut self.buffer) {
            Ok(status) => stat::effective_uid(status.content),
            Err(Errno::NOENT | Errno::SRCH) => return Err(Absence::Vanished),
            Err(_) => None,
        };
        // A kernel without cgroups has no such file, and no containers.
        let container = read(directory, c"cgroup", &mut self.buffer)
            .ok()
            .and_then(|cgroup| cgroup::container(cgroup.content));
        let identity = Identity {
            owner,
            uid,
            container,
        };
        self.cache.insert(process, identity.clone());
        Ok(identity)
    }

    fn claim(&mut self, directory: BorrowedFd<'_>) -> Result<Claim, Absence> {
        match read(directory, c"environ", &mut self.buffer) {
            Ok(environ) if environ.content.is_empty() => {
                // So it is, too, if the process ended after it was found alive.
                let stat = read_stat(directory, c"stat", &mut self.buffer)?;
                Ok(Claim::Missing(if stat.is_zombie() {
                    MissingEvidence::Zombie
                } else {
                    MissingEvidence::EnvironEmpty
                }))
            }
            Ok(environ) => Ok(match environ::claim(environ.content) {
                named @ Claim::Named(_) => named,
                _ if !environ.whole => Claim::Missing(MissingEvidence::EnvironUnreadable),
                silent => silent,
            }),
            Err(Errno::NOENT | Errno::SRCH) => Err(Absence::Vanished),
            Err(_) => Ok(Claim::Missing(MissingEvidence::EnvironUnreadable)),
        }
    }

    fn lineage(&mut self, root: &Root<'_>, pid: u32) -> Result<Lineage, Absence> {
        write_path(&mut self.path, format_args!("{pid}/stat"));
        match read_stat(root.directory, self.path.as_str(), &mut self.buffer) {
            Ok(stat) => Ok(root.lineage(&stat)),
            Err(errno) => Err(absence(self.live, pid, errno)),
        }
    }

    /// `btime` of `/proc/stat`, or the clocks' difference where that cannot be read.
    fn boot_time_seconds(&mut self, root: BorrowedFd<'_>) -> f64 {
        let clock_seconds = seconds(ClockId::Realtime) - seconds(ClockId::Boottime);
        if let Some(known) = self.boot_time
            && self.live
            && (known.clock_seconds - clock_seconds).abs() < 0.5
        {
            return known.seconds;
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "seconds stay exact for 285 million years"
        )]
        let seconds = read(root, c"stat", &mut self.buffer)
            .ok()
            .and_then(|stat| stat::boot_time_seconds(stat.content))
            .map_or(clock_seconds, |btime| btime as f64);
        self.boot_time = Some(BootTime {
            seconds,
            clock_seconds,
        });
        seconds
    }

    fn fill(&mut self, root: &Root<'_>, request: &ProcessRequest, table: &mut ProcessTable) {
        for &pid in &request.processes {
            if table.processes.contains_key(&pid) {
                continue;
            }
            let read = match self.process(root, pid) {
                Ok((facts, lineage)) => {
                    table.lineage.insert(pid, lineage);
                    ProcessRead::Present(facts)
                }
                Err(Absence::Vanished) => ProcessRead::Vanished,
                Err(Absence::Hidden) => ProcessRead::Unreadable,
            };
            table.processes.insert(pid, read);
        }
        for pid in &request.processes {
            let mut parent = table.lineage.get(pid).map_or(0, |lineage| lineage.parent);
            // What is known already has been followed already, so that even a loop ends.
            while parent != 0 && !table.lineage.contains_key(&parent) {
                match self.lineage(root, parent) {
                    Ok(lineage) => {
                        table.lineage.insert(parent, lineage);
                        parent = lineage.parent;
                    }
                    Err(absence) => {
                        if matches!(absence, Absence::Hidden) {
                            table.hidden.insert(parent);
                        }
                        break;
                    }
                }
            }
        }
        // Members come last: their ancestors are not wanted, and must not end a walk above.
        for &pid in &request.members {
            if table.lineage.contains_key(&pid) {
                continue;
            }
            match self.lineage(root, pid) {
                Ok(lineage) => {
                    table.lineage.insert(pid, lineage);
                }
                Err(Absence::Hidden) => {
                    table.hidden.insert(pid);
                }
                Err(Absence::Vanished) => {}
            }
        }
    }
}

impl ProcessSource for ProcReader {
    /// Reads `/proc` once. Without a `/proc`, every process is unreadable and every member hidden.
    fn read(&mut self, request: &ProcessRequest) -> ProcessTable {
        let mut table = ProcessTable::default();
        table.processes.reserve(request.processes.len());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root: OwnedFd = match openat(CWD, self.root.as_path(), flags, Mode::empty()) {
            Ok(root) => root,
            Err(_) => {
                let unreadable = |&pid: &u32| (pid, ProcessRead::Unreadable);
                table.processes = request.processes.iter().map(unreadable).collect();
                table.hidden = request.members.iter().copied().collect();
                return table;
            }
        };
        let root = Root {
            directory: root.as_fd(),
            boot_time_seconds: self.boot_time_seconds(root.as_fd()),
            ticks_per_second: self.ticks_per_second,
        };
        self.fill(&root, request, &mut table);
        let present: HashSet<(u32, u64)> = table
            .processes
            .iter()
            .filter_map(|(&pid, read)| match read {
                ProcessRead::Present(facts) => Some((pid, facts.start_time_ticks)),
                ProcessRead::Vanished | ProcessRead::Unreadable => None,
            })
            .collect();
        self.cache.retain(|process, _| present.contains(process));
        table
    }

    fn username(&mut self, uid: u32) -> String {
        self.usernames.username(uid)
    }
}

/// An open `/proc`, and what turns its ticks into time.
struct Root<'a> {
    directory: BorrowedFd<'a>,
    boot_time_seconds: f64,
    ticks_per_second: f64,
}

impl Root<'_> {
    fn lineage(&self, stat: &Stat<'_>) -> Lineage {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a tick is exact for 2 million years of uptime"
        )]
        let ticks = stat.start_time_ticks as f64;
        Lineage {
            start_time_ticks: stat.start_time_ticks,
            start_timestamp_seconds: self.boot_time_seconds + ticks / self.ticks_per_second,
            parent: stat.parent,
        }
    }
}

/// What was read of a file.
struct Content<'a> {
    content: &'a [u8],
    /// Whether this is all of it.
    whole: bool,
}

/// Reads a file into the buffer, which grows up to [`MOST_READ_BYTES`].
///
/// A read that does not fill the buffer was the last: the files of `/proc` are made in one piece.
fn read<'a>(
    directory: BorrowedFd<'_>,
    name: impl Arg,
    buffer: &'a mut Vec<u8>,
) -> Result<Content<'a>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = openat(directory, name, flags, Mode::empty())?;
    let mut length = 0;
    loop {
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut buffer[length..]))?;
        length += read;
        let whole = length < buffer.len();
        if whole || length >= MOST_READ_BYTES {
            return Ok(Content {
                content: &buffer[..length],
                whole,
            });
        }
        buffer.resize(length * 2, 0);
    }
}

fn read_stat<'a>(
    directory: BorrowedFd<'_>,
    name: impl Arg,
    buffer: &'a mut Vec<u8>,
) -> Result<Stat<'a>, Errno> {
    let stat = read(directory, name, buffer)?;
    Stat::parse(stat.content).ok_or(Errno::INVAL)
}

/// Builds a path in place of the last one.
fn write_path(path: &mut String, arguments: std::fmt::Arguments<'_>) {
    path.clear();
    path.write_fmt(arguments)
        .expect("writing to a string never fails");
}

/// What it means that a process cannot be opened.
fn absence(live: bool, pid: u32, errno: Errno) -> Absence {
    match Absence::from(errno) {
        // With `hidepid=2`, what may not be seen seems not to exist; signal 0 sees it.
        Absence::Vanished if live && exists(pid) => Absence::Hidden,
        absence => absence,
    }
}

/// Whether a process exists, whether or not it may be seen (kill(2)).
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM)))
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    #[expect(
        clippy::cast_precision_loss,
        reason = "half a second is all that matters"
    )]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

#[cfg(test)]
mod tests;
