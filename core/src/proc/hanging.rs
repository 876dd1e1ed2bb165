//! Reads of files that a user can block.
//!
//! The kernel reads the environ and the command line of a process from the memory of that process, under the lock of
//! that memory. A process can hold this lock as long as its user likes: one of its pages, or a mapping under way, waits
//! for a file system of that user (FUSE). So a thread of its own reads. The caller waits [`PATIENCE`] for a read, then
//! leaves the thread behind, and does not read that process again until the thread returns. Content that was not read
//! is not known. A thread whose reads all ended may read again for the same caller.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt as _};
use rustix::io::Errno;

use super::environ::{buffer, read_environ};
use super::stat::{self, Stat};

/// The time limit of one read.
const PATIENCE: Duration = Duration::from_millis(250);

/// The interval between two checks for a hanging read.
const LOOK: Duration = Duration::from_millis(50);

/// The most processes whose reads may hang during one answer. The remaining processes of that answer are not read.
pub(super) const MOST_AT_ONCE: usize = 4;

/// The most processes of one user whose reads may hang. Other processes of that user are not read meanwhile.
const MOST_OF_USER: usize = 2;

/// The most processes whose reads may hang. Each keeps a thread.
const MOST: usize = 64;

/// A process, by its pid and its start in ticks.
type Process = (u32, u64);

/// The processes whose reads hang.
#[derive(Debug)]
pub(super) struct Hanging {
    /// The directory in which the kernel shows its processes.
    root: PathBuf,
    /// The processes, each with its real user.
    processes: Mutex<BTreeMap<Process, Option<u32>>>,
}

/// A thread that runs one job after another, and ends when this value is dropped and its last job has ended. It has the
/// user and the namespaces of the thread that started it.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

type Job = Box<dyn FnOnce() + Send>;

/// The processes of the running kernel, one value for this whole program.
static LIVE: LazyLock<Arc<Hanging>> = LazyLock::new(|| Arc::new(Hanging::of(Path::new("/proc"))));

/// The current read of a thread.
#[derive(Debug)]
pub(super) struct Watch {
    hanging: Arc<Hanging>,
    reads: Mutex<Option<Reading>>,
    /// Whether the thread starts no further read.
    gives_up: bool,
}

#[derive(Debug)]
struct Reading {
    pid: u32,
    since: Instant,
    /// The hanging process, once it is remembered.
    hangs: Option<Process>,
}

/// The time of one read.
pub(super) struct ReadGuard<'a>(&'a Watch);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hanging {
    pub(super) fn live() -> Arc<Self> {
        Arc::clone(&LIVE)
    }

    pub(super) fn of(root: &Path) -> Self {
        Self { root: root.to_owned(), processes: Mutex::default() }
    }

    /// Runs `work` on another thread, which reads by a [`Watch`]. Returns nothing if a read hangs or no thread starts.
    /// `idle` is the thread of the last work, if that work ended.
    pub(super) fn watched<T: Send + 'static>(
        self: &Arc<Self>,
        idle: &mut Option<Worker>,
        gives_up: bool,
        work: impl FnOnce(&Arc<Watch>) -> T + Send + 'static,
    ) -> Option<T> {
        let watch = Arc::new(Watch { hanging: Arc::clone(self), reads: Mutex::default(), gives_up });
        // No read is possible without a thread.
        let worker = idle.take().or_else(|| Worker::start().ok())?;
        let (sender, receiver) = sync_channel(1);
        let its_watch = Arc::clone(&watch);
        let job: Job = Box::new(move || drop(sender.send(work(&its_watch))));
        // A worker that cannot take the job drops it, and its sender.
        drop(worker.jobs.send(job));
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(done) => {
                    *idle = Some(worker);
                    return Some(done);
                }
                Err(RecvTimeoutError::Timeout) if watch.hangs() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match worker.thread.join() {
                    Ok(()) => return None,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
            }
        }
    }

    /// Whether a read of this process is refused: its own read hangs, or too many other reads do.
    fn refuses(&self, pid: u32) -> bool {
        let processes = lock(&self.processes);
        if processes.is_empty() {
            return false;
        }
        if processes.len() >= MOST {
            return true;
        }
        let user = self.user(pid);
        let of_user = processes.values().filter(|it| **it == user).count();
        let started = self.started(pid);
        of_user >= MOST_OF_USER || started.is_some_and(|it| processes.contains_key(&(pid, it)))
    }

    /// The start of a process. Its `stat` never hangs.
    fn started(&self, pid: u32) -> Option<u64> {
        let content = std::fs::read(self.root.join(format!("{pid}/stat"))).ok()?;
        Stat::parse(&content).map(|stat| stat.start_time_ticks)
    }

    /// The real user of a process; setuid programs do not change it.
    fn user(&self, pid: u32) -> Option<u32> {
        let content = std::fs::read(self.root.join(format!("{pid}/status"))).ok()?;
        stat::uids(&content).map(|uids| uids.real)
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (sender, jobs) = channel::<Job>();
        let thread = thread::Builder::new().name("environs".to_owned());
        Ok(Self { jobs: sender, thread: thread.spawn(move || jobs.into_iter().for_each(|job| job()))? })
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> thread::ThreadId {
        self.thread.thread().id()
    }
}

impl Watch {
    /// Begins a read that may hang; returns nothing if the read is refused.
    pub(super) fn begin(&self, pid: u32) -> Option<ReadGuard<'_>> {
        if self.gives_up || self.hanging.refuses(pid) {
            return None;
        }
        *lock(&self.reads) = Some(Reading { pid, since: Instant::now(), hangs: None });
        Some(ReadGuard(self))
    }

    /// Whether the current read hangs. If so, remembers its process.
    fn hangs(&self) -> bool {
        let mut reads = lock(&self.reads);
        let Some(reading) = reads.as_mut().filter(|it| it.since.elapsed() >= PATIENCE) else {
            return false;
        };
        let process = (reading.pid, self.hanging.started(reading.pid).unwrap_or_default());
        let user = self.hanging.user(reading.pid);
        lock(&self.hanging.processes).insert(process, user);
        reading.hangs = Some(process);
        true
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        let reading = lock(&self.0.reads).take();
        if let Some(process) = reading.and_then(|it| it.hangs) {
            lock(&self.0.hanging.processes).remove(&process);
        }
    }
}

/// The result of `read` for each of these processes; one buffer serves all. Processes that cannot be read in time are
/// left out.
pub(crate) fn read_in_time<T: Send + 'static>(
    mut pids: Vec<u32>,
    read: impl Fn(u32, &mut Vec<u8>) -> T + Send + Sync + 'static,
) -> HashMap<u32, T> {
    let results = Arc::new(Mutex::new(HashMap::new()));
    let read = Arc::new(read);
    let mut worker = None;
    for attempt in 0..=MOST_AT_ONCE {
        let (all, into, read) = (pids.clone(), Arc::clone(&results), Arc::clone(&read));
        let gives_up = attempt == MOST_AT_ONCE;
        let done = Hanging::live().watched(&mut worker, gives_up, move |watch| {
            let mut buffer = buffer();
            for pid in all {
                if let Some(_guard) = watch.begin(pid) {
                    let result = read(pid, &mut buffer);
                    lock(&into).insert(pid, result);
                }
            }
        });
        if done.is_some() {
            break;
        }
        let results = lock(&results);
        pids.retain(|pid| !results.contains_key(pid));
    }
    std::mem::take(&mut lock(&results))
}

/// The result of `make` for the environ of each of these processes. Processes that cannot be read in time are left out.
pub(crate) fn read_environs<T: Send + 'static>(
    pids: Vec<u32>,
    make: impl Fn(u32, Result<&[u8], Errno>) -> T + Send + Sync + 'static,
) -> HashMap<u32, T> {
    read_in_time(pids, move |pid, buffer| make(pid, read_environ(pid, buffer)))
}

/// Whether this program may read the environ of a process.
///
/// # Errors
/// This program may not read the environ, the process has ended, or the read takes too long.
pub fn may_read_environ(pid: u32) -> io::Result<()> {
    let read = read_environs(vec![pid], |_, environ| environ.map(drop)).remove(&pid);
    read.unwrap_or(Err(Errno::TIMEDOUT)).map_err(io::Error::from)
}
