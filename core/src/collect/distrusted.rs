//! Counts values out of their bounds.

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
    /// Counts the values that were removed from a sample.
    pub(super) fn count(&mut self, distrusted: &[bounds::Distrusted]) {
        for it in distrusted {
            let account = self.0.entry((it.index, it.reading)).or_default();
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
