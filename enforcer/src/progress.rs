//! Whether a cycle goes on: the watchdog of the service manager is fed by that.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When a cycle last took a step.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<Instant>);

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Progress {
    /// A step begins or ends.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long the step that began last has taken, or how long no cycle has begun.
    pub(crate) fn age(&self) -> Duration {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.elapsed()
    }
}
