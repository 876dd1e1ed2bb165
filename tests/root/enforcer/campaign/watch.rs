//! How long the daemon's cycles wait and compute, and how much memory they take, looked at all the time.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use genv_tests::process::resident_bytes;

/// Between two looks. Time is counted in looks, less what the daemon computed or stood in line for a processor meanwhile:
/// a machine that is busy with other programs, and runs neither this one nor the daemon, makes no cycle late.
const LOOK: Duration = Duration::from_millis(20);

/// The worst that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worst {
    /// The longest wait for anything but a processor, without a new status.
    pub(super) wait: Duration,
    /// The most time of a processor that was taken without a new status.
    pub(super) computed: Duration,
    /// The number of new statuses.
    pub(super) cycles: usize,
    pub(super) resident_bytes: u64,
}

/// Looks at a daemon on a thread of its own, until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    worst: Arc<Mutex<Worst>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(pid: u32, status: PathBuf) -> Self {
        let worst = Arc::<Mutex<Worst>>::default();
        let ended = Arc::<AtomicBool>::default();
        let (shared, stop) = (Arc::clone(&worst), Arc::clone(&ended));
        let thread = thread::spawn(move || {
            let (mut last, mut wait, mut computed) = (None, Duration::ZERO, Duration::ZERO);
            let mut before = Scheduled::of(pid);
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                let updated = updated(&status);
                let is_new = updated != last;
                if is_new {
                    (wait, computed) = (Duration::ZERO, Duration::ZERO);
                }
                last = updated;
                let now = Scheduled::of(pid);
                let (ran, queued) = (now.ran.saturating_sub(before.ran), now.queued.saturating_sub(before.queued));
                before = now;
                wait += LOOK.saturating_sub(ran + queued);
                computed += ran;
                let resident = resident_bytes(pid).unwrap_or_default();
                let mut worst = shared.lock().unwrap();
                worst.cycles += usize::from(is_new);
                worst.wait = worst.wait.max(wait);
                worst.computed = worst.computed.max(computed);
                worst.resident_bytes = worst.resident_bytes.max(resident);
            }
        });
        Self { worst, ended, thread: Some(thread) }
    }

    /// The number of new statuses since the worst was taken last.
    pub(super) fn cycles(&self) -> usize {
        self.worst.lock().unwrap().cycles
    }

    /// The worst since this was asked last.
    pub(super) fn take(&self) -> Worst {
        std::mem::take(&mut *self.worst.lock().unwrap())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the kernel's scheduler tells of all threads of a process that live: `/proc/PID/task/TID/schedstat`.
#[derive(Clone, Copy, Debug, Default)]
struct Scheduled {
    ran: Duration,
    /// The time in line for a processor.
    queued: Duration,
}

impl Scheduled {
    fn of(pid: u32) -> Self {
        let mut all = Self::default();
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or_default());
            all.ran += Duration::from_nanos(fields.next().unwrap_or_default());
            all.queued += Duration::from_nanos(fields.next().unwrap_or_default());
        }
        all
    }
}

/// When the last cycle ended, as the beginning of `status.json` has it.
fn updated(status: &Path) -> Option<String> {
    let mut beginning = String::new();
    File::open(status).ok()?.take(1024).read_to_string(&mut beginning).ok()?;
    let (_, rest) = beginning.split_once("\"updated_timestamp_seconds\":")?;
    rest.split_once(',').map(|(value, _)| value.to_owned())
}
