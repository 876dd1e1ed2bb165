//! Which facts of a host are new, and how long nothing may be heard before time stops to count.

use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

use crate::config::Config;

/// Whether facts may be acted upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// There are none, or they are too old.
    Missing,
    /// They are those of the last cycle.
    Repeated,
    /// They were read since the last cycle.
    New,
}

/// When the facts of a host were read, by its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadTimes {
    /// The snapshot was made, Unix time.
    pub(crate) snapshot_seconds: Option<f64>,
    /// The driver was asked, Unix time.
    pub(crate) gpu_seconds: Option<f64>,
    /// The processes were read, Unix time.
    pub(crate) processes_seconds: Option<f64>,
    /// The state was read, Unix time.
    pub(crate) state_seconds: Option<f64>,
}

/// What was read last of a host, and when it was last news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LastRead {
    /// By the clock of the host.
    pub(crate) times: ReadTimes,
    /// When its environments and attachments were last new, Unix time by the clock here.
    pub(crate) state_news_seconds: Option<f64>,
    /// When its devices and processes were last new, Unix time by the clock here.
    pub(crate) gpu_news_seconds: Option<f64>,
}

impl LastRead {
    /// Notes what a cycle was planned with.
    pub(crate) fn follow(&mut self, freshness: &HostFreshness, now_seconds: f64) {
        let last_gpu_seconds = self.times.gpu_seconds;
        self.times = freshness.read;
        self.times.gpu_seconds = self.times.gpu_seconds.or(last_gpu_seconds);
        if freshness.state == Freshness::New {
            self.state_news_seconds = Some(now_seconds);
        }
        if freshness.gpu == Freshness::New {
            self.gpu_news_seconds = Some(now_seconds);
        }
    }
}

impl ReadTimes {
    fn of(snapshot: &Snapshot) -> Self {
        let of = |collector: &str| {
            let status = snapshot.collectors.get(collector);
            status.filter(|status| status.current).map(|status| status.timestamp_seconds)
        };
        // A collector that does not tell when it read was read for this snapshot.
        let of = |collector| of(collector).map(|time| time.unwrap_or(snapshot.timestamp_seconds));
        Self {
            snapshot_seconds: Some(snapshot.timestamp_seconds).filter(|time| time.is_finite()),
            gpu_seconds: of("gpu").filter(|time| time.is_finite()),
            processes_seconds: of("processes").filter(|time| time.is_finite()),
            state_seconds: of("state").filter(|time| time.is_finite()),
        }
    }
}

/// What may be concluded from the latest snapshot of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFreshness {
    /// Environments and attachments.
    pub(crate) state: Freshness,
    /// Devices and the processes on them too.
    pub(crate) gpu: Freshness,
    /// When they were read; empty where they are too old.
    pub(crate) read: ReadTimes,
    /// The time of the request for the state, before it was read, Unix time by this machine's clock.
    pub(crate) state_asked_seconds: Option<f64>,
    /// What a gap between two observations may last for time to count through it.
    pub(crate) longest_gap_seconds: f64,
    /// By how much the clock of the host is ahead of the one here.
    pub(crate) clock_ahead_seconds: f64,
}

/// Three missed intervals, and never less than this, are a gap.
const SHORTEST_GAP_SECONDS: f64 = 30.0;
/// No collection is slower.
const LONGEST_INTERVAL_SECONDS: f64 = 3600.0;

impl HostFreshness {
    /// A host of which nothing may be concluded.
    pub(crate) fn missing(longest_gap_seconds: f64) -> Self {
        Self {
            state: Freshness::Missing,
            gpu: Freshness::Missing,
            read: ReadTimes::default(),
            state_asked_seconds: None,
            longest_gap_seconds,
            clock_ahead_seconds: 0.0,
        }
    }

    /// Judges the latest snapshot of `host`, `last` being that of the last cycle.
    pub(crate) fn of(host: &HostSnapshot, last: LastRead, config: &Config, now_seconds: f64) -> Self {
        let interval = config.interval.as_secs_f64();
        let gap = |interval: f64| (3.0 * interval).max(SHORTEST_GAP_SECONDS);
        let Some(snapshot) = host.snapshot.as_ref().filter(|_| host.up) else {
            return Self::missing(gap(interval));
        };
        let told = snapshot.interval_seconds;
        let told = if told.is_finite() { told.clamp(0.0, LONGEST_INTERVAL_SECONDS) } else { 0.0 };
        let longest_gap_seconds = gap(interval.max(told));
        let received = host.received_timestamp_seconds.unwrap_or(snapshot.timestamp_seconds);
        // What comes from the future is as old as a clock that jumped: nobody knows.
        let age = (now_seconds - received).abs();
        if age.is_nan() || age > longest_gap_seconds {
            return Self::missing(longest_gap_seconds);
        }
        let read = ReadTimes::of(snapshot);
        let freshness = |now: Option<f64>, last: Option<f64>| match now {
            None => Freshness::Missing,
            // What is older than what was seen came late, or the host's clock was set back: the next one tells.
            Some(now) if last.is_some_and(|last| now <= last) => Freshness::Repeated,
            Some(_) => Freshness::New,
        };
        // Whoever sends the same again and again is as silent as who sends nothing.
        let lasting = |freshness, news_seconds: Option<f64>| {
            let age = news_seconds.map_or(f64::INFINITY, |news| (now_seconds - news).abs());
            if freshness == Freshness::Repeated && age > longest_gap_seconds { Freshness::Missing } else { freshness }
        };
        let times = last.times;
        let state = freshness(read.snapshot_seconds, times.snapshot_seconds)
            .min(freshness(read.processes_seconds, times.processes_seconds))
            .min(freshness(read.state_seconds, times.state_seconds));
        let state = lasting(state, last.state_news_seconds);
        let gpu = freshness(read.gpu_seconds, times.gpu_seconds);
        let clock_ahead_seconds = clock_ahead_seconds(snapshot.timestamp_seconds - received);
        let state_status = snapshot.collectors.get("state");
        let asked_seconds = state_status.and_then(CollectorStatus::asked_seconds);
        Self {
            state,
            gpu: state.min(lasting(gpu, last.gpu_news_seconds)),
            read,
            state_asked_seconds: asked_seconds.map(|asked| asked - clock_ahead_seconds),
            longest_gap_seconds,
            clock_ahead_seconds,
        }
    }

    /// For a rule that looks at devices and processes, or at environments and attachments alone.
    pub(crate) fn for_rule(&self, needs_processes: bool) -> Freshness {
        if needs_processes { self.gpu } else { self.state }
    }
}

/// Clocks that differ by less than this are the same: what is left is how long a snapshot takes.
const SAME_CLOCK_SECONDS: f64 = 30.0;

/// The difference of two clocks, in whole minutes, lest what is compared by it change its order from cycle to cycle.
fn clock_ahead_seconds(measured: f64) -> f64 {
    if !measured.is_finite() || measured.abs() < SAME_CLOCK_SECONDS {
        return 0.0;
    }
    (measured / 60.0).round() * 60.0
}

/// Time during which something was observed: neither gaps, nor waiting, nor a clock that is set back add to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ObservedTime {
    /// How much.
    pub(crate) seconds: f64,
    /// Unix time up to which it was counted; absent while it waits.
    pub(crate) until_seconds: Option<f64>,
}

impl ObservedTime {
    /// Begins now.
    pub(crate) const fn begin(now_seconds: f64) -> Self {
        Self { seconds: 0.0, until_seconds: Some(now_seconds) }
    }

    /// How much it is if it is observed now.
    pub(crate) fn at(&self, now_seconds: f64, longest_gap_seconds: f64) -> f64 {
        let gap = self.until_seconds.map(|until| now_seconds - until);
        let counted = gap.filter(|gap| (0.0..=longest_gap_seconds).contains(gap));
        self.seconds + counted.unwrap_or(0.0)
    }

    /// How much it will be at a time, if it is observed from now until then.
    pub(crate) fn when(&self, seconds: f64, now_seconds: f64) -> f64 {
        self.seconds + (seconds - self.until_seconds.unwrap_or(now_seconds))
    }

    /// It is observed now.
    pub(crate) fn observe(&mut self, now_seconds: f64, longest_gap_seconds: f64) {
        self.seconds = self.at(now_seconds, longest_gap_seconds);
        self.until_seconds = Some(now_seconds);
    }

    /// It waits now.
    pub(crate) const fn wait(&mut self) {
        self.until_seconds = None;
    }
}
