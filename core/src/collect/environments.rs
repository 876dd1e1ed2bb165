//! The environments of a snapshot, and their use of each device.

use foldhash::{HashMap, HashSet};

use super::view::Usernames;
use crate::attribute::LiveEnvironment;
use crate::model::{Device, DeviceIndex, Environment, EnvironmentDevice, MemoryAmount, Process};
use crate::proc::ProcessTable;
use crate::state::State;

/// The living environments, by eid.
///
/// `attributed`: processes could be attributed; otherwise no use is measured.
pub(super) fn environments(
    live: &[LiveEnvironment<'_>],
    state: Option<&State>,
    devices: &[Device],
    processes: &[Process],
    attributed: bool,
    table: &ProcessTable,
    usernames: &Usernames,
) -> Vec<Environment> {
    let mut live: Vec<_> = live.iter().collect();
    live.sort_unstable_by_key(|live| &live.environment.eid);
    live.dedup_by_key(|live| &live.environment.eid);
    let eids = live.iter().map(|live| live.environment.eid.as_str());
    let positions: Positions<'_> = eids.zip(0..).collect();
    let mut environments: Vec<Environment> = live
        .iter()
        .map(|live| {
            let environment = live.environment;
            Environment {
                eid: environment.eid.clone(),
                uid: Some(table.owner(environment.uid)),
                username: usernames.of(table.owner(environment.uid)),
                name: environment.name.clone(),
                created_timestamp_seconds: environment.created_timestamp_seconds,
                lease_end_timestamp_seconds: state.and_then(|it| it.lease_end(&environment.eid)),
                gpus: environment.gpus,
                gpu_memory_bytes: environment.gpu_memory.map(MemoryAmount::bytes),
                oldest_member_started_timestamp_seconds: live.oldest_member_started_timestamp_seconds,
                foreign_members: live.foreign.len(),
                members: live.members.clone(),
                kernel_ids: environment.kernel_ids.clone(),
                devices: Vec::new(),
                confirmed: Vec::new(),
            }
        })
        .collect();

    attach(&mut environments, &positions, state, devices, attributed);
    for process in processes {
        let eid = process.attribution.eid();
        let Some(position) = eid.and_then(|eid| positions.get(eid)) else {
            continue;
        };
        let used = &mut environments[*position].devices;
        for row in &process.devices {
            let device = device_of(used, row.index, devices);
            device.memory_used_bytes = sum(device.memory_used_bytes.get(), row.memory_used_bytes.get()).into();
            device.utilization_ratio = device
                .utilization_ratio
                .get()
                .zip(row.utilization_ratio.get())
                .map(|(sum, utilization)| (sum + utilization).min(1.0))
                .into();
        }
    }
    for environment in &mut environments {
        environment.devices.sort_unstable_by_key(|device| device.index);
    }
    environments
}

/// Positions of environments in their list, by eid.
type Positions<'a> = HashMap<&'a str, usize>;

/// Adds the devices that environments are attached to, without use so far. A device that no driver has shown is held
/// too.
fn attach(
    environments: &mut [Environment],
    positions: &Positions<'_>,
    state: Option<&State>,
    devices: &[Device],
    attributed: bool,
) {
    for held in state.iter().flat_map(|state| &state.devices) {
        let index = DeviceIndex::gpu(held.index);
        let device = devices.iter().find(|device| device.index == index);
        let measured = attributed && device.is_some_and(is_measured);
        let total_bytes = device
            .and_then(|device| device.measurements.memory)
            .map(|memory| memory.total_bytes)
            .or(held.total_memory.map(MemoryAmount::bytes));
        let moved: HashSet<&str> = device
            .iter()
            .flat_map(|device| device.attachments.iter())
            .filter(|it| it.moved)
            .map(|it| it.eid.as_str())
            .collect();
        for attachment in &held.attachments {
            let measured = measured && !moved.contains(attachment.eid.as_str());
            let Some(position) = positions.get(attachment.eid.as_str()) else {
                continue;
            };
            let used = &mut environments[*position].devices;
            if used.iter().any(|device| device.index == index) {
                continue;
            }
            used.push(EnvironmentDevice {
                index,
                attached: true,
                memory_used_bytes: measured.then_some(0).into(),
                memory_capacity_bytes: attachment.gpu_memory.map(MemoryAmount::bytes).or(total_bytes).into(),
                utilization_ratio: measured.then_some(0.0).into(),
                last_active_timestamp_seconds: None.into(),
            });
        }
    }
}

fn device_of<'u>(
    used: &'u mut Vec<EnvironmentDevice>,
    index: DeviceIndex,
    devices: &[Device],
) -> &'u mut EnvironmentDevice {
    let position = used.iter().position(|device| device.index == index);
    let position = position.unwrap_or_else(|| {
        let device = devices.iter().find(|device| device.index == index);
        let measured = device.is_some_and(is_measured);
        used.push(EnvironmentDevice {
            index,
            attached: false,
            memory_used_bytes: measured.then_some(0).into(),
            memory_capacity_bytes: None.into(),
            utilization_ratio: measured.then_some(0.0).into(),
            last_active_timestamp_seconds: None.into(),
        });
        used.len() - 1
    });
    &mut used[position]
}

/// Whether the absence of an environment's processes on a device means that the environment does not use the device.
const fn is_measured(device: &Device) -> bool {
    device.processes_measured && !device.use_unexplained
}

/// The sum; unknown if a part is unknown.
fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.zip(b).map(|(a, b)| a.saturating_add(b))
}

/// The last activity of each living environment on each device, Unix time, by eid.
#[derive(Debug, Default)]
pub(super) struct LastActive(HashMap<String, Vec<(DeviceIndex, f64)>>);

impl LastActive {
    /// Notes activity by a new sample, which was read at `sampled_timestamp_seconds`. Fills in the last activity of
    /// each environment, and forgets ended environments and devices that an environment no longer has.
    pub(super) fn update(
        &mut self,
        environments: &mut [Environment],
        sampled_timestamp_seconds: Option<f64>,
        busy_above: f64,
    ) {
        let mut known = std::mem::take(&mut self.0);
        self.0.reserve(known.len());
        for environment in environments {
            let (eid, known) = known.remove_entry(&environment.eid).unzip();
            let mut active_on = Vec::with_capacity(environment.devices.len());
            for device in &mut environment.devices {
                let active = device
                    .utilization_ratio
                    .get()
                    .is_some_and(|utilization| utilization > 0.0 && utilization >= busy_above);
                let mut known = known.iter().flatten();
                let last = known.find(|(index, _)| *index == device.index);
                let last = last.map(|(_, timestamp_seconds)| *timestamp_seconds);
                let last = sampled_timestamp_seconds.filter(|_| active).or(last);
                device.last_active_timestamp_seconds = last.into();
                active_on.extend(last.map(|last| (device.index, last)));
            }
            if !active_on.is_empty() {
                let eid = eid.unwrap_or_else(|| environment.eid.clone());
                self.0.insert(eid, active_on);
            }
        }
    }
}
