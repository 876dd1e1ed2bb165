//! Waiting in tests.

use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take to happen before a test is given up: much longer than it takes, also on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain");
        thread::sleep(Duration::from_millis(1));
    }
}
