//! Every metric family, as a function of the publication: no value is stored, so none can be stale.
//!
//! To add a metric, add a [`Family`] to the file of its subject, and its line to `docs/metrics.md`
//! (`UPDATE_DOCS=1 cargo test -p genv-tests --test monitoring documents` writes the line).

use genv_core::model::HostSnapshot;
use genv_web::metrics::MetricFamily;
use genv_web::metrics::Samples;
pub use genv_web::metrics::{Family, Kind};

use crate::host::PublishedHost;

mod collector;
mod device;
mod environment;
mod process;
mod queue;
mod user;

pub mod genv1;
pub mod own;

/// A family about a host.
pub type HostFamily = Family<fn(&PublishedHost<'_>, &mut Samples)>;

/// Limits of the shown series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Processes of a host with series of their own; the others are summed. `None`: no process has series.
    pub processes: Option<usize>,
}

/// All families about hosts by subject, in the order in which they are written.
pub const GROUPS: &[(&str, &[HostFamily])] = &[
    ("Hosts and collectors", collector::FAMILIES),
    ("Devices", device::FAMILIES),
    ("Environments", environment::FAMILIES),
    ("The queue for devices", queue::FAMILIES),
    ("Users", user::FAMILIES),
    ("Processes", process::FAMILIES),
];

/// The families of all [`GROUPS`].
pub fn all() -> impl Iterator<Item = &'static HostFamily> {
    GROUPS.iter().flat_map(|(_, families)| *families)
}

/// Adds the samples of a family for a host, with the label `hostname`.
pub(crate) fn add_of_host(family: &HostFamily, host: &PublishedHost<'_>, samples: &mut Samples) {
    samples.of_host(host.name());
    (family.samples)(host, samples);
}

/// The families about these hosts that have a sample, in pieces, of which one is in memory at a time.
pub fn of_hosts<'a>(
    hosts: impl IntoIterator<Item = &'a HostSnapshot>,
    limits: Limits,
    samples: &mut Samples,
    mut each: impl FnMut(&MetricFamily),
) {
    let hosts: Vec<_> = hosts.into_iter().map(|host| PublishedHost::new(host, limits)).collect();
    for family in all() {
        samples.of_each(family, &hosts, |host, samples| add_of_host(family, host, samples), &mut each);
    }
}
