//! The wait before a new attempt to connect to a host.

use std::time::Duration;

use crate::FailureKind;

const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Doubles the wait with each consecutive error.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Starts again with the shortest wait, after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after an error. `random`, from 0 to 1, spreads the attempts at hosts that failed at the same time.
    pub(super) fn next(&mut self, kind: FailureKind, random: f64) -> Duration {
        let doubled = MIN_WAIT.saturating_mul(1 << self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        let wait = match kind {
            // Only a person can correct these errors, and each attempt adds a line to the host's log.
            FailureKind::Unsupported | FailureKind::Unresolved | FailureKind::HostKey | FailureKind::Authentication => {
                MAX_WAIT
            }
            _ => doubled.min(MAX_WAIT),
        };
        wait.mul_f64(0.75 + 0.5 * random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_doubles_the_wait_up_to_a_minute_until_a_success() {
        let mut backoff = Backoff::default();
        let next = |backoff: &mut Backoff| backoff.next(FailureKind::Unreachable, 0.5);
        let waits: Vec<_> = (0..8).map(|_| next(&mut backoff).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.reset();
        assert_eq!(next(&mut backoff).as_secs(), 1);
    }

    #[test]
    fn hosts_that_failed_together_connect_at_different_times() {
        let wait = |random| Backoff::default().next(FailureKind::HostKey, random);
        assert_eq!(wait(0.0), Duration::from_secs(45));
        assert_eq!(wait(1.0), Duration::from_secs(75));
    }
}
