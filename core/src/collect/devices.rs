//! The devices of a snapshot, and which environments hold them.

use std::collections::{BTreeMap, HashMap};

use crate::attribute::LiveEnvironment;
use crate::gpu::{DeviceSample, GpuSample};
use crate::model::{Attachment, Device, DeviceIndex, MemoryAmount};
use crate::state::{DeviceState, State};

/// Every device once seen. At an index is the device that was last seen there: metrics are
/// told apart by the index alone, so another device takes its predecessor's place.
#[derive(Debug, Default)]
pub(super) struct Devices(BTreeMap<DeviceIndex, Known>);

/// What stays known of a device that does not answer.
#[derive(Debug, Default)]
struct Known {
    uuid: String,
    name: Option<String>,
    minor: Option<u32>,
    profile: Option<String>,
    mig_parent: bool,
    memory_total_bytes: Option<u64>,
}

impl Devices {
    /// All devices, without attachments; those that the sample does not show are not up.
    pub(super) fn show(
        &mut self,
        sample: Option<&GpuSample>,
        processes_wanted: bool,
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
                Device {
                    index: *index,
                    uuid: known.uuid.clone(),
                    up: sample.is_some(),
                    name: known.name.clone(),
                    minor: known.minor,
                    profile: known.profile.clone(),
                    mig_parent: known.mig_parent,
                    measurements: sample.map_or_else(Default::default, |s| s.measurements.clone()),
                    processes_measured: processes_wanted
                        && sample.is_some_and(|s| !s.mig_parent && s.processes_known()),
                    attachments: Vec::new(),
                }
            })
            .collect()
    }

    /// What a device does not tell this time, as one that is lost, it told before.
    fn remember(&mut self, device: &DeviceSample) {
        let known = self.0.entry(device.index).or_default();
        if known.uuid != device.uuid {
            *known = Known {
                uuid: device.uuid.clone(),
                ..Known::default()
            };
        }
        let memory = &device.measurements.memory;
        learn(&mut known.name, &device.name);
        learn(&mut known.minor, &device.minor);
        learn(&mut known.profile, &device.profile);
        learn(
            &mut known.memory_total_bytes,
            &memory.map(|memory| memory.total_bytes),
        );
        if !device.lost {
            known.mig_parent = device.mig_parent;
        }
    }

    /// Adds the attachments of environments that live.
    pub(super) fn attach(
        &self,
        devices: &mut [Device],
        state: &State,
        live: &[LiveEnvironment<'_>],
    ) {
        let eids = live.iter().map(|live| live.environment.eid.as_str());
        let mut seen_at: HashMap<&str, usize> = eids.map(|eid| (eid, usize::MAX)).collect();
        for (number, held) in state.devices.iter().enumerate() {
            let index = DeviceIndex::gpu(held.index);
            let (Some(known), Ok(position)) = (
                self.0.get(&index),
                devices.binary_search_by_key(&index, |d| d.index),
            ) else {
                continue;
            };
            let total_bytes = known
                .memory_total_bytes
                .or(held.total_memory.map(MemoryAmount::bytes));
            devices[position].attachments = attachments(number, held, total_bytes, &mut seen_at);
        }
    }
}

/// The attachments of a device, each environment's once. `seen_at` has for each that lives the number of the device at
/// which it was seen last.
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
            });
        }
    }
    let claimed: f64 = attachments
        .iter()
        .map(|attachment| attachment.share_ratio)
        .sum();
    if claimed > 1.0 {
        // What rounding adds is taken off the last, so that the sum never exceeds 1.
        let mut given = 0.0;
        for attachment in &mut attachments {
            attachment.share_ratio = (attachment.share_ratio / claimed).min(1.0 - given);
            given += attachment.share_ratio;
        }
    }
    attachments
}

/// The part of a device that a claim asks for: all of it without an amount, or if it cannot be
/// told how much there is.
fn share(claimed_bytes: Option<u64>, total_bytes: Option<u64>) -> f64 {
    match (claimed_bytes, total_bytes) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a ratio of byte counts needs no more than 53 bits"
        )]
        (Some(claimed), Some(total)) if total > 0 => (claimed as f64 / total as f64).min(1.0),
        _ => 1.0,
    }
}

fn learn<T: Clone>(known: &mut Option<T>, told: &Option<T>) {
    if told.is_some() {
        known.clone_from(told);
    }
}
