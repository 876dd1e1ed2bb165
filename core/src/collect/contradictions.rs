//! Devices with an empty list of processes that other readings contradict.
//!
//! A driver lists the processes of the pid namespace that asks: from within a container without the host's namespace
//! every device seems unused. Some drivers leave processes out for other reasons. If a device works, or holds memory
//! beyond the driver's own, an unlisted process uses the device, and the processes of the device are not known. They
//! are not known either where neither answer was read: nothing confirms an empty list.

use std::collections::{BTreeMap, BTreeSet};

use crate::gpu::{DeviceSample, GpuSample, UNUSED_RATIO};
use crate::model::{DeviceIndex, DeviceMeasurements, Snapshot, Withheld};
use crate::state::allocate::Occupation;

/// The most memory that a driver keeps on an empty device. The kept memory is measured: it is the least amount in use
/// without a process. If no smaller amount was ever read, this limit counts.
pub(super) const MOST_KEPT_BYTES: u64 = 1 << 30;

/// The change of the kept memory without a process.
pub(super) const TOLERANCE_BYTES: u64 = 64 << 20;

/// The time for which a contradiction has to last, over two samples at least. Utilization covers the last second, a
/// process may end between two calls, and one reading may be wrong.
const PATIENCE_SECONDS: f64 = 10.0;

/// The time for which the last reading replaces failed readings.
pub(super) const STANDS_SECONDS: f64 = 600.0;

/// Earlier readings of the devices of a host.
#[derive(Debug, Default)]
pub(super) struct Contradictions {
    devices: BTreeMap<DeviceIndex, DeviceHistory>,
    /// Devices whose last sample shows use that no listed process explains.
    unexplained: BTreeSet<DeviceIndex>,
    session: u64,
    driver_version: Option<String>,
    /// Whether the driver ever listed a process.
    has_listed: bool,
}

#[derive(Debug, Default)]
struct DeviceHistory {
    uuid: String,
    kept: KeptMemory,
    /// Last sample in which the device worked, or held memory, without a listed process. A later reading that shows the
    /// opposite clears the time.
    worked_seconds: Option<f64>,
    held_seconds: Option<f64>,
    contradiction: Lasting,
}

/// The memory that the driver itself keeps on a device: the least amount in use while the device rested and no process
/// was listed. An amount counts once no other amount was read for as long as a contradiction has to last.
#[derive(Debug, Default)]
struct KeptMemory {
    bytes: Option<u64>,
    /// Whether the driver has listed a process of the device since it was opened.
    has_listed: bool,
    lower: Lasting,
    lower_bytes: u64,
}

/// The first sample of a finding, and the number of samples that show it.
#[derive(Debug, Default)]
struct Lasting {
    since_seconds: Option<f64>,
    samples: u32,
}

impl Contradictions {
    /// Marks the processes of a device as incomplete if its list is empty and unconfirmed, or contradicted for long
    /// enough. `read_seconds` is the time of the sample on a clock that never goes back. `sees_part`: whether the reader
    /// may be in a pid namespace of its own, to which the driver lists no process of others.
    pub(super) fn mark(&mut self, sample: &mut GpuSample, read_seconds: f64, sees_part: bool) {
        let unexplained_before = std::mem::take(&mut self.unexplained);
        let listing = sample.devices.iter().filter(|it| lists_a_process(it));
        let explained: BTreeSet<_> = listing.filter_map(DeviceSample::instance).collect();
        let mut contradicted = Vec::new();
        for device in &mut sample.devices {
            if device.lost || device.mig_parent {
                continue;
            }
            let is_listing = lists_a_process(device);
            self.has_listed |= is_listing;
            // A process on any compute instance of a GPU instance explains the memory of all.
            let is_explained = is_listing || device.instance().is_some_and(|it| explained.contains(&it));
            let history = self.devices.entry(device.index).or_default();
            if history.contradicts(device, is_explained, read_seconds) {
                device.processes_incomplete = true;
                contradicted.push(device.index);
            } else if device.processes.as_ref().is_some_and(Vec::is_empty) {
                device.processes_incomplete |= !is_checked(&device.measurements);
            }
            if history.contradiction.shows() || works_without_process(device) {
                self.unexplained.insert(device.index);
            }
        }
        for index in contradicted {
            Withheld::of(index, Withheld::PROCESSES, self.contradiction(sees_part)).add_to(&mut sample.withheld);
        }
        // One sample is that of a process that has just ended.
        for index in self.unexplained.intersection(&unexplained_before) {
            let error = "the device works or holds memory, and its listed processes do not explain it";
            Withheld::of(*index, "use", error).add_to(&mut sample.withheld);
        }
    }

    /// Whether the last sample shows use of a device that no listed process explains. Such use is not measured while
    /// the check for a missing process is under way.
    pub(super) fn is_use_unexplained(&self, index: DeviceIndex) -> bool {
        self.unexplained.contains(&index)
    }

    /// The memory that the driver keeps on an empty device, if it was measured.
    pub(super) fn kept_bytes(&self, index: DeviceIndex) -> Option<u64> {
        self.devices.get(&index)?.kept.most_bytes()
    }

    /// As [`Contradictions::kept_bytes`], if the driver has listed a process of the device since it was opened.
    /// A driver that lists nothing may show the memory of a process as its own.
    pub(super) fn proven_kept_bytes(&self, index: DeviceIndex) -> Option<u64> {
        let kept = &self.devices.get(&index)?.kept;
        kept.most_bytes().filter(|_| kept.has_listed)
    }

    /// Forgets what does not hold for another driver, or for the same driver loaded anew, which may keep more memory.
    /// Returns whether the sample, which follows, is of such a driver.
    pub(super) fn follow_driver(&mut self, sample: &GpuSample) -> bool {
        let version = sample.driver_version.as_ref();
        let is_other = version.is_some_and(|it| self.driver_version.as_ref() != Some(it));
        let is_new = is_other || self.session != sample.session;
        if is_new {
            for history in self.devices.values_mut() {
                history.kept = KeptMemory::default();
            }
        }
        self.session = sample.session;
        if is_other {
            self.driver_version = version.cloned();
        }
        is_new
    }

    /// Why the processes of a device are not known although its list could be read.
    fn contradiction(&self, sees_part: bool) -> String {
        let remedy = if self.has_listed || !sees_part {
            "see 'nvidia-smi' and the kernel log"
        } else {
            "no process was ever listed, as in a container with a pid namespace of its own: \
             run this program in the host's (--pid=host, hostPID: true); a utilization that stays high without memory in \
             use may be a stuck measurement"
        };
        format!("the driver lists no process on a device that is in use; {remedy}")
    }
}

/// Whether a single sample confirms that no process uses a device: its utilization or its memory was read, the device
/// does not work, and the device holds no more memory than any driver keeps.
#[must_use]
pub fn seems_unused(measurements: &DeviceMeasurements) -> bool {
    let memory = measurements.memory.as_ref();
    let holds = memory.is_some_and(|memory| memory.used_bytes > MOST_KEPT_BYTES + TOLERANCE_BYTES);
    is_checked(measurements) && !holds && !works(measurements)
}

/// The number of processes on a whole GPU and its MIG devices, if a single snapshot shows all of them.
#[must_use]
pub fn processes_on(gpu: u32, snapshot: &Snapshot) -> Option<usize> {
    let is_of_gpu = |index: DeviceIndex| index.gpu == gpu;
    let users = snapshot.processes.iter().filter(|process| process.devices.iter().any(|it| is_of_gpu(it.index)));
    let users = users.count();
    let mut parts = snapshot.devices.iter().filter(|it| is_of_gpu(it.index) && it.up);
    let is_confirmed = users > 0 || parts.all(|it| seems_unused(&it.measurements));
    (snapshot.processes_known(gpu) && is_confirmed).then_some(users)
}

/// The occupation of a whole GPU and its MIG devices by a single snapshot. One listed process suffices for
/// [`Occupation::Used`], also if not all are listed.
#[must_use]
pub fn occupation(gpu: u32, snapshot: &Snapshot) -> Occupation {
    let mut used = snapshot.processes.iter().flat_map(|process| &process.devices);
    if used.any(|it| it.index.gpu == gpu) {
        return Occupation::Used;
    }
    // Without a listed process the number is 0, or not known.
    processes_on(gpu, snapshot).map_or(Occupation::Unknown, |_| Occupation::Unused)
}

fn lists_a_process(device: &DeviceSample) -> bool {
    device.processes.iter().flatten().next().is_some()
}

/// Whether a reading exists that could contradict an empty list of processes.
fn is_checked(measurements: &DeviceMeasurements) -> bool {
    measurements.utilization_ratio.is_some() || measurements.memory.is_some()
}

fn works(measurements: &DeviceMeasurements) -> bool {
    measurements.utilization_ratio.is_some_and(|ratio| ratio > UNUSED_RATIO)
}

/// The utilization by which a device may exceed the sum of this number of processes: the utilization of an unused
/// device, and the loss from rounding each process to whole percents.
pub(super) fn rounded_ratio(processes: usize) -> f64 {
    UNUSED_RATIO + 0.01 * processes as f64
}

/// Whether a device works although all its listed processes rest.
fn works_without_process(device: &DeviceSample) -> bool {
    let Some(processes) = device.processes.as_ref().filter(|it| !it.is_empty()) else {
        return false;
    };
    let rounded = rounded_ratio(processes.len());
    let mut used = Some(0.0);
    for process in processes {
        used = used.zip(process.utilization_ratio).map(|(a, b)| a + b);
    }
    let own = device.measurements.utilization_ratio;
    own.is_some_and(|own| own > rounded) && used.is_some_and(|used| used <= rounded)
}

impl DeviceHistory {
    /// `is_explained`: a listed process may be the one whose use the readings show.
    fn contradicts(&mut self, device: &DeviceSample, is_explained: bool, read_seconds: f64) -> bool {
        // A device without a readable UUID is most likely the same device.
        if self.uuid != device.uuid && !device.uuid.is_empty() {
            self.uuid.clone_from(&device.uuid);
            self.kept = KeptMemory::default();
        }
        self.kept.has_listed |= lists_a_process(device);
        // A failed list is no evidence for or against a contradiction.
        if !device.processes_known() {
            return false;
        }
        if is_explained {
            (self.worked_seconds, self.held_seconds) = (None, None);
            self.contradiction.end();
            self.kept.lower.end();
            return false;
        }
        let measurements = &device.measurements;
        if measurements.utilization_ratio.is_some() {
            self.worked_seconds = works(measurements).then_some(read_seconds);
        }
        let stands = |seconds: f64| read_seconds - seconds <= STANDS_SECONDS;
        let works = self.worked_seconds.is_some_and(stands);
        if let Some(memory) = measurements.memory {
            let holds = self.kept.is_exceeded(memory.used_bytes);
            self.held_seconds = holds.then_some(read_seconds);
            if !works {
                self.kept.observe(memory.used_bytes, read_seconds);
            }
        }
        if !works && !self.held_seconds.is_some_and(stands) {
            self.contradiction.end();
            return false;
        }
        self.contradiction.observe(read_seconds)
    }
}

impl KeptMemory {
    fn most_bytes(&self) -> Option<u64> {
        self.bytes.map(|bytes| bytes.min(MOST_KEPT_BYTES))
    }

    fn is_exceeded(&self, used_bytes: u64) -> bool {
        used_bytes > self.most_bytes().unwrap_or(MOST_KEPT_BYTES) + TOLERANCE_BYTES
    }

    fn observe(&mut self, used_bytes: u64, read_seconds: f64) {
        if self.bytes.is_some_and(|kept| used_bytes >= kept) {
            self.lower.end();
            return;
        }
        if !self.lower.shows() {
            self.lower_bytes = 0;
        }
        self.lower_bytes = self.lower_bytes.max(used_bytes);
        if self.lower.observe(read_seconds) {
            self.bytes = Some(self.lower_bytes);
            self.lower.end();
        }
    }
}

impl Lasting {
    const fn shows(&self) -> bool {
        self.since_seconds.is_some()
    }

    /// Notes one sample with the finding. Returns whether the finding has lasted long enough.
    fn observe(&mut self, read_seconds: f64) -> bool {
        let since = *self.since_seconds.get_or_insert(read_seconds);
        self.samples = self.samples.saturating_add(1);
        self.samples >= 2 && read_seconds - since >= PATIENCE_SECONDS
    }

    const fn end(&mut self) {
        self.since_seconds = None;
        self.samples = 0;
    }
}
