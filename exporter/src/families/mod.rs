//! Every metric family, as a function of the publication: nothing is stored, so nothing can be stale.
//!
//! To add a metric, add a [`Family`] to the file of what it describes, and its line to `docs/metrics.md`
//! (`UPDATE_DOCS=1 cargo test -p genv-exporter documentation` writes it).

use genv_core::model::HostSnapshot;
use prometheus::proto::{MetricFamily, MetricType};

use crate::host::Host;
use crate::samples::Samples;

mod collector;
mod device;
mod environment;
mod process;
mod user;

pub mod genv1;
pub mod own;

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
    samples: S,
}

/// A family about a host.
pub type HostFamily = Family<fn(&Host<'_>, &mut Samples)>;

/// The types of the text format that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May go up and down; two samples with the same labels are added.
    Gauge,
    /// A gauge of which two samples with the same labels mean the larger one: information, moments.
    Largest,
    /// Only goes up, and starts at 0 with the exporter or the driver.
    Counter,
}

impl Kind {
    /// The type in the words of the text format.
    #[must_use]
    pub const fn metric_type(self) -> MetricType {
        match self {
            Self::Gauge | Self::Largest => MetricType::GAUGE,
            Self::Counter => MetricType::COUNTER,
        }
    }
}

/// What of a publication is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes of a host that have series of their own; the others are summed.
    pub processes: usize,
}

/// All families about hosts by what they describe, in the order in which they are written.
pub const GROUPS: &[(&str, &[HostFamily])] = &[
    ("Hosts and collectors", collector::FAMILIES),
    ("Devices", device::FAMILIES),
    ("Environments", environment::FAMILIES),
    ("Users", user::FAMILIES),
    ("Processes", process::FAMILIES),
];

impl HostFamily {
    /// The samples of this family on the hosts, each with the label `hostname`; absent without any.
    fn of_hosts(&self, hosts: &[Host<'_>]) -> Option<MetricFamily> {
        let mut samples = Samples::new(self.kind, self.labels);
        for host in hosts {
            samples.of_host(host.name());
            (self.samples)(host, &mut samples);
        }
        samples.into_family(self.name, self.help)
    }
}

/// The families about these hosts that have a sample, made one after the other, so that no more than
/// one is in memory at a time.
pub fn of_hosts<'a>(
    hosts: impl IntoIterator<Item = &'a HostSnapshot>,
    limits: Limits,
) -> impl Iterator<Item = MetricFamily> {
    let hosts: Vec<_> = hosts
        .into_iter()
        .map(|host| Host::new(host, limits))
        .collect();
    let families = GROUPS.iter().flat_map(|(_, families)| *families);
    families.filter_map(move |family| family.of_hosts(&hosts))
}
