//! Metric families, from what a daemon knows to the bytes that Prometheus reads.
//!
//! A daemon describes each family once, as a [`Family`]; its [`Samples`] are made anew for every rendering, so that
//! nothing can be stale. The text of each [`MetricFamily`] is a piece of a [`Text`], which is made when it is asked for.

mod label;
mod own_process;
mod process;
mod rows;
mod samples;
mod text;

pub use label::LabelValue;
pub use own_process::OwnProcess;
pub use process::{OwnFamily, PROCESS_FAMILIES, of_build, of_process};
pub use rows::{Row, Rows};
pub use samples::{MetricFamily, Samples};
pub use text::{METRICS, Out, Text};

/// One metric family, and how its samples are derived by `S`.
pub struct Family<S> {
    /// Its full name.
    pub name: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// Labels (besides `hostname`, if it is about a host), in the order in which they are written.
    pub labels: &'static [&'static str],
    /// What it means, with its unit: one sentence.
    pub help: &'static str,
    /// Adds the samples of what is looked at.
    pub samples: S,
}

/// The types of the text format that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May go up and down; two samples with the same labels are added.
    Gauge,
    /// A gauge of which two samples with the same labels mean the larger one: information, moments.
    Largest,
    /// Only goes up, and starts at 0 with the daemon or the driver.
    Counter,
}

impl Kind {
    /// The type in the words of the text format.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gauge | Self::Largest => "gauge",
            Self::Counter => "counter",
        }
    }
}
