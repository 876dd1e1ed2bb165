//! Counters that outlive a snapshot: device-seconds, utilization, energy and XID errors, charged to users.
//!
//! Time between two observations belongs to the holders of the device at the first observation. The values that the
//! driver reports at the second observation (utilization, the energy counter) cover the time between. Every amount is
//! added once, to one user, so that over any window the users' increases add up to the increase of the device.
//!
//! A counter is published once as 0 before it rises, since Prometheus' `increase()` does not count the first value of a
//! series; the amount until then is shown one publication later. A device's energy is the sum of the published energy
//! of its users, so that this delay never breaks the equality.
//!
//! Counters live as long as the ledger. There are at most users × devices of them, each a few numbers, and at most
//! `MOST_USERS` users.

mod device;
mod observed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use foldhash::HashMap;

use device::DeviceAccount;
pub(crate) use observed::{GpuReading, Observed};

use crate::model::{Counters, NOBODY};

/// The number of users with counters of their own. Every user may write the state and invent any number of users;
/// further users count as [`UserId::NOBODY`].
const MOST_USERS: usize = 4096;

/// A user of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UserId(usize);

impl UserId {
    /// Stands for all use without a known user.
    pub(crate) const NOBODY: Self = Self(0);
}

/// Names of users, kept once.
#[derive(Debug)]
pub(crate) struct Users {
    names: Vec<String>,
    ids: HashMap<String, UserId>,
}

impl Users {
    fn new() -> Self {
        Self { names: vec![NOBODY.to_owned()], ids: HashMap::from_iter([(NOBODY.to_owned(), UserId::NOBODY)]) }
    }

    /// The id of a name, the same each time; [`UserId::NOBODY`] if there are too many users.
    pub(crate) fn id(&mut self, name: &str) -> UserId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.names.len() > MOST_USERS {
            return UserId::NOBODY;
        }
        let id = UserId(self.names.len());
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    fn name(&self, id: UserId) -> &str {
        &self.names[id.0]
    }
}

/// All accumulated counters of one host.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) users: Users,
    /// By index of the GPU: as metrics, counters belong to an index.
    devices: BTreeMap<u32, DeviceAccount>,
    busy_above: f64,
}

impl Ledger {
    /// An empty ledger. Held time is busy from the utilization `busy_above` on, 0–1.
    pub(crate) fn new(busy_above: f64) -> Self {
        Self { users: Users::new(), devices: BTreeMap::new(), busy_above }
    }

    /// Charges the time between two observations, which lie `elapsed_seconds` apart.
    pub(crate) fn step(&mut self, previous: &Observed, current: &Observed, elapsed_seconds: f64) {
        for now in &current.devices {
            self.devices.entry(now.gpu).or_default().step(
                previous.device(now.gpu),
                Some(now),
                elapsed_seconds,
                self.busy_above,
            );
        }
        for before in &previous.devices {
            if current.device(before.gpu).is_none() {
                self.devices.entry(before.gpu).or_default().step(Some(before), None, elapsed_seconds, self.busy_above);
            }
        }
        for event in &current.xid_events {
            let gpu = event.index.gpu;
            self.devices.entry(gpu).or_default().charge_xid(event, previous.device(gpu), current.device(gpu));
        }
    }

    /// The counters for one publication. Each call counts as a publication.
    pub(crate) fn publish(&mut self) -> Counters {
        let mut counters = Counters::default();
        for (gpu, account) in &mut self.devices {
            account.publish(*gpu, &self.users, &mut counters);
        }
        counters
    }
}
