//! Differences between the clocks of hosts and this machine's clock.

use std::time::Duration;

pub(crate) use genv_core::model::now_seconds;

/// A smaller difference is not reported.
const MIN_SKEW_SECONDS: f64 = 30.0;

/// How far a host's clock is ahead of this machine's. Absent if the difference is too small to report. `timestamp_seconds` is
/// a time by the host's clock that arrived at `now_seconds`, and may be as old as `max_age`.
pub(crate) fn ahead_seconds(timestamp_seconds: f64, now_seconds: f64, max_age: Duration) -> Option<f64> {
    let ahead = timestamp_seconds - now_seconds;
    (ahead.abs() > MIN_SKEW_SECONDS + max_age.as_secs_f64()).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_reported_if_the_age_of_the_timestamp_does_not_explain_it() {
        let age = Duration::from_secs(10);
        for (timestamp, ahead) in
            [(1000.0, None), (1040.0, None), (960.0, None), (1041.0, Some(41.0)), (-6200.0, Some(-7200.0))]
        {
            assert_eq!(ahead_seconds(timestamp, 1000.0, age), ahead);
        }
    }
}
