//! How late the daemon's cycles are, and how much memory it takes, looked at all the time.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use genv_tests::process::resident_bytes;

/// Between two looks. Time is counted in looks, so that a machine which is busy with other tests, and runs neither this
/// program nor the daemon, makes no cycle late.
const LOOK: Duration = Duration::from_millis(20);

/// The worst that was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worst {
    /// The longest time without a new status.
    pub(super) gap: Duration,
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
            let (mut last, mut gap) = (None, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(LOOK);
                let updated = updated(&status);
                gap = if updated == last { gap + LOOK } else { LOOK };
                last = updated;
                let resident = resident_bytes(pid).unwrap_or_default();
                let mut worst = shared.lock().unwrap();
                worst.gap = worst.gap.max(gap);
                worst.resident_bytes = worst.resident_bytes.max(resident);
            }
        });
        Self { worst, ended, thread: Some(thread) }
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

/// When the last cycle ended, as the beginning of `status.json` has it.
fn updated(status: &Path) -> Option<String> {
    let mut beginning = String::new();
    File::open(status).ok()?.take(1024).read_to_string(&mut beginning).ok()?;
    let (_, rest) = beginning.split_once("\"updated_timestamp_seconds\":")?;
    rest.split_once(',').map(|(value, _)| value.to_owned())
}
