//! The time of the last step of a cycle, for the watchdog of the service manager.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When the last step of a cycle began or ended.
#[derive(Debug)]
pub(crate) struct Heartbeat(Mutex<Instant>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Heartbeat {
    /// Notes that a step begins or ends.
    pub(crate) fn beat(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// The time since then: the duration of the current step, or the time without a cycle.
    pub(crate) fn age(&self) -> Duration {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.elapsed()
    }
}
