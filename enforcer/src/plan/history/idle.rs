//! How busy an attachment was over a window of time, in a few buckets whatever the window's length.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A window is cut into as many parts; it moves on by one of them.
const PARTS: f32 = 12.0;

/// The last samples, without a gap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::plan) struct IdleWindow {
    /// When the environment was attached, Unix time: who attaches anew begins anew.
    attached_seconds: Option<i64>,
    /// User of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    /// Its length: a rule that asks for another begins anew, or its average would be of a time that nobody asked for.
    over_milliseconds: u128,
    /// When the last sample was read, Unix time.
    sampled_seconds: Option<f64>,
    /// Whether nothing shows that its user attached the device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unconfirmed: bool,
    /// Beside a window that is `unconfirmed`: the window of the user's own attachment before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmed: Option<Box<Self>>,
    /// The attachment that goes on with the window of an earlier one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again: Option<Again>,
    /// Whether the time until the next sample does not count, since the attachment was not seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    waits: bool,
    /// Whether the time until the next sample counts as not measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    fails: bool,
    /// Whether the window began anew after a too long gap, and is not complete yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_interrupted: bool,
    /// The parts of the window, the oldest first.
    buckets: VecDeque<Bucket>,
}

/// A part of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenBucket", into = "(f32, f32, f32, f32)")]
struct Bucket {
    /// Measured seconds.
    seconds: f32,
    /// Utilization × seconds.
    utilized_seconds: f32,
    /// Seconds in which the enforcer ran without a measurement: the device may have worked all that time.
    unmeasured_seconds: f32,
    /// Seconds in which the enforcer did not run, or the attachment was absent.
    unseen_seconds: f32,
}

/// A bucket in its file formats: the present one and that of earlier versions.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenBucket {
    Now(f32, f32, f32, f32),
    Before(f32, f32),
}

impl From<WrittenBucket> for Bucket {
    fn from(written: WrittenBucket) -> Self {
        let (seconds, utilized_seconds, unmeasured_seconds, unseen_seconds) = match written {
            WrittenBucket::Now(seconds, utilized, unmeasured, unseen) => (seconds, utilized, unmeasured, unseen),
            WrittenBucket::Before(seconds, utilized) => (seconds, utilized, 0.0, 0.0),
        };
        Self { seconds, utilized_seconds, unmeasured_seconds, unseen_seconds }
    }
}

impl From<Bucket> for (f32, f32, f32, f32) {
    fn from(it: Bucket) -> Self {
        (it.seconds, it.utilized_seconds, it.unmeasured_seconds, it.unseen_seconds)
    }
}

/// The utilization of an attachment over a whole window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::plan) struct Average {
    /// The average over the measured time.
    pub(in crate::plan) measured: f64,
    /// The average if the device worked during all the time without a measurement.
    pub(in crate::plan) at_most: f64,
    /// The part of the window that was not measured.
    pub(in crate::plan) gaps: Duration,
}

/// What is seen of an attachment that goes on with the window of an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Again {
    /// When the device was first attached again, Unix time.
    since_seconds: f64,
    /// Seconds since the last time that it was, and utilization × seconds.
    seconds: f32,
    utilized_seconds: f32,
}

/// The attachment that a window is of now.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Holding<'h> {
    pub(in crate::plan) username: &'h str,
    pub(in crate::plan) attached_seconds: Option<i64>,
    pub(in crate::plan) unconfirmed: bool,
    /// For how long an attachment of the same user goes on with the window.
    pub(in crate::plan) remember: Duration,
    pub(in crate::plan) now_seconds: Option<f64>,
}

/// A sample: the part of the time since the one before during which the environment's kernels ran.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Sample {
    pub(in crate::plan) attached_seconds: Option<i64>,
    pub(in crate::plan) sampled_seconds: f64,
    pub(in crate::plan) utilization_ratio: f64,
}

impl IdleWindow {
    /// Whether it is a user's; of one that an earlier version wrote this is not known.
    pub(in crate::plan) fn is_of(&self, username: &str) -> bool {
        self.username().is_none_or(|own| own == username)
    }

    pub(in crate::plan) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(in crate::plan) const fn is_unconfirmed(&self) -> bool {
        self.unconfirmed
    }

    /// Whether the average of each part reaches this limit.
    pub(in crate::plan) fn is_used_throughout(&self, below: f64) -> bool {
        let mut parts = self.buckets.iter();
        parts.all(|it| f64::from(it.utilized_seconds) >= below * f64::from(it.seconds))
    }

    /// Whether its last sample is at most so old.
    pub(in crate::plan) fn is_younger(&self, seconds: f64, now_seconds: Option<f64>) -> bool {
        let age = now_seconds.zip(self.sampled_seconds);
        age.is_some_and(|(now, at)| (now - at).abs() < seconds)
    }

    /// It is of this attachment now. One that was made since goes on with the window, if the rule remembers it: where both
    /// looks show the device held by the user, the time between them counts. What ran on an attachment that nothing shows to
    /// be its user's doing never counts for one that its user made.
    pub(in crate::plan) fn follow(&mut self, held: &Holding<'_>) {
        if self.unconfirmed && !held.unconfirmed {
            let own = self.confirmed.take();
            let remember = held.remember.as_secs_f64();
            let own = own.filter(|own| own.is_younger(remember, held.now_seconds));
            *self = own.map_or_else(Self::default, |own| *own);
        } else if !self.unconfirmed && held.unconfirmed {
            let own = Some(self.clone()).filter(|own| own.sampled_seconds.is_some());
            self.confirmed = own.map(|mut own| {
                own.wait();
                Box::new(own)
            });
            self.unconfirmed = true;
        }
        if self.username() != Some(held.username) {
            self.username = Some(held.username.to_owned());
        }
        if !held.remember.is_zero() && self.attached_seconds != held.attached_seconds {
            self.attached_seconds = held.attached_seconds;
            if self.sampled_seconds.is_some() {
                let since = self.again.as_ref().map(|again| again.since_seconds);
                self.again =
                    since.or(held.now_seconds).map(|since_seconds| Again { since_seconds, ..Again::default() });
            }
        }
    }

    /// Whether an attachment that goes on with the window is used by itself, or was there for less than this.
    pub(in crate::plan) fn is_used_again(&self, below: f64, patience: Duration) -> bool {
        self.again.as_ref().is_some_and(|again| {
            let now = self.sampled_seconds.unwrap_or(again.since_seconds);
            let used = f64::from(again.utilized_seconds / again.seconds);
            again.seconds > 0.0 && used >= below || (now - again.since_seconds).abs() < patience.as_secs_f64()
        })
    }

    /// Marks the attachment as not seen. A sample within the length of the window continues the window.
    pub(in crate::plan) const fn wait(&mut self) {
        self.waits = true;
    }

    /// Marks the attachment as present without a measurement.
    pub(in crate::plan) const fn fail(&mut self) {
        self.fails = true;
    }

    /// Whether gaps leave open if the average is below this limit.
    pub(in crate::plan) fn lacks(&self, over: Duration, below: f64) -> bool {
        let average = self.average(over);
        self.is_interrupted || average.is_some_and(|it| it.measured < below && it.at_most >= below)
    }

    /// Adds a sample. The time of a gap, or of a clock that was set back, does not count as measured. A later sample
    /// continues the window, unless the gap is longer than the window.
    pub(in crate::plan) fn observe(&mut self, sample: Sample, over: Duration, longest_gap_seconds: f64) {
        let over_milliseconds = over.as_millis();
        if self.attached_seconds != sample.attached_seconds || self.over_milliseconds != over_milliseconds {
            *self = Self {
                attached_seconds: sample.attached_seconds,
                username: self.username.take(),
                unconfirmed: self.unconfirmed,
                confirmed: self.confirmed.take(),
                over_milliseconds,
                ..Self::default()
            };
        }
        let before = self.sampled_seconds.replace(sample.sampled_seconds);
        let Some(before) = before else { return };
        let seconds = sample.sampled_seconds - before;
        let waited = std::mem::take(&mut self.waits);
        let failed = std::mem::take(&mut self.fails);
        if waited || failed || !(seconds > 0.0 && seconds <= longest_gap_seconds) {
            if seconds.abs() > over.as_secs_f64() {
                self.buckets.clear();
                self.is_interrupted = true;
            }
            self.add_gap(seconds.max(0.0) as f32, failed);
            return;
        }
        let over = over.as_secs_f32();
        let seconds = seconds as f32;
        let utilized = sample.utilization_ratio.clamp(0.0, 1.0) as f32 * seconds;
        if let Some(again) = &mut self.again {
            again.seconds += seconds;
            again.utilized_seconds += utilized;
        }
        // The whole window is of this attachment.
        self.again.take_if(|again| again.seconds >= over);
        match self.buckets.back_mut() {
            Some(last) if last.seconds + seconds <= over / PARTS => {
                last.seconds += seconds;
                last.utilized_seconds += utilized;
            }
            _ => self.buckets.push_back(Bucket { seconds, utilized_seconds: utilized, ..Bucket::default() }),
        }
        let mut length = self.seconds();
        while let Some(oldest) = self.buckets.front() {
            if length - oldest.seconds < over {
                break;
            }
            self.buckets.pop_front();
            length = self.seconds();
        }
        self.is_interrupted &= length < over;
    }

    /// Adds a gap to a window that has begun.
    fn add_gap(&mut self, seconds: f32, failed: bool) {
        let Some(last) = self.buckets.back_mut() else {
            return;
        };
        if failed {
            last.unmeasured_seconds += seconds;
        } else {
            last.unseen_seconds += seconds;
        }
        if let Some(again) = self.again.as_mut().filter(|_| failed) {
            again.seconds += seconds;
            again.utilized_seconds += seconds;
        }
    }

    /// The average over the window, once enough time was measured.
    pub(in crate::plan) fn average(&self, over: Duration) -> Option<Average> {
        let seconds = self.seconds();
        let sum = |of: fn(&Bucket) -> f32| self.buckets.iter().map(of).sum::<f32>();
        let utilized = sum(|it| it.utilized_seconds);
        let unmeasured = sum(|it| it.unmeasured_seconds);
        let gaps = unmeasured + sum(|it| it.unseen_seconds);
        (seconds > 0.0 && seconds >= over.as_secs_f32()).then(|| Average {
            measured: f64::from(utilized / seconds),
            at_most: f64::from((utilized + unmeasured) / (seconds + unmeasured)),
            gaps: Duration::try_from_secs_f32(gaps).unwrap_or(Duration::MAX),
        })
    }

    fn seconds(&self) -> f32 {
        self.buckets.iter().map(|bucket| bucket.seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OVER: Duration = Duration::from_secs(600);

    fn sample(sampled_seconds: f64, utilization_ratio: f64) -> Sample {
        Sample { attached_seconds: Some(0), sampled_seconds, utilization_ratio }
    }

    fn observed(samples: impl Iterator<Item = (f64, f64)>) -> IdleWindow {
        let mut window = IdleWindow::default();
        for (at, utilization) in samples {
            window.observe(sample(at, utilization), OVER, 30.0);
        }
        window
    }

    fn measured(window: &IdleWindow) -> Option<f64> {
        window.average(OVER).map(|it| it.measured)
    }

    #[test]
    fn what_was_not_measured_may_have_been_use() {
        let idle = || observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
        for (failed_seconds, lacks) in [(30.0, false), (32.0, true), (590.0, true)] {
            let mut window = idle();
            window.fail();
            window.observe(sample(600.0 + failed_seconds, 0.0), OVER, 30.0);
            let average = window.average(OVER).unwrap();
            assert_eq!(average.measured, 0.0);
            let at_most = failed_seconds / (600.0 + failed_seconds);
            assert!((average.at_most - at_most).abs() < 1e-6, "{average:?}");
            assert_eq!(average.gaps.as_secs_f64().round(), failed_seconds);
            assert_eq!(window.lacks(OVER, 0.05), lacks, "{failed_seconds}");
            let written = serde_json::to_string(&window).unwrap();
            assert_eq!(serde_json::from_str::<IdleWindow>(&written).unwrap(), window);
            // The answer is known again once all the time since the gap is measured.
            for i in 1..=60 {
                let at = 600.0 + failed_seconds + f64::from(i) * 10.0;
                window.observe(sample(at, 0.0), OVER, 30.0);
            }
            assert_eq!(window.average(OVER).unwrap().at_most, 0.0);
        }
        // A gap in which the enforcer did not run only makes the window longer.
        let mut window = idle();
        window.observe(sample(900.0, 0.0), OVER, 30.0);
        let average = window.average(OVER).unwrap();
        assert_eq!((average.at_most, average.gaps.as_secs()), (0.0, 300));
    }

    #[test]
    fn windows_that_an_earlier_version_wrote_are_read() {
        let text = r#"{"over_milliseconds":600000,"buckets":[[50.0,2.5],[10.0,0.0]]}"#;
        let window: IdleWindow = serde_json::from_str(text).unwrap();
        assert_eq!(window.seconds(), 60.0);
    }

    #[test]
    fn a_window_that_is_not_wholly_observed_has_no_average() {
        let minutes = |minutes: u32| observed((0..=minutes * 6).map(|i| (f64::from(i) * 10.0, 0.0)));
        assert_eq!(measured(&minutes(9)), None);
        assert_eq!(measured(&minutes(10)), Some(0.0));
    }

    #[test]
    fn work_leaves_the_window_after_its_length_and_a_part() {
        let at = |minutes: f64| {
            observed(
                (0..)
                    .map(|i| f64::from(i) * 10.0)
                    .take_while(|at| *at <= minutes * 60.0)
                    .map(|at| (at, if at <= 600.0 { 1.0 } else { 0.0 })),
            )
        };
        assert_eq!(measured(&at(10.0)), Some(1.0));
        let half = measured(&at(15.0)).unwrap();
        assert!((0.45..0.6).contains(&half), "{half}");
        assert!(measured(&at(19.0)).unwrap() > 0.0);
        assert_eq!(measured(&at(21.0)), Some(0.0));
    }

    #[test]
    fn a_gap_and_a_clock_that_is_set_back_do_not_count_and_longer_than_the_window_begin_anew() {
        let idle = || observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
        for (at, goes_on) in [(600.0, true), (631.0, true), (1200.0, true), (1201.0, false), (0.0, true), (-1.0, false)]
        {
            let mut window = idle();
            assert_eq!(measured(&window), Some(0.0));
            // What is told of the time in between is not told by this sample.
            window.observe(sample(at, 1.0), OVER, 30.0);
            assert_eq!(measured(&window), goes_on.then_some(0.0), "{at}");
            assert_eq!(window.is_interrupted, !goes_on, "{at}");
            for i in 1..=60 {
                window.observe(sample(at + f64::from(i) * 10.0, 0.0), OVER, 30.0);
            }
            assert_eq!(measured(&window), Some(0.0), "{at}");
            assert!(!window.is_interrupted, "{at}");
        }
    }

    #[test]
    fn a_new_attachment_begins_anew() {
        let mut window = observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
        let anew = Sample { attached_seconds: Some(605), ..sample(610.0, 0.0) };
        window.observe(anew, OVER, 30.0);
        assert_eq!(measured(&window), None);
        assert!(!window.is_interrupted);
    }

    #[test]
    fn a_window_that_became_shorter_holds_nothing_of_the_longer_one() {
        let mut window = observed((0..=60).map(|i| (f64::from(i) * 10.0, 0.0)));
        let shorter = Duration::from_secs(30);
        for (at, average) in [(610.0, None), (620.0, None), (630.0, None), (640.0, Some(1.0))] {
            window.observe(sample(at, 1.0), shorter, 30.0);
            assert_eq!(window.average(shorter).map(|it| it.measured), average, "{at}");
        }
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_the_average_is_that_of_a_window_of_its_length(
            gaps in prop::collection::vec(0.5_f64..30.0, 0..400),
            busy in prop::collection::vec(0.0_f64..1.0, 400),
        ) {
            let mut at = 0.0;
            let samples: Vec<(f64, f64)> = gaps.iter().zip(&busy).map(|(gap, &busy)| { at += gap; (at, busy) }).collect();
            let window = observed(samples.iter().copied());
            prop_assert!(window.buckets.len() <= 2 * PARTS as usize + 2, "{}", window.buckets.len());
            let Some(average) = measured(&window) else {
                prop_assert!(at - samples.first().map_or(0.0, |first| first.0) < 600.5);
                return Ok(());
            };
            // The window ends now and is at least as long as asked, by at most a part and a gap longer.
            let length = f64::from(window.seconds());
            prop_assert!((599.9..=600.0 + 50.0 + 30.1).contains(&length), "{}", length);
            let expected: f64 = samples.windows(2).filter(|pair| pair[0].0 >= at - length - 0.1)
                .map(|pair| (pair[1].0 - pair[0].0) * pair[1].1).sum::<f64>() / length;
            prop_assert!((average - expected).abs() < 1e-3, "{} {}", average, expected);
        }
    }
}
