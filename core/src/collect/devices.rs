//! The devices of a snapshot, and the environments that hold them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::{HashMap, HashSet, HashSetExt as _};

use super::contradictions::Contradictions;
use super::contradictory::Contradictory;
use crate::attribute::LiveEnvironment;
use crate::gpu::{DeviceSample, GpuSample};
use crate::model::{Attachment, Device, DeviceIndex, MemoryAmount, Occupants};
use crate::state::{DeviceState, State};

/// The number of GPUs that one message names.
const MOST_NAMED: usize = 16;

/// Every device that was seen. Each index has the device that was last seen there: metrics have the index alone, so
/// that another device replaces its predecessor.
#[derive(Debug, Default)]
pub(super) struct Devices(BTreeMap<DeviceIndex, KnownDevice>);

/// The facts of a device that stay known while it does not answer.
#[derive(Debug, Default)]
struct KnownDevice {
    uuid: String,
    name: Option<String>,
    minor: Option<u32>,
    profile: Option<String>,
    gpu_instance: Option<u32>,
    mig_parent: bool,
    memory_total_bytes: Option<u64>,
}

impl Devices {
    /// All devices, without attachments. A device that the sample lacks is not up.
    pub(super) fn show(
        &mut self,
        sample: Option<&GpuSample>,
        processes_wanted: bool,
        contradictions: &Contradictions,
        contradictory: &Contradictory,
    ) -> Vec<Device> {
        let mut samples: BTreeMap<DeviceIndex, &DeviceSample> = BTreeMap::new();
        for device in sample.iter().flat_map(|sample| &sample.devices) {
            self.remember(device);
            if !device.lost {
                samples.insert(device.index, device);
            }
        }
        self.0
            .iter()
            .map(|(index, known)| {
                let sample = samples.get(index);
                // An impossible reading of a GPU leaves open who uses its parts.
                let is_doubted = samples.get(&index.whole()).is_some_and(|whole| whole.processes_incomplete);
                Device {
                    index: *index,
                    uuid: known.uuid.clone(),
                    up: sample.is_some(),
                    name: known.name.clone(),
                    minor: known.minor,
                    profile: known.profile.clone(),
                    gpu_instance: known.gpu_instance,
                    mig_parent: known.mig_parent,
                    mig_unsplit: sample.is_some_and(|s| s.mig_unsplit),
                    measurements: sample.map_or_else(Default::default, |s| s.measurements.clone()),
                    processes_measured: processes_wanted
                        && !is_doubted
                        && sample.is_some_and(|s| !s.mig_parent && s.processes_known()),
                    use_unexplained: sample.is_some() && contradictions.is_use_unexplained(*index),
                    contradictory: sample.is_some() && contradictory.includes(*index),
                    measurement_stuck: sample.is_some() && contradictory.is_stuck(*index),
                    attachments: Arc::default(),
                }
            })
            .collect()
    }

    /// Updates the facts of a device. A missing reading, as of a lost device, keeps the earlier value.
    fn remember(&mut self, device: &DeviceSample) {
        let known = self.0.entry(device.index).or_default();
        if known.uuid != device.uuid {
            *known = KnownDevice { uuid: device.uuid.clone(), ..KnownDevice::default() };
        }
        let memory = &device.measurements.memory;
        learn(&mut known.name, &device.name);
        learn(&mut known.minor, &device.minor);
        learn(&mut known.profile, &device.profile);
        learn(&mut known.gpu_instance, &device.gpu_instance);
        learn(&mut known.memory_total_bytes, &memory.map(|memory| memory.total_bytes));
        if !device.lost {
            known.mig_parent = device.mig_parent;
        }
    }

    /// The whole GPUs that the driver showed before, or that environments hold, and that the driver does not show now,
    /// in one clause. The driver does show a lost GPU.
    pub(super) fn missing(
        &self,
        sample: &GpuSample,
        state: Option<&State>,
        live: &[LiveEnvironment<'_>],
    ) -> Option<String> {
        let shown: BTreeSet<u32> = sample.devices.iter().map(|it| it.index.gpu).collect();
        let before = self.0.keys().filter(|index| index.mig.is_none());
        let before = before.map(|index| index.gpu);
        let lives: HashSet<&str> = live.iter().map(|it| it.environment.eid.as_str()).collect();
        let held = state.map_or(&[][..], |it| &it.devices).iter();
        let held = held.filter(|it| {
            let mut attachments = it.attachments.iter();
            attachments.any(|it| lives.contains(it.eid.as_str()))
        });
        let held = held.map(|it| it.index);
        let missing: BTreeSet<u32> = before.chain(held).filter(|it| !shown.contains(it)).collect();
        let named: Vec<String> = missing.iter().take(MOST_NAMED).map(u32::to_string).collect();
        let more = if missing.len() > MOST_NAMED { " and others" } else { "" };
        (!missing.is_empty()).then(|| {
            format!(
                "the driver does not show GPU {}{more}, which it showed before or which an environment holds",
                named.join(", ")
            )
        })
    }

    /// Adds the attachments of environments that live.
    pub(super) fn attach(
        &self,
        devices: &mut [Device],
        state: &State,
        live: &[LiveEnvironment<'_>],
        occupants: &Occupants,
    ) {
        let eids = live.iter().map(|live| live.environment.eid.as_str());
        let mut seen_at: HashMap<&str, usize> = eids.map(|eid| (eid, usize::MAX)).collect();
        for (number, held) in state.devices.iter().enumerate() {
            let index = DeviceIndex::gpu(held.index);
            let (Some(known), Ok(position)) = (self.0.get(&index), devices.binary_search_by_key(&index, |d| d.index))
            else {
                continue;
            };
            let total_bytes = known.memory_total_bytes.or(held.total_memory.map(MemoryAmount::bytes));
            let device = &mut devices[position];
            let mut attachments = attachments(number, held, total_bytes, &mut seen_at);
            if occupants.saw_another(device) {
                for attachment in &mut attachments {
                    let attached_seconds = attachment.attached_timestamp_seconds;
                    attachment.moved = occupants.was_another(device, attached_seconds);
                }
            }
            device.attachments = Arc::new(attachments);
        }
    }
}

/// Environments whose attachment is older than the GPU at the index: another GPU was at the index then.
pub(super) fn moved_environments<'a>(state: &'a State, devices: &[Device], occupants: &Occupants) -> HashSet<&'a str> {
    let mut moved = HashSet::new();
    for device in devices.iter().filter(|it| occupants.saw_another(it)) {
        let held = state.devices.iter();
        let held = held.filter(|held| DeviceIndex::gpu(held.index) == device.index);
        for attachment in held.flat_map(|held| &held.attachments) {
            if occupants.was_another(device, attachment.attached_timestamp_seconds) {
                moved.insert(attachment.eid.as_str());
            }
        }
    }
    moved
}

/// The attachments of a device, one for each environment. `seen_at` has, for each living environment, the number of the
/// device at which the environment was last seen.
fn attachments(
    number: usize,
    held: &DeviceState,
    total_bytes: Option<u64>,
    seen_at: &mut HashMap<&str, usize>,
) -> Vec<Attachment> {
    let mut attachments: Vec<Attachment> = Vec::with_capacity(held.attachments.len());
    for attachment in &held.attachments {
        if let Some(seen_at) = seen_at.get_mut(attachment.eid.as_str())
            && std::mem::replace(seen_at, number) != number
        {
            attachments.push(Attachment {
                eid: attachment.eid.clone(),
                memory_bytes: attachment.gpu_memory.map(MemoryAmount::bytes),
                share_ratio: share(attachment.gpu_memory.map(MemoryAmount::bytes), total_bytes),
                attached_timestamp_seconds: attachment.attached_timestamp_seconds,
                moved: false,
            });
        }
    }
    let claimed: f64 = attachments.iter().map(|attachment| attachment.share_ratio).sum();
    if claimed > 1.0 {
        // The last share is reduced by rounding errors, so that the sum never exceeds 1.
        let mut given = 0.0;
        for attachment in &mut attachments {
            attachment.share_ratio = (attachment.share_ratio / claimed).min(1.0 - given);
            given += attachment.share_ratio;
        }
    }
    attachments
}

/// The part of a device that an attachment claims: all of it without an amount, or if the total is not known.
fn share(claimed_bytes: Option<u64>, total_bytes: Option<u64>) -> f64 {
    match (claimed_bytes, total_bytes) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio of byte counts needs no more than 53 bits")]
        (Some(claimed), Some(total)) if total > 0 => (claimed as f64 / total as f64).min(1.0),
        _ => 1.0,
    }
}

fn learn<T: Clone>(known: &mut Option<T>, reading: &Option<T>) {
    if reading.is_some() {
        known.clone_from(reading);
    }
}
