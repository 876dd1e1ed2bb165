//! The rate limit of requests (`rate_limit` of the web configuration) and of log messages.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Allows `burst` requests at once, and one more every `interval`.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    interval: Duration,
    burst: u32,
    /// The time at which the allowed requests would have ended at one request per interval.
    paid_until: Mutex<Option<Instant>>,
}

impl RateLimiter {
    pub(crate) fn new(interval: Duration, burst: u32) -> Self {
        Self { interval, burst, paid_until: Mutex::new(None) }
    }

    /// Whether a request that arrives now may pass.
    pub(crate) fn allow(&self, now: Instant) -> bool {
        // A panic cannot interrupt a plain assignment.
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let from = paid_until.map_or(now, |until| until.max(now));
        let ahead = self.interval.saturating_mul(self.burst.saturating_sub(1));
        let allowed = from.duration_since(now) <= ahead;
        if allowed {
            *paid_until = from.checked_add(self.interval).or(*paid_until);
        }
        allowed
    }
}

/// A duration as [Go writes them](https://pkg.go.dev/time#ParseDuration), such as `1s`, `1m30s` or `0`; not negative.
pub(crate) fn parse_go_duration(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let unit_seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit_seconds;
        rest = tail;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_per_interval() {
        let limiter = RateLimiter::new(Duration::from_secs(1), 3);
        let start = Instant::now();
        let mut allowed = |milliseconds| limiter.allow(start + Duration::from_millis(milliseconds));
        assert_eq!([0, 0, 0, 0, 999].map(&mut allowed), [true, true, true, false, false]);
        assert_eq!([1000, 1000, 2000].map(&mut allowed), [true, false, true]);
        // After a rest, the whole burst is there again, and no more.
        assert_eq!([9000, 9000, 9000, 9000].map(&mut allowed), [true, true, true, false]);
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("1s", 1000),
            ("+1.5s", 1500),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("250ms", 250),
            ("1000us", 1),
            (".5s", 500),
        ] {
            let duration = parse_go_duration(text);
            assert_eq!(duration, Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "1", "s", "1d", "-1s", "1s ", "1 s", "..s", "1ss", "1e3s"] {
            assert_eq!(parse_go_duration(text), None, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_duration_or_none(text in r"[0-9.a-zµ+-]{0,12}|\PC{0,12}") {
            parse_go_duration(&text);
        }

        #[test]
        fn a_duration_in_parts_is_their_sum(hours in 0..100u64, minutes in 0..600u64, seconds in 0..9000u64) {
            let duration = parse_go_duration(&format!("{hours}h{minutes}m{seconds}s"));
            let sum = Duration::from_secs(hours * 3600 + minutes * 60 + seconds);
            proptest::prop_assert_eq!(duration, Some(sum));
        }
    }
}
