//! Bounds of readings. Real drivers have answered with all bits set, with megawatts and with ratios of millions. A
//! value out of its bounds is removed from its sample, so that no charge, no metric and no action depends on it.
//!
//! Some values show that another value of the same answer is wrong. Such a decision is made on the answer as it was
//! read, before any value is removed: the more absurd a value, the more it contradicts.
//!
//! Every sample passes these bounds before any other use, whatever its source.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{DeviceSample, GpuSample};
use crate::model::{DeviceIndex, DeviceMeasurements, DeviceMemory};

/// Share of a sample period.
const RATIO: RangeInclusive<f64> = 0.0..=1.0;

/// Share of a fan's maximum speed, which NVML lets a fan exceed.
const FAN_RATIO: RangeInclusive<f64> = 0.0..=1.5;

/// Celsius: a GPU shuts down long before the upper end.
pub(super) const TEMPERATURE_CELSIUS: RangeInclusive<f64> = -50.0..=200.0;

/// Ten times the power of the largest module.
const MOST_WATTS: f64 = 30_000.0;

/// The highest credible peak of the power draw, in multiples of the enforced limit.
const PEAK: f64 = 2.0;

/// Added to the time between two readings of an energy counter, which the driver updates about ten times a second.
const ENERGY_UPDATE_SECONDS: f64 = 1.0;

/// The highest power for a century.
const MOST_JOULES: f64 = MOST_WATTS * 86_400.0 * 36_525.0;

/// The fastest memory of today is clocked at 14 GHz.
const MOST_HERTZ: f64 = 1e11;

/// 64 TiB: hundreds of times today's largest GPU.
const MOST_BYTES: u64 = 1 << 46;

/// The amount by which the processes of a device may together hold more memory than the device reports: the two
/// readings are not simultaneous.
const PROCESSES_TOLERANCE_BYTES: u64 = 1 << 30;

/// The pids of Linux: from 1 to `PID_MAX_LIMIT`.
const PIDS: RangeInclusive<u32> = 1..=1 << 22;

/// Minor numbers of Linux have 20 bits.
pub(super) const MOST_MINOR: u32 = (1 << 20) - 1;

/// Errors and replays since the driver was loaded: a device with so many is replaced long before.
const MOST_ERRORS: u64 = 1 << 31;

/// A value that was removed from a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distrusted {
    /// Device of the value.
    pub index: DeviceIndex,
    /// Kind of the value: `utilization`, `memory_controller`, `encoder`, `decoder`, `memory`, `temperature`,
    /// `temperature_limit`, `power`, `power_limit`, `energy`, `clock`, `fan`, `throttled`, `ecc_errors`,
    /// `pcie_replays`, `minor`, `pid`, `process_memory` or `process_utilization`.
    pub reading: &'static str,
    /// The value as it was read, in the unit of its field.
    pub value: f64,
}

/// The bounds of all devices of a host, with the earlier readings that some bounds depend on.
#[derive(Debug, Default)]
pub struct Bounds(BTreeMap<DeviceIndex, DeviceReadings>);

/// Earlier readings of one device.
#[derive(Debug, Default)]
struct DeviceReadings {
    uuid: String,
    memory_total_bytes: Option<u64>,
    /// Of the last answer.
    memory_is_impossible: bool,
    power_limit_watts: Option<f64>,
    /// The last credible reading of the energy counter.
    meter: Option<MeterReading>,
    /// A later reading that was not credible. It becomes credible if the next reading follows it.
    doubted: Option<MeterReading>,
}

/// One reading of an energy counter.
#[derive(Clone, Copy, Debug)]
struct MeterReading {
    joules: f64,
    read_seconds: f64,
}

impl Bounds {
    /// Removes all impossible values from a sample, and returns them. `read_seconds` is the time of the sample, by a
    /// clock that never goes back.
    pub fn apply(&mut self, sample: &mut GpuSample, read_seconds: f64) -> Vec<Distrusted> {
        let mut distrusted = Vec::new();
        // All compute instances of a GPU instance have one memory, which the processes of all hold together.
        let mut on_instances: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for device in &sample.devices {
            if let Some(instance) = device.instance() {
                let held = on_instances.entry(instance).or_default();
                *held = held.saturating_add(held_bytes(device));
            }
        }
        for device in sample.devices.iter_mut().filter(|device| !device.lost) {
            // A GPU is listed before its parts.
            let whole = device.index.mig.and_then(|_| self.0.get(&device.index.whole()));
            let most_bytes = whole.map_or(MOST_BYTES, DeviceReadings::most_bytes_of_a_part);
            let known = self.0.entry(device.index).or_default();
            if known.uuid != device.uuid {
                *known = DeviceReadings { uuid: device.uuid.clone(), ..DeviceReadings::default() };
            }
            let on_instance = device.instance().and_then(|it| on_instances.get(&it).copied());
            let held_bytes = on_instance.unwrap_or_else(|| held_bytes(device));
            let mut out = Removals { index: device.index, distrusted: &mut distrusted };
            known.apply(device, read_seconds, most_bytes, held_bytes, &mut out);
        }
        distrusted
    }
}

/// The values that are removed from a device's sample.
struct Removals<'a> {
    index: DeviceIndex,
    distrusted: &'a mut Vec<Distrusted>,
}

impl Removals<'_> {
    fn note(&mut self, reading: &'static str, value: f64) {
        self.distrusted.push(Distrusted { index: self.index, reading, value });
    }

    /// Removes a value that does not hold.
    fn check(&mut self, reading: &'static str, value: &mut Option<f64>, holds: impl FnOnce(f64) -> bool) {
        if let Some(wrong) = value.take_if(|value| !holds(*value)) {
            self.note(reading, wrong);
        }
    }

    /// As [`Removals::check`], for each named value.
    fn check_each<K: Ord>(
        &mut self,
        reading: &'static str,
        values: &mut BTreeMap<K, f64>,
        bounds: RangeInclusive<f64>,
    ) {
        values.retain(|_, value| {
            let holds = bounds.contains(value);
            if !holds {
                self.note(reading, *value);
            }
            holds
        });
    }

    /// As [`Removals::check_each`], for shared values: they are copied only if one of them is wrong.
    fn check_named(
        &mut self,
        reading: &'static str,
        values: &mut Arc<BTreeMap<String, f64>>,
        bounds: RangeInclusive<f64>,
    ) {
        if !values.values().all(|value| bounds.contains(value)) {
            self.check_each(reading, Arc::make_mut(values), bounds);
        }
    }

    /// As [`Removals::check`], for a count.
    fn check_count(&mut self, reading: &'static str, count: &mut Option<u64>, most: u64) {
        if let Some(wrong) = count.take_if(|count| *count > most) {
            self.note(reading, wrong as f64);
        }
    }
}

impl DeviceReadings {
    /// The most memory that a part of this GPU can have: none if the GPU's own reading is impossible and its memory was
    /// never known.
    fn most_bytes_of_a_part(&self) -> u64 {
        self.memory_total_bytes.unwrap_or(if self.memory_is_impossible { 0 } else { MOST_BYTES })
    }

    /// `most_bytes` is the most memory that the device can have, `held_bytes` what all processes hold of its memory.
    fn apply(
        &mut self,
        device: &mut DeviceSample,
        read_seconds: f64,
        most_bytes: u64,
        held_bytes: u64,
        out: &mut Removals<'_>,
    ) {
        let memory = device.measurements.memory;
        let memory_holds = memory.is_none_or(|memory| memory_holds(&memory, most_bytes));
        self.memory_is_impossible = !memory_holds;
        let credible = memory.filter(|_| memory_holds);
        self.memory_total_bytes = credible.map(|memory| memory.total_bytes).or(self.memory_total_bytes);
        let limit_holds = |watts: f64| watts > 0.0 && watts <= MOST_WATTS;
        // Before any removal. Drivers answer 0 where there is no limit.
        let limit_is_impossible =
            device.measurements.power_limit_watts.is_some_and(|watts| watts != 0.0 && !limit_holds(watts));
        let total_bytes = self.memory_total_bytes.unwrap_or(most_bytes);
        let doubts = Doubts::of(device, total_bytes, held_bytes, memory_holds);

        let DeviceMeasurements {
            utilization_ratio,
            memory_controller_busy_ratio,
            encoder_utilization_ratio,
            decoder_utilization_ratio,
            memory,
            temperature_celsius,
            temperature_limits_celsius,
            power_watts,
            power_limit_watts,
            energy_joules,
            clocks_hertz,
            fan_speed_ratios,
            throttled,
            ecc_errors,
            pcie_replays,
        } = &mut device.measurements;
        for (reading, ratio) in [
            ("utilization", utilization_ratio),
            ("memory_controller", memory_controller_busy_ratio),
            ("encoder", encoder_utilization_ratio),
            ("decoder", decoder_utilization_ratio),
        ] {
            out.check(reading, ratio, |ratio| RATIO.contains(&ratio));
        }
        if let Some(wrong) = memory.take_if(|_| !memory_holds) {
            out.note("memory", wrong.used_bytes.max(wrong.total_bytes) as f64);
        }
        out.check("temperature", temperature_celsius, |celsius| TEMPERATURE_CELSIUS.contains(&celsius));
        out.check_named("temperature_limit", temperature_limits_celsius, TEMPERATURE_CELSIUS);
        out.check("power_limit", power_limit_watts, limit_holds);
        // If the limit was lowered since the last sample, the higher limit was in force until then.
        let limit_watts = match (*power_limit_watts, self.power_limit_watts) {
            (Some(now), Some(before)) => Some(now.max(before)),
            (now, before) => now.or(before),
        };
        self.power_limit_watts = power_limit_watts.or(self.power_limit_watts);
        // With an impossible limit, and none before it, no draw counts.
        let limit_watts = limit_watts.or(limit_is_impossible.then_some(0.0));
        out.check("power", power_watts, |watts| (0.0..=most_watts(limit_watts)).contains(&watts));
        out.check("energy", energy_joules, |joules| self.energy_holds(joules, read_seconds, limit_watts));
        out.check_named("clock", clocks_hertz, 0.0..=MOST_HERTZ);
        out.check_each("fan", fan_speed_ratios, FAN_RATIO);
        // All bits set: clocks are never reduced for every reason at once.
        if throttled.take_if(|reasons| reasons.len() > 1 && reasons.values().all(|active| *active)).is_some() {
            out.note("throttled", 1.0);
        }
        out.check_count("ecc_errors", &mut ecc_errors.corrected, MOST_ERRORS);
        out.check_count("ecc_errors", &mut ecc_errors.uncorrected, MOST_ERRORS);
        out.check_count("pcie_replays", pcie_replays, MOST_ERRORS);

        if let Some(wrong) = device.minor.take_if(|minor| *minor > MOST_MINOR) {
            out.note("minor", wrong.into());
        }
        doubts.remove(device, out);
    }

    /// Whether a reading of the energy counter is credible. The counter rises by at most the energy that the device can
    /// use, and starts again with the driver. After a permanent jump, the second reading is credible again.
    fn energy_holds(&mut self, joules: f64, read_seconds: f64, limit_watts: Option<f64>) -> bool {
        if !(0.0..=MOST_JOULES).contains(&joules) {
            return false;
        }
        let now = MeterReading { joules, read_seconds };
        let follows = |before: &MeterReading| {
            let most = most_joules(limit_watts, read_seconds - before.read_seconds);
            let rose = joules - before.joules;
            let restarted = rose < 0.0 && joules <= most;
            (0.0..=most).contains(&rose) || restarted
        };
        let holds = self.meter.as_ref().is_none_or(follows) || self.doubted.as_ref().is_some_and(follows);
        if holds {
            self.meter = Some(now);
            self.doubted = None;
        } else {
            self.doubted = Some(now);
        }
        holds
    }
}

/// The highest power draw of a device with this limit.
fn most_watts(limit_watts: Option<f64>) -> f64 {
    limit_watts.map_or(MOST_WATTS, |limit| (limit * PEAK).min(MOST_WATTS))
}

/// The most energy that a device with this limit uses in this time.
pub(crate) fn most_joules(limit_watts: Option<f64>, elapsed_seconds: f64) -> f64 {
    most_watts(limit_watts) * (elapsed_seconds.max(0.0) + ENERGY_UPDATE_SECONDS)
}

/// What the readings of one answer show of each other.
struct Doubts {
    /// The list of processes is not one of this device: it has a pid that no process has, or a process with more memory
    /// than the device has or uses.
    list: bool,
    /// The most memory that one process can hold: 0 if all processes together hold more than their device uses.
    most_bytes: u64,
    /// A utilization of the device or of one of its processes is no share of time.
    shares: bool,
    /// The device's own utilization or memory, which confirms that no further process uses the device, is impossible.
    confirmation: bool,
}

impl Doubts {
    /// Judges an answer as it was read.
    fn of(device: &DeviceSample, total_bytes: u64, held_bytes: u64, memory_holds: bool) -> Self {
        let DeviceMeasurements { utilization_ratio, memory, .. } = &device.measurements;
        let processes = || device.processes.iter().flatten();
        let used_bytes = memory.map_or(total_bytes, |memory| memory.used_bytes);
        let together_bytes = used_bytes.saturating_add(PROCESSES_TOLERANCE_BYTES);
        let most_bytes = together_bytes.min(total_bytes);
        let utilization_holds = utilization_ratio.is_none_or(|ratio| RATIO.contains(&ratio));
        let mut shares = processes().filter_map(|process| process.utilization_ratio);
        Self {
            list: processes().any(|process| !PIDS.contains(&process.pid))
                || amounts(device).any(|bytes| bytes > most_bytes),
            most_bytes: if held_bytes > together_bytes { 0 } else { most_bytes },
            shares: !utilization_holds || shares.any(|ratio| !RATIO.contains(&ratio)),
            confirmation: !utilization_holds || !memory_holds,
        }
    }

    /// Removes the doubted values of the processes.
    fn remove(&self, device: &mut DeviceSample, out: &mut Removals<'_>) {
        for process in device.processes.iter_mut().flatten() {
            if !PIDS.contains(&process.pid) {
                out.note("pid", process.pid.into());
            }
            out.check_count("process_memory", &mut process.memory_used_bytes, self.most_bytes);
            out.check("process_utilization", &mut process.utilization_ratio, |ratio| RATIO.contains(&ratio));
            process.utilization_ratio.take_if(|_| self.shares);
        }
        device.processes.take_if(|_| self.list);
        device.processes_incomplete |= self.confirmation;
    }
}

/// The memory of each listed process.
fn amounts(device: &DeviceSample) -> impl Iterator<Item = u64> {
    device.processes.iter().flatten().filter_map(|process| process.memory_used_bytes)
}

/// The memory of all listed processes of a device.
fn held_bytes(device: &DeviceSample) -> u64 {
    amounts(device).fold(0, u64::saturating_add)
}

/// Whether amounts of memory can be those of one device.
fn memory_holds(memory: &DeviceMemory, most_bytes: u64) -> bool {
    let total = memory.total_bytes;
    let parts = memory.used_bytes.checked_add(memory.free_bytes);
    (1..=most_bytes).contains(&total)
        && parts.is_some_and(|parts| parts <= total)
        && memory.reserved_bytes.is_none_or(|reserved| reserved <= total)
}

#[cfg(test)]
mod tests;
