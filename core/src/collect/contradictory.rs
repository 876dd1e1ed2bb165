//! Devices whose utilization stays high although no process is listed and no memory is in use.
//!
//! After a killed program or a suspended machine some drivers show a high utilization until a new CUDA context or a
//! reset of the GPU. A container without the host's pid namespace, WSL and a vGPU guest show a working device in the
//! same way. So such a device is contradictory, and its measurement counts as stuck only with proof that nobody uses it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::contradictions::{Contradictions, MOST_KEPT_BYTES, STANDS_SECONDS, TOLERANCE_BYTES};
use crate::duration::format_span;
use crate::gpu::{DeviceSample, GpuSample, UNUSED_RATIO};
use crate::model::DeviceIndex;

/// The contradictory devices of a host, and those that may become contradictory.
#[derive(Debug)]
pub(super) struct Contradictory {
    hostname: String,
    after_seconds: f64,
    devices: BTreeMap<DeviceIndex, Episode>,
}

/// The time in which a device shows use that nothing explains.
#[derive(Debug)]
struct Episode {
    uuid: String,
    /// The first and the last sample that show it.
    since_seconds: f64,
    shown_seconds: f64,
    /// The first sample since which every sample proves that nobody uses the device.
    proven_since_seconds: Option<f64>,
    is_logged: bool,
}

/// What one sample shows of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    /// Its utilization is high, no process is listed, and its memory is that which a driver keeps.
    Contradiction {
        /// Whether the memory is no more than this driver was seen to keep on this device.
        memory_is_own: bool,
    },
    /// It rests, or a process or memory in use explains its utilization.
    Agreement,
    /// A part of this was not answered.
    Unknown,
}

impl Contradictory {
    /// Devices of this host become contradictory after this time.
    pub(super) const fn new(hostname: String, after: Duration) -> Self {
        Self { hostname, after_seconds: after.as_secs_f64(), devices: BTreeMap::new() }
    }

    /// Follows a sample that has not passed `kept` yet, which marks lists. `sees_all`: this program sees the processes
    /// of the whole machine. `read_seconds` is the time of the sample on a clock that never goes back.
    pub(super) fn follow(&mut self, sample: &GpuSample, kept: &Contradictions, sees_all: bool, read_seconds: f64) {
        let sees_all = sees_all && sample.serves_one_machine;
        for device in &sample.devices {
            match shown(device, kept.kept_bytes(device.index)) {
                Shown::Contradiction { memory_is_own } => {
                    self.show(device, memory_is_own && sees_all, read_seconds);
                }
                Shown::Agreement => self.end(device.index),
                Shown::Unknown => self.miss(read_seconds, |index| index == device.index),
            }
        }
        self.miss(read_seconds, |index| sample.devices.iter().all(|device| device.index != index));
    }

    /// Notes that the driver did not answer.
    pub(super) fn follow_failure(&mut self, now_seconds: f64) {
        self.miss(now_seconds, |_| true);
    }

    /// Whether a device is contradictory.
    pub(super) fn includes(&self, index: DeviceIndex) -> bool {
        self.devices.get(&index).is_some_and(|it| it.lasts(self.after_seconds))
    }

    /// Whether nobody used a contradictory device for all that time.
    pub(super) fn is_stuck(&self, index: DeviceIndex) -> bool {
        self.devices.get(&index).is_some_and(|it| it.lasts(self.after_seconds) && it.is_proven(self.after_seconds))
    }

    fn show(&mut self, device: &DeviceSample, is_proof: bool, read_seconds: f64) {
        let index = device.index;
        // A device without a readable UUID is most likely the same device.
        let is_other = |it: &Episode| it.uuid != device.uuid && !it.uuid.is_empty() && !device.uuid.is_empty();
        if self.devices.get(&index).is_some_and(|it| is_other(it) || it.is_forgotten(read_seconds)) {
            self.end(index);
        }
        let episode = self.devices.entry(index).or_insert_with(|| Episode {
            uuid: device.uuid.clone(),
            since_seconds: read_seconds,
            shown_seconds: read_seconds,
            proven_since_seconds: None,
            is_logged: false,
        });
        episode.shown_seconds = read_seconds;
        episode.proven_since_seconds = is_proof.then(|| episode.proven_since_seconds.unwrap_or(read_seconds));
        if episode.lasts(self.after_seconds) && !std::mem::replace(&mut episode.is_logged, true) {
            let unseen = match episode.is_proven(self.after_seconds) {
                true => "",
                false => ", or a process that this program does not see uses the device",
            };
            tracing::warn!(
                hostname = self.hostname,
                device = %index,
                "the utilization has been above 5 % for {} without a process and without memory in use: the measurement \
                 is stuck{unseen}; a new CUDA context or a reset of the GPU ends a stuck measurement",
                format_span(read_seconds - episode.since_seconds)
            );
        }
    }

    /// Notes that these devices were not wholly answered: nothing is proven from then on, and the last contradiction
    /// stands for a while.
    fn miss(&mut self, now_seconds: f64, is_missed: impl Fn(DeviceIndex) -> bool) {
        let mut forgotten = Vec::new();
        for (&index, episode) in self.devices.iter_mut().filter(|(index, _)| is_missed(**index)) {
            episode.proven_since_seconds = None;
            if episode.is_forgotten(now_seconds) {
                forgotten.push(index);
            }
        }
        forgotten.into_iter().for_each(|index| self.end(index));
    }

    fn end(&mut self, index: DeviceIndex) {
        if self.devices.remove(&index).is_some_and(|it| it.is_logged) {
            tracing::info!(hostname = self.hostname, device = %index, "the utilization no longer contradicts the other values of the device");
        }
    }
}

impl Episode {
    fn lasts(&self, after_seconds: f64) -> bool {
        self.shown_seconds > self.since_seconds && self.shown_seconds - self.since_seconds >= after_seconds
    }

    fn is_proven(&self, after_seconds: f64) -> bool {
        self.proven_since_seconds.is_some_and(|since| self.shown_seconds - since >= after_seconds)
    }

    /// Whether the last contradiction is too old to stand.
    fn is_forgotten(&self, now_seconds: f64) -> bool {
        now_seconds - self.shown_seconds > STANDS_SECONDS
    }
}

/// What a sample shows of a device on which the driver keeps this memory, as far as that was measured.
fn shown(device: &DeviceSample, kept_bytes: Option<u64>) -> Shown {
    if device.lost {
        return Shown::Unknown;
    }
    let (utilization, memory) = (device.measurements.utilization_ratio, device.measurements.memory);
    let lists_process = device.processes.as_ref().is_some_and(|it| !it.is_empty());
    let rests = utilization.is_some_and(|ratio| ratio <= UNUSED_RATIO);
    let holds_beyond = |kept_bytes: u64| memory.is_some_and(|it| it.used_bytes > kept_bytes + TOLERANCE_BYTES);
    if device.mig_parent || lists_process || rests || holds_beyond(kept_bytes.unwrap_or(MOST_KEPT_BYTES)) {
        return Shown::Agreement;
    }
    if utilization.is_none() || memory.is_none() || !device.processes_known() {
        return Shown::Unknown;
    }
    Shown::Contradiction { memory_is_own: !holds_beyond(kept_bytes.unwrap_or(0)) }
}
