//! Devices whose utilization stays high although no process is listed and no memory is in use.
//!
//! After a killed program or a suspended machine some drivers show a high utilization until a new CUDA context or a
//! reset of the GPU. A container without the host's pid namespace, WSL and a vGPU guest show a working device in the
//! same way. So such a device is contradictory, and its measurement counts as stuck only with proof that nobody uses it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::contradictions::{Contradictions, MOST_KEPT_BYTES, STANDS_SECONDS, TOLERANCE_BYTES};
use crate::gpu::{DeviceSample, GpuSample, UNUSED_RATIO};
use crate::model::DeviceIndex;

/// The longest time between two samples of a proof: nobody knows what happened in a longer time.
const MOST_GAP_SECONDS: f64 = 60.0;

/// The fewest samples of a proof.
const LEAST_SAMPLES: u32 = 10;

/// The contradictory devices of a host, and those that may become contradictory.
#[derive(Debug)]
pub(super) struct Contradictory {
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
    proof: Option<Proof>,
}

/// The samples without a break that prove that nobody uses the device: the time of the first, and their number.
#[derive(Clone, Copy, Debug)]
struct Proof {
    since_seconds: f64,
    samples: u32,
}

/// What one sample shows of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    /// Its utilization is high, no process is listed, and its memory is that which a driver keeps.
    Contradiction {
        /// Whether all lists were answered, and the memory is no more than this driver was seen to keep on this device.
        is_unused: bool,
    },
    /// It rests, or a process or memory in use explains its utilization.
    Agreement,
    /// A part of this was not answered.
    Unknown,
}

impl Contradictory {
    /// Devices become contradictory after this time.
    pub(super) const fn new(after: Duration) -> Self {
        Self { after_seconds: after.as_secs_f64(), devices: BTreeMap::new() }
    }

    /// Follows a sample that has not passed `kept` yet, which marks lists. `sees_all`: this program sees the processes
    /// of the whole machine. `read_seconds` is the time of the sample on a clock that never goes back.
    pub(super) fn follow(&mut self, sample: &GpuSample, kept: &Contradictions, sees_all: bool, read_seconds: f64) {
        let sees_all = sees_all && sample.serves_one_machine;
        for device in &sample.devices {
            match shown(device, kept) {
                Shown::Contradiction { is_unused } => self.show(device, is_unused && sees_all, read_seconds),
                Shown::Agreement => drop(self.devices.remove(&device.index)),
                Shown::Unknown => self.miss(read_seconds, |index| index == device.index),
            }
        }
        self.miss(read_seconds, |index| sample.devices.iter().all(|device| device.index != index));
    }

    /// Forgets everything: the samples that follow are of another driver, or of one that was loaded anew.
    pub(super) fn end_all(&mut self) {
        self.devices.clear();
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
            self.devices.remove(&index);
        }
        let episode = self.devices.entry(index).or_insert_with(|| Episode {
            uuid: device.uuid.clone(),
            since_seconds: read_seconds,
            shown_seconds: read_seconds,
            proof: None,
        });
        let is_gap = read_seconds - episode.shown_seconds > MOST_GAP_SECONDS;
        let before = episode.proof.filter(|_| !is_gap);
        episode.shown_seconds = read_seconds;
        episode.proof = is_proof.then(|| match before {
            Some(proof) => Proof { samples: proof.samples.saturating_add(1), ..proof },
            None => Proof { since_seconds: read_seconds, samples: 1 },
        });
    }

    /// Notes that these devices were not wholly answered: nothing is proven from then on, and the last contradiction
    /// stands for a while.
    fn miss(&mut self, now_seconds: f64, is_missed: impl Fn(DeviceIndex) -> bool) {
        self.devices.retain(|index, episode| {
            let missed = is_missed(*index);
            episode.proof.take_if(|_| missed);
            !missed || !episode.is_forgotten(now_seconds)
        });
    }
}

impl Episode {
    fn lasts(&self, after_seconds: f64) -> bool {
        self.shown_seconds > self.since_seconds && self.shown_seconds - self.since_seconds >= after_seconds
    }

    fn is_proven(&self, after_seconds: f64) -> bool {
        let spans = |it: Proof| it.samples >= LEAST_SAMPLES && self.shown_seconds - it.since_seconds >= after_seconds;
        self.proof.is_some_and(spans)
    }

    /// Whether the last contradiction is too old to stand.
    fn is_forgotten(&self, now_seconds: f64) -> bool {
        now_seconds - self.shown_seconds > STANDS_SECONDS
    }
}

/// What a sample shows of a device, by the memory that the driver keeps on it, as far as that was measured.
fn shown(device: &DeviceSample, kept: &Contradictions) -> Shown {
    if device.lost {
        return Shown::Unknown;
    }
    let (utilization, memory) = (device.measurements.utilization_ratio, device.measurements.memory);
    let lists_process = device.processes.as_ref().is_some_and(|it| !it.is_empty());
    let rests = utilization.is_some_and(|ratio| ratio <= UNUSED_RATIO);
    let holds_beyond = |kept_bytes: u64| memory.is_some_and(|it| it.used_bytes > kept_bytes + TOLERANCE_BYTES);
    let kept_bytes = kept.kept_bytes(device.index).unwrap_or(MOST_KEPT_BYTES);
    if device.mig_parent || lists_process || rests || holds_beyond(kept_bytes) {
        return Shown::Agreement;
    }
    if utilization.is_none() || memory.is_none() || !device.processes_known() {
        return Shown::Unknown;
    }
    let proven_bytes = kept.proven_kept_bytes(device.index).unwrap_or(0);
    Shown::Contradiction { is_unused: device.lists_answered && !holds_beyond(proven_bytes) }
}
