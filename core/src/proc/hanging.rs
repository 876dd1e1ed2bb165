//! Reading what a user can keep from being read.
//!
//! The environ and the command line of a process are read from its memory, which takes the lock of that memory. A process can
//! hold this lock for as long as its user likes: a page of it, or a mapping that it makes, waits for a file system of that user
//! (FUSE). Whatever reads them runs on a thread of its own, is waited for as long as [`PATIENCE`], and is left behind then. The
//! process is remembered and not read again until that thread comes back. What is not read is not known.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::environ::{buffer, read_environ};
use super::stat::{self, Stat};

/// How long the read of one process may take.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often it is looked whether a read hangs.
const LOOK: Duration = Duration::from_millis(50);

/// Of how many processes reads may hang while one answer is waited for. The other processes of that answer are not read.
pub(super) const MOST_AT_ONCE: usize = 4;

/// Of how many processes of one user reads may hang. Other processes of that user are not read meanwhile.
const MOST_OF_USER: usize = 2;

/// Of how many processes reads may hang, each of which keeps a thread.
const MOST: usize = 64;

/// A process, by its pid and when it was started, in ticks.
type Process = (u32, u64);

/// The processes of which a read hangs.
#[derive(Debug)]
pub(super) struct Hanging {
    /// Where the kernel shows its processes.
    root: PathBuf,
    /// Each with its real user.
    processes: Mutex<BTreeMap<Process, Option<u32>>>,
}

/// Those of the running kernel, for all of this program.
static LIVE: LazyLock<Arc<Hanging>> = LazyLock::new(|| Arc::new(Hanging::of(Path::new("/proc"))));

/// What a thread reads now.
#[derive(Debug)]
pub(super) struct Watch {
    hanging: Arc<Hanging>,
    reads: Mutex<Option<Reading>>,
    /// Nothing more is read.
    gives_up: bool,
}

#[derive(Debug)]
struct Reading {
    pid: u32,
    since: Instant,
    /// Remembered as this process, which hangs.
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
        Self {
            root: root.to_owned(),
            processes: Mutex::default(),
        }
    }

    /// Runs something on a thread of its own that reads by a [`Watch`]; nothing if a read hangs, and the thread with it.
    pub(super) fn watched<T: Send + 'static>(
        self: &Arc<Self>,
        gives_up: bool,
        work: impl FnOnce(&Arc<Watch>) -> T + Send + 'static,
    ) -> Option<T> {
        let watch = Arc::new(Watch {
            hanging: Arc::clone(self),
            reads: Mutex::default(),
            gives_up,
        });
        let (sender, receiver) = sync_channel(1);
        let its_watch = Arc::clone(&watch);
        let thread = thread::Builder::new().name("environs".to_owned());
        let thread = thread.spawn(move || sender.send(work(&its_watch)));
        let Ok(thread) = thread else {
            // Without threads nothing more can be read.
            return None;
        };
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(done) => return Some(done),
                Err(RecvTimeoutError::Timeout) if watch.hangs() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Ok(_) => return None,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
            }
        }
    }

    /// Whether reading a process is no use: its read hangs, or those of too many others do.
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

    /// When a process was started. Its `stat` never hangs.
    fn started(&self, pid: u32) -> Option<u64> {
        let content = std::fs::read(self.root.join(format!("{pid}/stat"))).ok()?;
        Stat::parse(&content).map(|stat| stat.start_time_ticks)
    }

    /// The real user of a process, whatever program the user runs.
    fn user(&self, pid: u32) -> Option<u32> {
        let content = std::fs::read(self.root.join(format!("{pid}/status"))).ok()?;
        stat::uids(&content).map(|uids| uids.real)
    }
}

impl Watch {
    /// Begins a read that may hang; nothing if that is no use.
    pub(super) fn begin(&self, pid: u32) -> Option<ReadGuard<'_>> {
        if self.gives_up || self.hanging.refuses(pid) {
            return None;
        }
        *lock(&self.reads) = Some(Reading {
            pid,
            since: Instant::now(),
            hangs: None,
        });
        Some(ReadGuard(self))
    }

    /// Whether the read of now hangs; then its process is remembered.
    fn hangs(&self) -> bool {
        let mut reads = lock(&self.reads);
        let Some(reading) = reads.as_mut().filter(|it| it.since.elapsed() >= PATIENCE) else {
            return false;
        };
        let process = (
            reading.pid,
            self.hanging.started(reading.pid).unwrap_or_default(),
        );
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

/// What is read of each of these processes, into a buffer that is used for all. Those that cannot be read in time are left out.
pub(crate) fn read_in_time<T: Send + 'static>(
    mut pids: Vec<u32>,
    read: impl Fn(u32, &mut Vec<u8>) -> T + Send + Sync + 'static,
) -> HashMap<u32, T> {
    let results = Arc::new(Mutex::new(HashMap::new()));
    let read = Arc::new(read);
    for attempt in 0..=MOST_AT_ONCE {
        let (all, into, read) = (pids.clone(), Arc::clone(&results), Arc::clone(&read));
        let done = Hanging::live().watched(attempt == MOST_AT_ONCE, move |watch| {
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

/// What is made of the environ of each of these processes. Those that cannot be read in time are left out.
pub(crate) fn read_environs<T: Send + 'static>(
    pids: Vec<u32>,
    make: impl Fn(u32, Result<&[u8], Errno>) -> T + Send + Sync + 'static,
) -> HashMap<u32, T> {
    read_in_time(pids, move |pid, buffer| {
        make(pid, read_environ(pid, buffer))
    })
}

/// Whether this program may read the environ of a process.
///
/// # Errors
/// It may not, the process has ended, or it cannot be read in time.
pub fn may_read_environ(pid: u32) -> io::Result<()> {
    let read = read_environs(vec![pid], |_, environ| environ.map(drop)).remove(&pid);
    read.unwrap_or(Err(Errno::TIMEDOUT))
        .map_err(io::Error::from)
}
