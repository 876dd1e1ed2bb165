//! Clocks of hosts, which need not agree with this machine's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock that is off by more than this is worth telling.
const SKEW_SECONDS: f64 = 30.0;

/// This machine's clock, as Unix time.
pub(crate) fn now_seconds() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

/// How far a host's clock is ahead of this machine's, if that is worth telling, by a timestamp of its that came at
/// `now_seconds` and may be as old as `age`.
pub(crate) fn ahead_seconds(timestamp_seconds: f64, now_seconds: f64, age: Duration) -> Option<f64> {
    let ahead = timestamp_seconds - now_seconds;
    (ahead.abs() > SKEW_SECONDS + age.as_secs_f64()).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_told_that_is_off_by_more_than_its_timestamp_may_be_old() {
        let age = Duration::from_secs(10);
        for (timestamp, ahead) in
            [(1000.0, None), (1040.0, None), (960.0, None), (1041.0, Some(41.0)), (-6200.0, Some(-7200.0))]
        {
            assert_eq!(ahead_seconds(timestamp, 1000.0, age), ahead);
        }
    }
}
