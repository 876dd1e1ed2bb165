//! Messages to the service manager, as sd_notify(3) defines them, by `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.

use std::time::Duration;

pub use sd_notify::NotifyState;

/// Sends messages to the service manager that started this program, if one did. A message that cannot be sent is dropped:
/// the watchdog of the service manager notices a program that falls silent.
pub fn notify(messages: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(messages) {
        tracing::debug!(%error, "the service manager cannot be notified");
    }
}

/// The time within which the service manager expects [`NotifyState::Watchdog`]; absent without a watchdog for this process.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|time| !time.is_zero())
}
