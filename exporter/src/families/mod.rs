//! Every metric family, as a function of the publication: nothing is stored, so nothing can be stale.
//!
//! To add a metric, add a [`Family`] to the file of what it describes, and its line to `docs/metrics.md`
//! (`UPDATE_DOCS=1 cargo test -p genv-tests --test documents` writes it).

use genv_core::model::HostSnapshot;
use genv_web::metrics::MetricFamily;
use genv_web::metrics::Samples;
pub use genv_web::metrics::{Family, Kind};

use crate::host::Host;

mod collector;
mod device;
mod environment;
mod process;
mod queue;
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
    ("The queue for devices", queue::FAMILIES),
    ("Users", user::FAMILIES),
    ("Processes", process::FAMILIES),
];

/// Adds the samples of a family on the hosts, each with the label `hostname`.
fn add_of_hosts(family: &HostFamily, hosts: &[Host<'_>], samples: &mut Samples) {
    for host in hosts {
        samples.of_host(host.name());
        (family.samples)(host, samples);
    }
}

/// The families about these hosts that have a sample, one after the other: no more than one is in memory at a time.
pub fn of_hosts<'a>(
    hosts: impl IntoIterator<Item = &'a HostSnapshot>,
    limits: Limits,
    samples: &mut Samples,
    mut each: impl FnMut(&MetricFamily),
) {
    let hosts: Vec<_> = hosts.into_iter().map(|host| Host::new(host, limits)).collect();
    for family in GROUPS.iter().flat_map(|(_, families)| *families) {
        let family = samples.of(family, |samples| add_of_hosts(family, &hosts, samples));
        if !family.is_empty() {
            each(family);
        }
    }
}
