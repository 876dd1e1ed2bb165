//! The GPUs of a machine as the state lists them.

use std::collections::BTreeSet;

use super::data::DeviceState;
use crate::gpu::GpuSample;
use crate::model::{DeviceIndex, MemoryAmount};

/// The most GPUs of a machine. Each change writes a list of all.
const MOST_DEVICES: u32 = 4096;

/// The whole GPUs of a machine and their memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The memory by index; absent if the GPU does not answer.
    devices: Vec<(u32, Option<MemoryAmount>)>,
}

impl Inventory {
    /// GPUs by index, with their memory in whole MiB, as in `nvidia-smi`, if known.
    pub fn new(devices: impl IntoIterator<Item = (u32, Option<u64>)>) -> Self {
        let mut devices: Vec<_> = devices
            .into_iter()
            .filter(|(index, _)| *index < MOST_DEVICES)
            .map(|(index, mebibytes)| (index, mebibytes.map(MemoryAmount::mebibytes)))
            .collect();
        devices.sort_unstable_by_key(|(index, _)| *index);
        devices.dedup_by_key(|(index, _)| *index);
        Self { devices }
    }

    /// The whole GPUs of a sample.
    pub fn of(sample: &GpuSample) -> Self {
        let gpus = sample.devices.iter().filter_map(|device| {
            let DeviceIndex { gpu, mig: None } = device.index else {
                return None;
            };
            let memory = device.measurements.memory.filter(|_| !device.lost);
            Some((gpu, memory.map(|memory| memory.total_bytes >> 20)))
        });
        Self::new(gpus)
    }

    /// The number of GPUs, from the first to the highest index.
    pub fn count(&self) -> u32 {
        self.devices.last().map_or(0, |(index, _)| index + 1)
    }

    /// The devices, all of them free.
    pub fn devices(&self) -> Vec<DeviceState> {
        let mut devices = Vec::new();
        self.merge_into(&mut devices);
        devices
    }

    /// Updates a list of devices: adds new GPUs and changes memory amounts; removed GPUs stay. The list has every index
    /// from 0 afterwards.
    pub fn merge_into(&self, devices: &mut Vec<DeviceState>) {
        for (index, memory) in &self.devices {
            let position = devices.iter().position(|device| device.index == *index);
            let device = match position {
                Some(position) => &mut devices[position],
                None => {
                    devices.push(DeviceState { index: *index, ..DeviceState::default() });
                    let last = devices.len() - 1;
                    &mut devices[last]
                }
            };
            let differs =
                |known: MemoryAmount| memory.is_some_and(|memory| known.bytes().abs_diff(memory.bytes()) > 1 << 20);
            // Versions of nvidia-smi, which genv 1.4.3 reads, round differently.
            if device.total_memory.is_none_or(differs) {
                device.total_memory = memory.or(device.total_memory);
            }
        }
        fill_gaps(devices);
    }
}

/// Puts devices in order and adds those that are missing in between: genv 1.4.3 takes a device's position
/// for its index. Indices that no machine has are dropped.
pub(super) fn fill_gaps(devices: &mut Vec<DeviceState>) {
    devices.retain(|device| device.index < MOST_DEVICES);
    let known: BTreeSet<u32> = devices.iter().map(|device| device.index).collect();
    let count = known.last().map_or(0, |last| last + 1);
    let missing = (0..count).filter(|index| !known.contains(index));
    devices.extend(missing.map(|index| DeviceState { index, ..DeviceState::default() }));
    devices.sort_by_key(|device| device.index);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, total: &str) -> DeviceState {
        DeviceState { index, total_memory: MemoryAmount::from_file(total).ok(), attachments: Vec::new() }
    }

    fn merged(known: &[DeviceState], found: &[(u32, Option<u64>)]) -> Vec<DeviceState> {
        let mut devices = known.to_vec();
        Inventory::new(found.iter().copied()).merge_into(&mut devices);
        devices
    }

    #[test]
    fn a_new_machine_lists_all_its_gpus() {
        assert_eq!(merged(&[], &[(1, Some(200)), (0, Some(100))]), [device(0, "100mi"), device(1, "200mi")]);
        assert_eq!(merged(&[], &[]), []);
    }

    #[test]
    fn gpus_are_added_and_keep_the_written_form_of_their_memory() {
        let known = [device(0, "16g"), device(1, "15258mi"), device(2, "15258mi")];
        let found = [(0, Some(15_258)), (1, Some(15_259)), (3, Some(40_000))];
        assert_eq!(
            merged(&known, &found),
            [device(0, "16g"), device(1, "15258mi"), device(2, "15258mi"), device(3, "40000mi")]
        );
        assert_eq!(
            merged(&known, &[(0, None), (1, Some(81_559))]),
            [device(0, "16g"), device(1, "81559mi"), device(2, "15258mi")]
        );
    }

    #[test]
    fn a_gap_is_filled_with_a_device_of_unknown_memory() {
        let unknown = DeviceState { index: 0, ..DeviceState::default() };
        assert_eq!(merged(&[], &[(1, Some(5))]), [unknown, device(1, "5mi")]);
        assert_eq!(merged(&[device(u32::MAX, "5mi")], &[]), []);
    }
}
