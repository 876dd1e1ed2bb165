//! Every metric family, as a function of the publication: nothing is stored, so nothing can be stale.
//!
//! To add a metric, add a [`Family`] to the file of what it describes, and its line to `docs/metrics.md`
//! (`UPDATE_DOCS=1 cargo test -p genv-exporter documentation` writes it).

use genv_core::model::HostSnapshot;
use genv_web::metrics::MetricFamily;
use genv_web::metrics::Samples;
pub use genv_web::metrics::{Family, Kind};

use crate::host::Host;

mod collector;
mod device;
mod environment;
mod process;
mod user;

pub mod genv1;
pub mod own;

/// A family about a host.
pub type HostFamily = Family<fn(&Host<'_>, &mut Samples)>;

/// What of a publication is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes of a host that have series of their own; the others are summed. Without, no process has.
    pub processes: Option<usize>,
}

/// All families about hosts by what they describe, in the order in which they are written.
pub const GROUPS: &[(&str, &[HostFamily])] = &[
    ("Hosts and collectors", collector::FAMILIES),
    ("Devices", device::FAMILIES),
    ("Environments", environment::FAMILIES),
    ("Users", user::FAMILIES),
    ("Processes", process::FAMILIES),
];

/// The samples of a family on the hosts, each with the label `hostname`; absent without any.
fn on_hosts(family: &HostFamily, hosts: &[Host<'_>]) -> Option<MetricFamily> {
    let mut samples = Samples::new(family.kind, family.labels);
    for host in hosts {
        samples.of_host(host.name());
        (family.samples)(host, &mut samples);
    }
    samples.into_family(family.name, family.help)
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
    families.filter_map(move |family| on_hosts(family, &hosts))
}
