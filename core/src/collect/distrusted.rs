//! Counts values that were out of their bounds, and logs the first of each kind.

use std::collections::BTreeMap;

use crate::gpu::bounds;
use crate::model::{DeviceDistrusted, DeviceIndex};

/// How many values of each device and kind were distrusted: at most devices × kinds.
#[derive(Debug, Default)]
pub(super) struct Distrusted(BTreeMap<(DeviceIndex, &'static str), Account>);

#[derive(Debug, Default)]
struct Account {
    published: bool,
    readings: u64,
}

impl Distrusted {
    /// Counts what was taken out of a sample.
    pub(super) fn count(&mut self, distrusted: &[bounds::Distrusted]) {
        for it in distrusted {
            let account = self.0.entry((it.index, it.reading)).or_default();
            if account.readings == 0 {
                tracing::warn!(
                    device = %it.index,
                    reading = it.reading,
                    value = it.value,
                    "the driver tells a value that cannot be: it is left out, and counted from now on without a line"
                );
            }
            account.readings += 1;
        }
    }

    /// The counters for one publication; each is 0 the first time, so that its rise can be seen.
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
