//! The account of one GPU.

use std::collections::{BTreeMap, BTreeSet};

use super::observed::{ObservedDevice, UserUse};
use super::{UserId, Users};
use crate::gpu::XidEvent;
use crate::gpu::bounds::most_joules;
use crate::model::{Counters, DeviceEnergy, DeviceIndex, DeviceSeconds, DeviceXid, UserDeviceUse, UserXid};

/// The counters of one GPU's index.
#[derive(Debug, Default)]
pub(super) struct DeviceAccount {
    users: BTreeMap<UserId, UserAccount>,
    xid_errors: BTreeMap<u64, XidAccount>,
    /// Whether energy or power was ever measured, so that 0 joules is a measurement.
    energy_measured: bool,
    /// Whether the utilization of processes was ever measured, so that 0 is a measurement.
    utilization_measured: bool,
    utilization_published: bool,
    meter: Option<EnergyMeter>,
    /// Device-seconds that each user held since the last reading of the meter.
    held_since: BTreeMap<UserId, f64>,
}

/// The counters of one user on one GPU.
#[derive(Debug, Default)]
struct UserAccount {
    published: bool,
    seconds: DeviceSeconds,
    utilized_device_seconds: f64,
    energy_joules: f64,
}

#[derive(Debug, Default)]
struct XidAccount {
    published: bool,
    errors: u64,
    last_timestamp_seconds: f64,
    users: BTreeMap<UserId, UserXidAccount>,
}

#[derive(Debug, Default)]
struct UserXidAccount {
    published: bool,
    errors: u64,
}

/// The last reading of a device's energy counter.
#[derive(Debug)]
struct EnergyMeter {
    uuid: String,
    joules: f64,
    read_seconds: f64,
    /// The users of the device at that time.
    users: BTreeSet<UserId>,
}

/// The least time for which a driver keeps samples of use. After a gap of at most this length, the reported use is the
/// use during the gap. Driver 580 keeps 72 samples of an H200, one each 0.2 s.
const SAMPLES_KEPT_SECONDS: f64 = 10.0;

impl DeviceAccount {
    pub(super) fn step(
        &mut self,
        before: Option<&ObservedDevice>,
        now: Option<&ObservedDevice>,
        elapsed_seconds: f64,
        busy_above: f64,
    ) {
        let measured = now.filter(|now| now.read_seconds.is_some());
        if let Some(before) = before {
            self.charge_time(before, measured, elapsed_seconds, busy_above);
            self.remember_holders(before, elapsed_seconds);
        }
        if let Some(now) = measured {
            self.charge_utilization(now, elapsed_seconds);
            let gap_seconds = self.gap_seconds(before, now);
            let joules = self.energy_increase(before, now);
            match gap_seconds {
                Some(seconds) => self.charge_energy_of_gap(seconds, joules),
                None => self.charge_energy(before, now, joules),
            }
            if now.energy_joules.is_some() {
                self.held_since.clear();
            }
        }
        if let Some(now) = now {
            self.open_accounts(now);
        }
    }

    /// Begins the counters of all users that the next step may charge, so that they are published as 0 before.
    fn open_accounts(&mut self, now: &ObservedDevice) {
        for holder in &now.holders {
            self.users.entry(holder.user).or_default();
        }
        for user in now.users.iter().flatten() {
            if user.user != UserId::NOBODY {
                self.users.entry(user.user).or_default();
            }
        }
        if self.energy_measured {
            self.users.entry(UserId::NOBODY).or_default();
        }
    }

    fn charge_time(
        &mut self,
        before: &ObservedDevice,
        measured: Option<&ObservedDevice>,
        elapsed_seconds: f64,
        busy_above: f64,
    ) {
        for holder in &before.holders {
            let seconds = &mut self.users.entry(holder.user).or_default().seconds;
            let measured = measured.filter(|now| now.uuid == before.uuid && !holder.moved);
            let busy = measured.and_then(|now| is_busy(now, holder.user, busy_above));
            // The driver does not report the use of an ended process.
            let ended =
                before.use_by(holder.user).is_some() && measured.is_some_and(|now| now.use_by(holder.user).is_none());
            let counter = match busy {
                Some(true) => &mut seconds.busy,
                Some(false) if !ended => &mut seconds.idle,
                Some(false) | None => &mut seconds.unmeasured,
            };
            *counter += holder.share_ratio * elapsed_seconds;
        }
        if before.read_seconds.is_some() {
            for user in before.users.iter().flatten() {
                if user.outside && user.user != UserId::NOBODY {
                    self.users.entry(user.user).or_default().seconds.outside += elapsed_seconds;
                }
            }
        }
    }

    fn charge_utilization(&mut self, now: &ObservedDevice, elapsed_seconds: f64) {
        let mut users = now.users.iter();
        self.utilization_measured |= users.any(|users| users.is_empty() || users.iter().any(|user| !user.unmeasured));
        let scale = 1.0 / total_utilization(now).max(1.0);
        for user in now.users.iter().flatten() {
            if user.user != UserId::NOBODY && user.utilization_ratio > 0.0 {
                self.users.entry(user.user).or_default().utilized_device_seconds +=
                    user.utilization_ratio * scale * elapsed_seconds;
            }
        }
    }

    /// Joules since the device's last reading.
    ///
    /// A counter that fell was reset with the driver. A counter that rose by more than the device can use jumped. In
    /// both cases the increase is at most the present value of the counter, and at most power × time. Power × time is
    /// charged only between two consecutive measurements, and never for a device with a counter: the next reading of
    /// the counter covers the gap.
    fn energy_increase(&mut self, before: Option<&ObservedDevice>, now: &ObservedDevice) -> f64 {
        let Some(now_seconds) = now.read_seconds else {
            return 0.0;
        };
        if self.meter.as_ref().is_some_and(|m| m.uuid != now.uuid) {
            self.meter = None;
        }
        if now.energy_joules.is_some() || now.power_watts.is_some() {
            self.energy_measured = true;
        }
        let increase = match (now.energy_joules, &self.meter) {
            (Some(joules), Some(last)) => {
                let seconds = now_seconds - last.read_seconds;
                let rose = joules - last.joules;
                let most = most_joules(now.power_limit_watts, seconds);
                if (0.0..=most).contains(&rose) {
                    rose
                } else {
                    joules.min(now.power_watts.map_or(0.0, |watts| watts * seconds))
                }
            }
            (None, Some(_)) | (Some(_), None) => 0.0,
            (None, None) => power_times_time(before, now).unwrap_or(0.0),
        };
        if let Some(joules) = now.energy_joules {
            self.meter = Some(EnergyMeter {
                uuid: now.uuid.clone(),
                joules,
                read_seconds: now_seconds,
                users: active_users(now).collect(),
            });
        }
        increase.max(0.0)
    }

    /// Adds the time that begins with an observation to the holders of the device at that observation.
    fn remember_holders(&mut self, before: &ObservedDevice, elapsed_seconds: f64) {
        let shares: f64 = before.known_holders().map(|it| it.share_ratio).sum();
        for holder in before.known_holders().filter(|_| shares > 0.0) {
            let seconds = self.held_since.entry(holder.user).or_default();
            *seconds += elapsed_seconds * holder.share_ratio / shares;
        }
    }

    /// The time in which the counter was not read, if the reported use is not the use during that time: the time was
    /// too long, or a user works now who did not work before.
    fn gap_seconds(&self, before: Option<&ObservedDevice>, now: &ObservedDevice) -> Option<f64> {
        let meter = self.meter.as_ref()?;
        if before.and_then(|before| before.read_seconds) == Some(meter.read_seconds) {
            return None;
        }
        let seconds = now.read_seconds? - meter.read_seconds;
        let is_same_use = active_users(now).all(|user| meter.users.contains(&user));
        (seconds > SAMPLES_KEPT_SECONDS || !is_same_use).then_some(seconds)
    }

    /// Charges the energy of a gap to the holders of the device during the gap, by share and time. The energy of the
    /// time without a known holder is charged to no user.
    fn charge_energy_of_gap(&mut self, seconds: f64, joules: f64) {
        let held: f64 = self.held_since.values().sum();
        let whole = seconds.max(held);
        if joules <= 0.0 || whole <= 0.0 {
            return;
        }
        let mut charge = |user, seconds: f64| {
            self.users.entry(user).or_default().energy_joules += joules * seconds / whole;
        };
        for (user, seconds) in &self.held_since {
            charge(*user, *seconds);
        }
        charge(UserId::NOBODY, whole - held);
    }

    fn charge_energy(&mut self, before: Option<&ObservedDevice>, now: &ObservedDevice, joules: f64) {
        if joules <= 0.0 {
            return;
        }
        let mut charge = |user, part: f64| {
            self.users.entry(user).or_default().energy_joules += joules * part;
        };
        let utilization = total_utilization(now);
        if utilization > 0.0 {
            for user in now.users.iter().flatten() {
                charge(user.user, user.utilization_ratio / utilization);
            }
            return;
        }
        let before = before.filter(|before| before.uuid == now.uuid);
        let holders: Vec<_> = before.iter().flat_map(|it| it.known_holders()).collect();
        let shares: f64 = holders.iter().map(|holder| holder.share_ratio).sum();
        if shares > 0.0 {
            for holder in holders {
                charge(holder.user, holder.share_ratio / shares);
            }
        } else {
            charge(UserId::NOBODY, 1.0);
        }
    }

    /// Counts an XID error, and charges it once to each user who held the device at the time of the error: at the last
    /// observation, or since an attachment that is older than the error.
    pub(super) fn charge_xid(
        &mut self,
        event: &XidEvent,
        before: Option<&ObservedDevice>,
        now: Option<&ObservedDevice>,
    ) {
        let account = self.xid_errors.entry(event.xid).or_default();
        account.errors += 1;
        account.last_timestamp_seconds = account.last_timestamp_seconds.max(event.timestamp_seconds);
        let held_before = before.into_iter().flat_map(|it| it.known_holders());
        let attached_since = now.into_iter().flat_map(|it| it.known_holders()).filter(|holder| {
            holder.attached_timestamp_seconds.is_some_and(|attached| attached <= event.timestamp_seconds)
        });
        let mut users: Vec<UserId> = held_before.chain(attached_since).map(|h| h.user).collect();
        users.sort_unstable();
        users.dedup();
        for user in users {
            account.users.entry(user).or_default().errors += 1;
        }
    }

    pub(super) fn publish(&mut self, gpu: u32, users: &Users, counters: &mut Counters) {
        let index = DeviceIndex::gpu(gpu);
        let mut device_joules = 0.0;
        for (user, account) in &mut self.users {
            let shown = if account.published { &*account } else { &UserAccount::default() };
            device_joules += shown.energy_joules;
            let is_user = *user != UserId::NOBODY;
            counters.user_device_use.push(UserDeviceUse {
                username: users.name(*user).to_owned(),
                index,
                device_seconds: is_user.then_some(shown.seconds),
                utilized_device_seconds: (is_user && self.utilization_measured)
                    .then_some(if self.utilization_published { shown.utilized_device_seconds } else { 0.0 }),
                energy_joules: self.energy_measured.then_some(shown.energy_joules),
            });
            account.published = true;
        }
        self.utilization_published = self.utilization_measured;
        if self.energy_measured {
            counters.device_energy.push(DeviceEnergy { index, energy_joules: device_joules });
        }
        for (xid, account) in &mut self.xid_errors {
            let shown = if account.published { account.errors } else { 0 };
            counters.device_xid_errors.push(DeviceXid {
                index,
                xid: *xid,
                errors: shown,
                last_timestamp_seconds: (shown > 0).then_some(account.last_timestamp_seconds),
            });
            account.published = true;
            for (user, user_account) in &mut account.users {
                counters.user_xid_errors.push(UserXid {
                    username: users.name(*user).to_owned(),
                    index,
                    xid: *xid,
                    errors: if user_account.published { user_account.errors } else { 0 },
                });
                user_account.published = true;
            }
        }
    }
}

/// Whether the user's processes reached the threshold. Absent if this is not known: some of the processes were not
/// measured, or processes without a known user may belong to the user.
fn is_busy(now: &ObservedDevice, user: UserId, busy_above: f64) -> Option<bool> {
    now.users.as_ref()?;
    let own = now.use_by(user);
    let unknown = now.use_by(UserId::NOBODY);
    let sum = |user: Option<&UserUse>| user.map_or(0.0, |user| user.utilization_ratio);
    if own.is_some() && sum(own) >= busy_above {
        return Some(true);
    }
    let mut candidates = own.into_iter().chain(unknown);
    let could_be_busy =
        candidates.any(|user| user.unmeasured) || unknown.is_some() && sum(own) + sum(unknown) >= busy_above;
    (!could_be_busy).then_some(false)
}

/// The users whose processes used the device.
fn active_users(device: &ObservedDevice) -> impl Iterator<Item = UserId> {
    let users = device.users.iter().flatten();
    users.filter(|it| it.utilization_ratio > 0.0).map(|it| it.user)
}

fn total_utilization(device: &ObservedDevice) -> f64 {
    let users = device.users.iter().flatten();
    users.map(|user| user.utilization_ratio).sum()
}

/// Mean power × time between two consecutive measurements of the same device.
fn power_times_time(before: Option<&ObservedDevice>, now: &ObservedDevice) -> Option<f64> {
    let before = before.filter(|before| before.uuid == now.uuid)?;
    let seconds = now.read_seconds? - before.read_seconds?;
    Some((before.power_watts? + now.power_watts?) / 2.0 * seconds)
}
