//! How load changes over scenario time, with exact integrals.

/// Utilization over time, 0–1, from time 0 on.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Always the same.
    Constant(f64),
    /// A cosine that begins at its lowest.
    Wave {
        /// Seconds from one lowest point to the next.
        period: f64,
        /// Least value.
        low: f64,
        /// Greatest value.
        high: f64,
        /// Seconds by which it is ahead.
        phase: f64,
    },
    /// Values held for a number of seconds each, over and over.
    Steps(Vec<(f64, f64)>),
}

impl Pattern {
    /// The value `seconds` after the pattern began.
    pub fn at(&self, seconds: f64) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Wave { period, low, high, phase } => {
                let turn = ((seconds + phase) / period).fract() * std::f64::consts::TAU;
                low + (high - low) * (1.0 - libm::cos(turn)) / 2.0
            }
            Self::Steps(steps) => {
                let mut rest = seconds % steps.iter().map(|(length, _)| length).sum::<f64>();
                for (length, value) in steps {
                    if rest < *length {
                        return *value;
                    }
                    rest -= length;
                }
                // Only rounding leads here: the end of one round is the start of the next.
                steps[0].1
            }
        }
    }

    /// The value times seconds, from the beginning to `seconds` after it: its integral.
    pub(super) fn integral(&self, seconds: f64) -> f64 {
        match self {
            Self::Constant(value) => value * seconds,
            Self::Wave { period, low, high, phase } => {
                let until = |x: f64| {
                    let turn = (x / period).fract() * std::f64::consts::TAU;
                    let swing = (high - low) / 2.0 * period / std::f64::consts::TAU;
                    (low + high) / 2.0 * x - swing * libm::sin(turn)
                };
                until(seconds + phase) - until(*phase)
            }
            Self::Steps(steps) => {
                let round: f64 = steps.iter().map(|(length, _)| length).sum();
                let whole: f64 = steps.iter().map(|(length, value)| length * value).sum();
                let mut rest = seconds % round;
                let mut sum = ((seconds - rest) / round).round() * whole;
                for (length, value) in steps {
                    sum += value * rest.min(*length);
                    rest = (rest - length).max(0.0);
                }
                sum
            }
        }
    }

    /// The greatest value it can take.
    pub fn peak(&self) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Wave { low, high, .. } => low.max(*high),
            Self::Steps(steps) => steps.iter().map(|(_, value)| *value).fold(0.0, f64::max),
        }
    }
}

/// A number that rises with load from `idle` to `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// At utilization 0.
    pub idle: f64,
    /// At utilization 1.
    pub max: f64,
}

impl Level {
    /// The number at a utilization from 0 to 1.
    pub fn at(&self, utilization: f64) -> f64 {
        self.idle + (self.max - self.idle) * utilization
    }
}

/// When something is there: always, once, or over and over. Seconds of scenario time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Length of a cycle; absent: once.
    pub every: Option<f64>,
    /// First moment, within the cycle.
    pub from: f64,
    /// First moment after it, within the cycle; absent: never ends (or with the cycle).
    pub until: Option<f64>,
}

impl Window {
    /// From the beginning and for ever.
    pub(super) const ALWAYS: Self = Self { every: None, from: 0.0, until: None };

    /// When the occurrence that is in force at `seconds` began, if one is: in whole milliseconds, as all
    /// times of a scenario are, so that it is the same number as long as it is in force.
    pub fn since(&self, seconds: f64) -> Option<f64> {
        let into = self.every.map_or(seconds, |every| seconds % every);
        let began = seconds - into + self.from;
        self.holds(into).then(|| (began * 1000.0).round() / 1000.0)
    }

    /// Whether it is in force `into` seconds of a cycle.
    fn holds(&self, into: f64) -> bool {
        into >= self.from && self.until.is_none_or(|until| into < until)
    }

    /// The integral, from time 0 to `seconds`, of a pattern that begins anew with each occurrence.
    pub(super) fn integral(&self, pattern: &Pattern, seconds: f64) -> f64 {
        let part = |into: f64| {
            let end = self.until.map_or(into, |until| into.min(until));
            if end <= self.from { 0.0 } else { pattern.integral(end - self.from) }
        };
        match self.every {
            None => part(seconds),
            Some(every) => {
                let into = seconds % every;
                ((seconds - into) / every).round() * part(every) + part(into)
            }
        }
    }
}

/// The most that these loads can add up to at any moment. Windows of one cycle length (and those without) are
/// followed exactly; windows of different lengths are taken to coincide some day.
pub(super) fn peak_together(loads: &[(Window, f64)]) -> f64 {
    let mut cycles: Vec<Option<f64>> = loads.iter().map(|(window, _)| window.every).collect();
    cycles.sort_by(|a, b| a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0)));
    cycles.dedup();
    cycles
        .iter()
        .map(|cycle| {
            let same: Vec<_> = loads.iter().filter(|(w, _)| w.every == *cycle).collect();
            // Thousands of processes that always run share one start.
            let mut starts: Vec<f64> = same.iter().map(|(window, _)| window.from).collect();
            starts.sort_by(f64::total_cmp);
            starts.dedup();
            starts
                .iter()
                .map(|start| same.iter().filter(|(window, _)| window.holds(*start)).map(|(_, peak)| peak).sum::<f64>())
                .fold(0.0, f64::max)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern() -> impl Strategy<Value = Pattern> {
        let value = 0.0..=1.0_f64;
        prop_oneof![
            value.clone().prop_map(Pattern::Constant),
            (1.0..90_000.0_f64, value.clone(), value.clone(), 0.0..1000.0_f64)
                .prop_map(|(period, a, b, phase)| Pattern::Wave { period, low: a.min(b), high: a.max(b), phase }),
            prop::collection::vec((0.001..1000.0_f64, value), 1..5).prop_map(Pattern::Steps),
        ]
    }

    fn window() -> impl Strategy<Value = Window> {
        (prop::option::of(10.0..5000.0_f64), 0.0..0.5_f64, prop::option::of(0.5001..1.0_f64)).prop_map(
            |(every, from, until)| {
                let length = every.unwrap_or(3000.0);
                let whole = |seconds: f64| (seconds * 1000.0).round() / 1000.0;
                Window {
                    every: every.map(whole),
                    from: whole(from * length),
                    until: until.map(|until| whole(until * length)),
                }
            },
        )
    }

    #[test]
    fn a_wave_begins_low_and_is_high_half_a_period_later() {
        let wave = Pattern::Wave { period: 600.0, low: 0.2, high: 0.9, phase: 0.0 };
        assert!((wave.at(0.0) - 0.2).abs() < 1e-12);
        assert!((wave.at(300.0) - 0.9).abs() < 1e-12);
        assert!((wave.integral(600.0) - 330.0).abs() < 1e-9);
    }

    #[test]
    fn steps_repeat() {
        let steps = Pattern::Steps(vec![(300.0, 0.9), (300.0, 0.0)]);
        assert_eq!([0.0, 299.9, 300.0, 600.0].map(|t| steps.at(t)), [0.9, 0.9, 0.0, 0.9]);
        assert!((steps.integral(1500.0) - 810.0).abs() < 1e-9);
    }

    #[test]
    fn a_window_comes_and_goes() {
        let window = Window { every: Some(60.0), from: 10.0, until: Some(20.0) };
        assert_eq!(
            [5.0, 10.0, 19.0, 20.0, 75.0].map(|t| window.since(t)),
            [None, Some(10.0), Some(10.0), None, Some(70.0)]
        );
        assert_eq!(Window::ALWAYS.since(7.0), Some(0.0));
    }

    #[test]
    fn loads_that_never_meet_do_not_add_up() {
        let half = |from, until| Window { every: Some(60.0), from, until: Some(until) };
        let apart = [(half(0.0, 30.0), 0.9), (half(30.0, 60.0), 0.8)];
        assert!((peak_together(&apart) - 0.9).abs() < 1e-12);
        let meeting = [(half(0.0, 31.0), 0.9), (half(30.0, 60.0), 0.8), (Window::ALWAYS, 0.1)];
        assert!((peak_together(&meeting) - 1.8).abs() < 1e-12);
    }

    #[test]
    fn an_occurrence_began_at_one_moment_whenever_it_is_asked() {
        let window = Window { every: Some(0.7), from: 0.1, until: Some(0.6) };
        let mut began: Vec<f64> = (0..500).filter_map(|n| window.since(27_932_399.7 + f64::from(n) / 1000.0)).collect();
        began.dedup();
        assert_eq!(began, [27_932_399.7]);
    }

    proptest! {
        #[test]
        fn an_integral_is_what_small_steps_add_up_to(
            pattern in pattern(), window in window(), start in 0.0..10_000.0_f64,
        ) {
            let step = 0.05;
            let mut sum = 0.0;
            for n in 0..2000 {
                let middle = start + (f64::from(n) + 0.5) * step;
                sum += window.since(middle).map_or(0.0, |since| pattern.at(middle - since)) * step;
            }
            let exact = window.integral(&pattern, start + 100.0) - window.integral(&pattern, start);
            // A step or the edge of a window may lie anywhere within a small step.
            prop_assert!((exact - sum).abs() < 0.03 * 2000.0 * step, "{exact} {sum}");
        }
    }
}
