//! Counts values out of their bounds, and logs the first value of each kind.

use std::collections::BTreeMap;

use crate::gpu::bounds;
use crate::model::{DeviceDistrusted, DeviceIndex};

/// The number of distrusted values by device and kind: at most devices × kinds.
#[derive(Debug, Default)]
pub(super) struct DistrustedCounts(BTreeMap<(DeviceIndex, &'static str), DistrustedCount>);

#[derive(Debug, Default)]
struct DistrustedCount {
    published: bool,
    readings: u64,
}

impl DistrustedCounts {
    /// Counts the values that were removed from a sample of this host.
    pub(super) fn count(&mut self, hostname: &str, distrusted: &[bounds::Distrusted]) {
        for it in distrusted {
            let account = self.0.entry((it.index, it.reading)).or_default();
            if account.readings == 0 {
                tracing::warn!(
                    hostname,
                    device = %it.index,
                    reading = it.reading,
                    value = it.value,
                    "the driver reported an impossible value: it is left out, and further ones are only counted"
                );
            }
            account.readings += 1;
        }
    }

    /// The counters for one publication. Each is published once as 0 before it rises.
    pub(super) fn publish(&mut self) -> Vec<DeviceDistrusted> {
        let accounts = self.0.iter_mut();
        let shown = accounts.map(|((index, reading), account)| DeviceDistrusted {
            index: *index,
            reading: (*reading).to_owned(),
            readings: if std::mem::replace(&mut account.published, true) { account.readings } else { 0 },
        });
        shown.collect()
    }
}
