//! The times of a source, and the pauses after failures.

use std::time::{Duration, Instant};

/// The times of a [`ReaderSource`](super::ReaderSource).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The pause between two looks at a reader that has not answered.
    pub look: Duration,
    /// The pause after the first failure, before a GPU is tried again, or the driver as a whole.
    pub shortest_pause: Duration,
    /// The longest pause: each further failure doubles it.
    pub longest_pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            look: Duration::from_millis(250),
            shortest_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(60),
        }
    }
}

/// The time after a failure in which what has failed is not tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pause {
    length: Duration,
    pub(super) until: Instant,
}

impl Pause {
    /// No pause, after a failure now.
    pub(super) const fn none(now: Instant) -> Self {
        Self { length: Duration::ZERO, until: now }
    }

    /// The pause after a failure now: twice the one before, unless that is forgotten.
    pub(super) fn after(before: Option<&Self>, pace: &Pace, now: Instant) -> Self {
        let length = match before {
            Some(before) if !before.is_forgotten(pace, now) => {
                (before.length * 2).max(pace.shortest_pause).min(pace.longest_pause)
            }
            _ => pace.shortest_pause,
        };
        Self { length, until: now + length }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Whether nothing has failed for so long since its end that a further failure is a first one.
    pub(super) fn is_forgotten(&self, pace: &Pace, now: Instant) -> bool {
        now.saturating_duration_since(self.until) > pace.longest_pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_from_a_second_to_a_minute_and_is_forgotten_a_minute_after_its_end() {
        let pace = Pace::default();
        let mut now = Instant::now();
        let mut pause = Some(Pause::none(now));
        let mut lengths = Vec::new();
        for _ in 0..8 {
            let next = Pause::after(pause.as_ref(), &pace, now);
            assert!(!next.is_over(now) && next.is_over(now + next.length));
            lengths.push(next.length.as_secs());
            now = next.until + pace.longest_pause;
            pause = Some(next);
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += Duration::from_millis(1);
        assert_eq!(Pause::after(pause.as_ref(), &pace, now).length, pace.shortest_pause);
    }
}
