//! How busy an attachment was over a window of time, in a few buckets whatever the window's length.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A window is cut into as many parts; it moves on by one of them.
const PARTS: f32 = 12.0;

/// The last samples, without a gap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdleWindow {
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
pub(crate) struct Average {
    /// The average over the measured time.
    pub(crate) measured: f64,
    /// The average if the device worked during all the time without a measurement.
    pub(crate) at_most: f64,
    /// The part of the window that was not measured.
    pub(crate) gaps: Duration,
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
pub(crate) struct Holding<'h> {
    pub(crate) username: &'h str,
    pub(crate) attached_seconds: Option<i64>,
    pub(crate) unconfirmed: bool,
    /// For how long an attachment of the same user goes on with the window.
    pub(crate) remember: Duration,
    pub(crate) now_seconds: Option<f64>,
}

/// A sample: the part of the time since the one before during which the environment's kernels ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) attached_seconds: Option<i64>,
    pub(crate) sampled_seconds: f64,
    pub(crate) utilization_ratio: f64,
}

impl IdleWindow {
    /// Whether it is a user's; of one that an earlier version wrote this is not known.
    pub(crate) fn is_of(&self, username: &str) -> bool {
        self.username().is_none_or(|own| own == username)
    }

    pub(crate) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    pub(crate) const fn is_unconfirmed(&self) -> bool {
        self.unconfirmed
    }

    /// Whether the average of each part reaches this limit.
    pub(crate) fn is_used_throughout(&self, below: f64) -> bool {
        let mut parts = self.buckets.iter();
        parts.all(|it| f64::from(it.utilized_seconds) >= below * f64::from(it.seconds))
    }

    /// Whether its last sample is at most so old.
    pub(crate) fn is_younger(&self, seconds: f64, now_seconds: Option<f64>) -> bool {
        let age = now_seconds.zip(self.sampled_seconds);
        age.is_some_and(|(now, at)| (now - at).abs() < seconds)
    }

    /// It is of this attachment now. One that was made since goes on with the window, if the rule remembers it: where both
    /// looks show the device held by the user, the time between them counts. What ran on an attachment that nothing shows to
    /// be its user's doing never counts for one that its user made.
    pub(crate) fn follow(&mut self, held: &Holding<'_>) {
        if self.unconfirmed && !held.unconfirmed {
            let own = self.confirmed.take();
            let remember = held.remember.as_secs_f64();
            let own = own.filter(|own| own.is_younger(remember, held.now_seconds));
            *self = own.map_or_else(Self::default, |own| *own);
        } else if !self.unconfirmed && held.unconfirmed {
            let own = || Box::new(Self { waits: true, ..self.clone() });
            self.confirmed = self.sampled_seconds.is_some().then(own);
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
    pub(crate) fn is_used_again(&self, below: f64, patience: Duration) -> bool {
        self.again.as_ref().is_some_and(|again| {
            let now = self.sampled_seconds.unwrap_or(again.since_seconds);
            let used = f64::from(again.utilized_seconds / again.seconds);
            again.seconds > 0.0 && used >= below || (now - again.since_seconds).abs() < patience.as_secs_f64()
        })
    }

    /// Marks the attachment as not seen. A sample within the length of the window continues the window.
    pub(crate) const fn wait(&mut self) {
        self.waits = true;
    }

    /// Marks the attachment as present without a measurement.
    pub(crate) const fn fail(&mut self) {
        self.fails = true;
    }

    /// Whether gaps leave open if the average is below this limit.
    pub(crate) fn lacks(&self, over: Duration, below: f64) -> bool {
        let average = self.average(over);
        self.is_interrupted || average.is_some_and(|it| it.measured < below && it.at_most >= below)
    }

    /// Adds a sample. The time of a gap, or of a clock that was set back, does not count as measured. A later sample
    /// continues the window, unless the gap is longer than the window.
    pub(crate) fn observe(&mut self, sample: Sample, over: Duration, longest_gap_seconds: f64) {
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
    pub(crate) fn average(&self, over: Duration) -> Option<Average> {
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
mod tests;
