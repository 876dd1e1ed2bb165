//! The last samples of each device, for graphs.

use std::collections::{HashMap, VecDeque};

use genv_core::model::{Device, DeviceIndex, HostSnapshot};

/// The number of kept samples: more than the widest graph shows.
const KEPT: usize = 64;

/// The samples of each device by host, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History(HashMap<String, HashMap<DeviceIndex, VecDeque<Sample>>>);

/// The measurements of a device at one publication.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    utilization: Option<f32>,
    memory: Option<f32>,
}

impl History {
    /// Adds a sample of each device of a publication. A device that is not in it gets an unknown sample.
    pub(super) fn record(&mut self, hosts: &[HostSnapshot]) {
        self.0.retain(|hostname, _| hosts.iter().any(|host| host.hostname == *hostname));
        for host in hosts {
            let devices = match self.0.get_mut(&host.hostname) {
                Some(devices) => devices,
                None => self.0.entry(host.hostname.clone()).or_default(),
            };
            let listed = host.snapshot.iter().flat_map(|it| &it.devices);
            let listed: HashMap<DeviceIndex, Sample> = listed.map(|it| (it.index, sample(it))).collect();
            for index in listed.keys() {
                devices.entry(*index).or_default();
            }
            for (index, samples) in devices {
                if samples.len() == KEPT {
                    samples.pop_front();
                }
                samples.push_back(listed.get(index).copied().unwrap_or_default());
            }
        }
    }

    /// The utilizations of a device, the newest last.
    pub(super) fn utilization(&self, hostname: &str, index: DeviceIndex) -> Vec<Option<f32>> {
        self.samples(hostname, index).map(|it| it.utilization).collect()
    }

    /// The parts of its memory in use, the newest last.
    pub(super) fn memory(&self, hostname: &str, index: DeviceIndex) -> Vec<Option<f32>> {
        self.samples(hostname, index).map(|it| it.memory).collect()
    }

    fn samples(&self, hostname: &str, index: DeviceIndex) -> impl Iterator<Item = &Sample> {
        self.0.get(hostname).and_then(|devices| devices.get(&index)).into_iter().flatten()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a graph has eight levels")]
fn sample(device: &Device) -> Sample {
    let measured = &device.measurements;
    let memory = measured.memory.filter(|it| it.total_bytes > 0);
    Sample {
        utilization: measured.utilization_ratio.map(|it| it as f32),
        memory: memory.map(|it| it.used_bytes as f32 / it.total_bytes as f32),
    }
}
