//! The facts of one moment that accounting uses.

use super::{UserId, Users};
use crate::attribute::{changed_user, unknown_owner};
use crate::gpu::XidEvent;
use crate::model::{Attribution, Snapshot};

/// The read of the GPU source since the last observation.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuReading {
    /// When the source read the devices, in seconds of a clock that never goes back; absent if the source has not
    /// answered since.
    pub(crate) read_seconds: Option<f64>,
    /// XID errors that happened since.
    pub(crate) xid_events: Vec<XidEvent>,
}

/// One host at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Whole GPUs, by index.
    pub(crate) devices: Vec<ObservedDevice>,
    /// XID errors that happened since the last observation.
    pub(crate) xid_events: Vec<XidEvent>,
}

/// One whole GPU at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedDevice {
    pub(crate) gpu: u32,
    pub(crate) uuid: String,
    /// When the values below were measured; absent if they were not measured since the last observation.
    pub(crate) read_seconds: Option<f64>,
    pub(crate) energy_joules: Option<f64>,
    pub(crate) power_watts: Option<f64>,
    pub(crate) power_limit_watts: Option<f64>,
    /// Attachments.
    pub(crate) holders: Vec<DeviceHolder>,
    /// The use by each user with a process on the device, each user once. [`UserId::NOBODY`] stands for processes
    /// without a known user. Absent if the use of the device is not measured.
    pub(crate) users: Option<Vec<UserUse>>,
}

/// One attachment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceHolder {
    pub(crate) user: UserId,
    pub(crate) share_ratio: f64,
    /// Unix time.
    pub(crate) attached_timestamp_seconds: Option<f64>,
    /// Whether another GPU was at the index at the time of the attachment.
    pub(crate) moved: bool,
}

/// The use of one device by the processes of one user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct UserUse {
    pub(crate) user: UserId,
    /// Sum over the measured processes.
    pub(crate) utilization_ratio: f64,
    /// Whether some processes were not measured.
    pub(crate) unmeasured: bool,
    /// Whether some processes are in no environment.
    pub(crate) outside: bool,
}

impl Observed {
    /// The facts of a snapshot. MIG devices count as parts of their GPU.
    pub(crate) fn of(snapshot: &Snapshot, reading: GpuReading, users: &mut Users) -> Self {
        let owners = snapshot.owners();
        let mut devices: Vec<ObservedDevice> = Vec::new();
        for device in &snapshot.devices {
            if device.index.mig.is_some() {
                continue;
            }
            let read_seconds = reading.read_seconds.filter(|_| device.up);
            devices.push(ObservedDevice {
                gpu: device.index.gpu,
                uuid: device.uuid.clone(),
                read_seconds,
                energy_joules: device.measurements.energy_joules,
                power_watts: device.measurements.power_watts,
                power_limit_watts: device.measurements.power_limit_watts,
                holders: device
                    .attachments
                    .iter()
                    .filter_map(|attachment| {
                        let user = users.id(owners.of_environment(&attachment.eid)?);
                        (user != UserId::NOBODY).then_some(DeviceHolder {
                            user,
                            share_ratio: attachment.share_ratio,
                            attached_timestamp_seconds: attachment.attached_timestamp_seconds,
                            moved: attachment.moved,
                        })
                    })
                    .collect(),
                users: snapshot.use_measured(device.index.gpu).then(Vec::new),
            });
        }

        for process in &snapshot.processes {
            let user = match &process.attribution {
                // A process that sudo, su or a spawner started runs as another user than the one it works for.
                attribution if changed_user(attribution) => None,
                Attribution::Unknown { .. } => unknown_owner(process),
                _ => owners.of_process(process),
            };
            let user = user.map_or(UserId::NOBODY, |name| users.id(name));
            let outside = matches!(process.attribution, Attribution::Outside { .. });
            for row in &process.devices {
                if let Some(device) = find(&mut devices, row.index.gpu)
                    && let Some(device_users) = &mut device.users
                {
                    add(device_users, user, row.utilization_ratio.get(), outside);
                }
            }
        }
        Self { devices, xid_events: reading.xid_events }
    }

    pub(super) fn device(&self, gpu: u32) -> Option<&ObservedDevice> {
        let position = self.devices.binary_search_by_key(&gpu, |d| d.gpu).ok()?;
        Some(&self.devices[position])
    }
}

impl ObservedDevice {
    /// The attachments with a known GPU.
    pub(super) fn known_holders(&self) -> impl Iterator<Item = &DeviceHolder> {
        self.holders.iter().filter(|holder| !holder.moved)
    }

    pub(super) fn use_by(&self, user: UserId) -> Option<&UserUse> {
        self.users.as_ref()?.iter().find(|u| u.user == user)
    }
}

fn find(devices: &mut [ObservedDevice], gpu: u32) -> Option<&mut ObservedDevice> {
    let position = devices.binary_search_by_key(&gpu, |d| d.gpu).ok()?;
    Some(&mut devices[position])
}

fn add(users: &mut Vec<UserUse>, user: UserId, utilization_ratio: Option<f64>, outside: bool) {
    let position = users.iter().position(|u| u.user == user).unwrap_or_else(|| {
        users.push(UserUse { user, utilization_ratio: 0.0, unmeasured: false, outside: false });
        users.len() - 1
    });
    let entry = &mut users[position];
    entry.utilization_ratio += utilization_ratio.unwrap_or(0.0).max(0.0);
    entry.unmeasured |= utilization_ratio.is_none();
    entry.outside |= outside;
}
