//! Metric families, from the facts of a daemon to the bytes that Prometheus reads.
//!
//! A daemon describes each family once, as a [`Family`]. Its [`Samples`] are made anew for every rendering, so that none
//! can be stale. The text of each [`MetricFamily`] is a piece of a [`LazyText`]. [`GzipPieces`] reuses the
//! compressed text of samples that are equal to those of the page before.

mod label;
mod label_rows;
mod lazy_text;
mod own_process;
mod pieces;
mod process;
mod samples;

pub use label::LabelValue;
pub use label_rows::{LabelRow, LabelRows};
pub use lazy_text::{LazyText, METRICS, TextSink, encode};
pub use own_process::OwnProcess;
pub use pieces::GzipPieces;
pub use process::{OwnFamily, PROCESS_FAMILIES, of_build, of_process};
pub use samples::{MetricFamily, Samples};

/// One metric family, and how its samples are derived by `S`.
pub struct Family<S> {
    /// Its full name.
    pub name: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// Labels (besides `hostname`, if it is about a host), in the order in which they are written.
    pub labels: &'static [&'static str],
    /// Its meaning and unit, in one sentence.
    pub help: &'static str,
    /// The function that adds the samples.
    pub samples: S,
}

/// The types of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May go up and down. Two samples with the same labels are added.
    Gauge,
    /// A gauge. Of two samples with the same labels the larger one stays: information, timestamps.
    Largest,
    /// Only goes up, and starts at 0 with the daemon or the driver.
    Counter,
}

impl Kind {
    /// The name of the type in the text format.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gauge | Self::Largest => "gauge",
            Self::Counter => "counter",
        }
    }
}
