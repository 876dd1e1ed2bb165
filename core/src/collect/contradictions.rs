//! Devices whose other answers contradict that no process uses them.
//!
//! A driver lists the processes of the pid namespace that asks: from within a container without the host's namespace
//! every device seems unused. Some drivers leave processes out for other reasons. A device that works, or holds memory
//! that the driver itself does not need, is used by a process that is not listed: then its processes are not known.

use std::collections::{BTreeMap, BTreeSet};

use crate::gpu::{DeviceSample, GpuSample, UNUSED_RATIO};
use crate::model::{DeviceIndex, DeviceMeasurements};

/// Memory that a driver keeps on an empty device at most: what it keeps is measured, the smallest amount that was seen
/// without a process, and no more than this is believed of a device that was never seen with less.
const MOST_KEPT_BYTES: u64 = 1 << 30;

/// By how much that changes without a process.
const TOLERANCE_BYTES: u64 = 64 << 20;

/// For how long answers may contradict each other, and in two samples at least: utilization is that of the last second,
/// and a process may end between two calls.
const PATIENCE_SECONDS: f64 = 10.0;

/// What is remembered of the devices of a host.
#[derive(Debug, Default)]
pub(super) struct Contradictions {
    devices: BTreeMap<DeviceIndex, Watched>,
    driver_version: Option<String>,
    /// Whether the driver ever listed a process.
    listed: bool,
    logged: bool,
}

#[derive(Debug, Default)]
struct Watched {
    uuid: String,
    /// The least memory that was in use while no process was listed.
    kept_bytes: Option<u64>,
    /// When its answers began to contradict each other, and how many samples in a row they do.
    since_seconds: Option<f64>,
    samples: u32,
}

impl Contradictions {
    /// Marks the processes of devices as incomplete that contradict their lists, in a sample that was read at
    /// `read_seconds` of a clock that never goes back. Returns all GPUs that do so now, also those that have not done
    /// so for long enough: until that is decided, nobody is charged for leaving them idle.
    pub(super) fn mark(&mut self, sample: &mut GpuSample, read_seconds: f64) -> BTreeSet<u32> {
        let mut suspected = BTreeSet::new();
        // Another driver may keep more.
        if self.driver_version != sample.driver_version {
            self.driver_version.clone_from(&sample.driver_version);
            self.devices.clear();
        }
        let mut contradicted = None;
        for device in &mut sample.devices {
            if device.lost || device.mig_parent {
                self.devices.remove(&device.index);
                continue;
            }
            self.listed |= device.processes.iter().flatten().next().is_some();
            let watched = self.devices.entry(device.index).or_default();
            if watched.contradicts(device, read_seconds) {
                device.processes_incomplete = true;
                contradicted.get_or_insert(device.index);
            }
            if watched.since_seconds.is_some() {
                suspected.insert(device.index.gpu);
            }
        }
        if let Some(index) = contradicted
            && !self.logged
        {
            self.logged = true;
            let remedy = if self.listed {
                "'nvidia-smi' and the kernel log may tell more"
            } else {
                "no process was ever listed, as in a container with a pid namespace of its own: \
                 run this program in the host's (--pid=host, hostPID: true)"
            };
            tracing::warn!(
                device = %index,
                "the driver lists no process on a device that is in use, so that its processes are not known; {remedy}"
            );
        }
        suspected
    }
}

/// Whether a device works, or holds more memory than any driver keeps on one that no process uses. A single look cannot
/// know more: its utilization may be that of a process that has just ended.
#[must_use]
pub fn seems_used(measurements: &DeviceMeasurements) -> bool {
    let memory = measurements.memory.as_ref();
    memory.is_some_and(|memory| memory.used_bytes > MOST_KEPT_BYTES + TOLERANCE_BYTES)
        || works(measurements)
}

fn works(measurements: &DeviceMeasurements) -> bool {
    measurements
        .utilization_ratio
        .is_some_and(|ratio| ratio > UNUSED_RATIO)
}

impl Watched {
    fn contradicts(&mut self, device: &DeviceSample, read_seconds: f64) -> bool {
        if self.uuid != device.uuid {
            *self = Self {
                uuid: device.uuid.clone(),
                ..Self::default()
            };
        }
        // A list that fails now and then says nothing about those that contradict the device.
        if !device.processes_known() {
            return false;
        }
        if device.processes.as_ref().is_some_and(|it| !it.is_empty()) {
            self.forget();
            return false;
        }
        let works = works(&device.measurements);
        let used_bytes = device.measurements.memory.map(|memory| memory.used_bytes);
        let kept_bytes = self.kept_bytes.unwrap_or(u64::MAX).min(MOST_KEPT_BYTES);
        let holds =
            used_bytes.is_some_and(|used| used > kept_bytes.saturating_add(TOLERANCE_BYTES));
        self.kept_bytes = match (self.kept_bytes, used_bytes) {
            (Some(kept), Some(used)) => Some(kept.min(used)),
            (kept, used) => kept.or(used),
        };
        if !works && !holds {
            self.forget();
            return false;
        }
        let since = *self.since_seconds.get_or_insert(read_seconds);
        self.samples = self.samples.saturating_add(1);
        self.samples >= 2 && read_seconds - since >= PATIENCE_SECONDS
    }

    const fn forget(&mut self) {
        self.since_seconds = None;
        self.samples = 0;
    }
}
