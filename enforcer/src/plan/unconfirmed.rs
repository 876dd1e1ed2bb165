//! Attachments that nothing shows to be their user's doing.

use std::collections::{BTreeMap, BTreeSet};

/// GPUs by host and environment. A rule may take such a device back, before those that the user attached, and does nothing
/// else because of it: no process ends, and no other device is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unconfirmed(BTreeMap<String, BTreeMap<String, BTreeSet<u32>>>);

impl Unconfirmed {
    pub(crate) fn add(&mut self, hostname: &str, eid: &str, gpu: u32) {
        let host = self.0.entry(hostname.to_owned()).or_default();
        host.entry(eid.to_owned()).or_default().insert(gpu);
    }

    /// The GPUs of one environment.
    pub(crate) fn of(&self, hostname: &str, eid: &str) -> Option<&BTreeSet<u32>> {
        self.0.get(hostname)?.get(eid)
    }
}
