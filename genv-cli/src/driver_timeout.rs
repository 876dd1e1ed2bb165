//! How long a command waits for the driver.

use std::time::Duration;

use genv_core::duration::parse_duration;

/// Without `GENV_DRIVER_TIMEOUT`, if a command can do without an answer.
const USAGE_PATIENCE: Duration = Duration::from_millis(100);

/// Time limit for the GPUs if a command can do without their answer: `GENV_DRIVER_TIMEOUT`; 100 ms if its value is not a
/// duration.
pub(crate) fn usage_patience() -> Duration {
    variable().unwrap_or(USAGE_PATIENCE)
}

/// A time limit for the GPUs of a command that has one of its own, and at least `GENV_DRIVER_TIMEOUT`.
pub(crate) fn at_least(patience: Duration) -> Duration {
    variable().unwrap_or_default().max(patience)
}

fn variable() -> Option<Duration> {
    parse_duration(&std::env::var("GENV_DRIVER_TIMEOUT").ok()?).ok()
}
