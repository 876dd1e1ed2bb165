//! How long to wait before a host is tried again.

use std::time::Duration;

use crate::FailureKind;

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What grows with each failure in a row.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It went well.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// How long to wait now. `random` of 0–1 spreads hosts that failed together over the time.
    pub(super) fn next(&mut self, kind: FailureKind, random: f64) -> Duration {
        let doubled = SHORTEST.saturating_mul(1 << self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        let wait = match kind {
            // Only somebody's hand changes these, and each attempt is a line in the host's log.
            FailureKind::Unsupported | FailureKind::Unresolved | FailureKind::HostKey | FailureKind::Authentication => {
                LONGEST
            }
            _ => doubled.min(LONGEST),
        };
        wait.mul_f64(0.75 + 0.5 * random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_minute_until_it_goes_well() {
        let mut backoff = Backoff::default();
        let next = |backoff: &mut Backoff| backoff.next(FailureKind::Unreachable, 0.5);
        let waits: Vec<_> = (0..8).map(|_| next(&mut backoff).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        backoff.reset();
        assert_eq!(next(&mut backoff).as_secs(), 1);
    }

    #[test]
    fn hosts_that_failed_together_come_back_one_after_the_other() {
        let wait = |random| Backoff::default().next(FailureKind::HostKey, random);
        assert_eq!(wait(0.0), Duration::from_secs(45));
        assert_eq!(wait(1.0), Duration::from_secs(75));
    }
}
