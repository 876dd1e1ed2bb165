//! Whether a cycle that takes long goes on: the watchdog of the service manager is fed by that.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// No single step takes longer: it waits for a lock for seconds at most.
const LONGEST_STEP: Duration = Duration::from_secs(15);

/// When a cycle last did something.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// A step begins.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a step began not longer ago than one takes.
    pub(crate) fn is_recent(&self) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < LONGEST_STEP)
    }
}
