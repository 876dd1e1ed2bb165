//! The output of `nvidia-smi --query-gpu` and `--query-compute-apps`, parsed to a sample of a GPU source.
//!
//! A value such as `[N/A]`, `[Not Supported]` or `[Unknown Error]` is absent in the sample. Neither query lists graphics
//! processes or the utilization of each process, and MIG devices count as parts of their GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use genv_core::gpu::nvml::throttle_reasons;
use genv_core::gpu::{DeviceSample, GpuProcess, GpuSample};
use genv_core::model::{DeviceIndex, DeviceMeasurements, DeviceMemory, EccErrors, ProcessType, Withheld};
use genv_core::text::{harmless, shortened};

use super::sections::Section;

/// An error quotes at most this many characters of the output.
const MAX_QUOTED_CHARACTERS: usize = 200;

/// The columns of `--query-gpu`. Of a column with two names the first counts that the driver has. The name of the device
/// is the last column: it may have commas.
const COLUMNS: [&[&str]; 21] = [
    &["index"],
    &["uuid"],
    &["driver_version"],
    &["memory.total"],
    &["memory.used"],
    &["memory.free"],
    &["utilization.gpu"],
    &["utilization.memory"],
    &["temperature.gpu"],
    &["power.draw"],
    &["enforced.power.limit"],
    &["clocks.gr"],
    &["clocks.sm"],
    &["clocks.mem"],
    &["clocks.video"],
    &["fan.speed"],
    &["ecc.errors.corrected.volatile.total"],
    &["ecc.errors.uncorrected.volatile.total"],
    &["clocks_throttle_reasons.active", "clocks_event_reasons.active"],
    &["mig.mode.current"],
    &["name"],
];

/// The columns without which a host's devices cannot be judged.
const REQUIRED: [&str; 6] = ["index", "uuid", "memory.total", "memory.used", "memory.free", "utilization.gpu"];

/// The clocks of [`DeviceMeasurements::clocks_hertz`] with their columns.
const CLOCKS: [(&str, &str); 4] =
    [("graphics", "clocks.gr"), ("sm", "clocks.sm"), ("memory", "clocks.mem"), ("video", "clocks.video")];

/// The columns that the nvidia-smi of a host has.
#[derive(Debug, Default)]
pub(super) struct Columns {
    /// Names that it has refused.
    refused: BTreeSet<&'static str>,
}

impl Columns {
    /// The names of the columns to ask for.
    pub(super) fn names(&self) -> Vec<&'static str> {
        COLUMNS.iter().filter_map(|names| names.iter().copied().find(|name| !self.refused.contains(name))).collect()
    }

    /// Whether the driver may have a refused column by its other name.
    pub(super) fn has_other_name(&self, refused: &str) -> bool {
        let mut columns = COLUMNS.iter().filter(|names| names.contains(&refused));
        columns.any(|names| names.iter().any(|name| !self.refused.contains(name)))
    }

    /// Leaves out the column that this output refuses, and returns its name: the driver refuses a query for the first
    /// column that it does not have. Absent if the output refuses none, or one that is required.
    pub(super) fn refuse(&mut self, output: Section<'_>) -> Option<&'static str> {
        if output.code == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(output.text);
        let mut quoted = text.split('"').skip(1).step_by(2);
        let asked = self.names();
        let refused = quoted.find_map(|word| asked.iter().copied().find(|name| *name == word))?;
        (!REQUIRED.contains(&refused) && self.refused.insert(refused)).then_some(refused)
    }
}

/// Values of a device that does not answer any more.
const LOST: [&str; 2] = ["GPU is lost", "GPU requires reset"];

/// Parses both outputs to one sample. The devices have these columns.
///
/// # Errors
/// The output lists no device; the text is the reason.
pub(super) fn sample(columns: &Columns, devices: Section<'_>, processes: Section<'_>) -> Result<GpuSample, String> {
    let columns = columns.names();
    let text = String::from_utf8_lossy(devices.text);
    let mut sample = GpuSample::default();
    let mut seen = BTreeSet::new();
    for (driver_version, device) in text.lines().filter_map(|line| device(&columns, line)) {
        if seen.insert(device.index) {
            sample.driver_version = sample.driver_version.or(driver_version);
            sample.devices.push(device);
        }
    }
    // On a machine without devices nvidia-smi prints a sentence to stdout and ends with 6, without a driver with 9 or 12.
    if sample.devices.is_empty() {
        return Err(no_devices(devices, &text));
    }
    sample.devices.sort_by_key(|device| device.index);
    for device in sample.devices.iter().filter(|it| !it.lost && it.processes_incomplete) {
        let error = "the GPU is in MIG mode, and nvidia-smi does not tell whether it is split";
        Withheld::of(device.index, Withheld::PROCESSES, error).add_to(&mut sample.withheld);
    }
    let text = String::from_utf8_lossy(processes.text);
    if processes.code == 0 {
        add_processes(&mut sample.devices, &text);
    }
    for device in sample.devices.iter().filter(|it| !it.lost && it.processes.is_none()) {
        let own = text.lines().find(|line| line.contains(&device.uuid));
        let printed = printed(own.unwrap_or(&text));
        let code = processes.code;
        let error = format!("nvidia-smi --query-compute-apps ended with exit code {code} and printed {printed}");
        Withheld::of(device.index, Withheld::PROCESSES, error).add_to(&mut sample.withheld);
    }
    Ok(sample)
}

/// Why the output lists no device.
fn no_devices(section: Section<'_>, text: &str) -> String {
    if section.code == 127 {
        return "there is no nvidia-smi on this host: install the NVIDIA driver's programs".to_owned();
    }
    format!(
        "nvidia-smi lists no devices: it ended with exit code {} and printed {}: run it on this host",
        section.code,
        printed(text)
    )
}

/// The first line of an output, for a message.
fn printed(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| "nothing".to_owned(), |line| format!("'{}'", shortened(&harmless(line), MAX_QUOTED_CHARACTERS)))
}

/// Parses a line of `--query-gpu`: the driver version and the device. Absent for another line.
fn device(columns: &[&str], line: &str) -> Option<(Option<String>, DeviceSample)> {
    let fields: Vec<&str> = line.splitn(columns.len(), ',').map(str::trim).collect();
    if fields.len() != columns.len() {
        return None;
    }
    // A column that the driver does not have is as one without a value.
    let field = |name: &str| columns.iter().position(|column| *column == name).map_or("", |at| fields[at]);
    let index = DeviceIndex::gpu(field("index").parse().ok()?);
    let uuid = word(field("uuid")).filter(|uuid| uuid.starts_with("GPU-"))?;
    let lost = fields.iter().any(|field| LOST.iter().any(|lost| field.contains(lost)));
    let memory = ["memory.total", "memory.used", "memory.free"].map(|name| mebibytes(field(name)));
    let memory = match memory {
        [Some(total_bytes), Some(used_bytes), Some(free_bytes)] => {
            Some(DeviceMemory { total_bytes, used_bytes, free_bytes, reserved_bytes: None })
        }
        _ => None,
    };
    let measurements = DeviceMeasurements {
        utilization_ratio: percent(field("utilization.gpu")),
        memory_controller_busy_ratio: percent(field("utilization.memory")),
        memory,
        temperature_celsius: number(field("temperature.gpu")),
        power_watts: number(field("power.draw")),
        power_limit_watts: number(field("enforced.power.limit")),
        clocks_hertz: Arc::new(
            CLOCKS.iter().filter_map(|(clock, name)| Some(((*clock).to_owned(), number(field(name))? * 1e6))).collect(),
        ),
        fan_speed_ratios: percent(field("fan.speed")).map(|ratio| (0, ratio)).into_iter().collect(),
        throttled: throttled(field("clocks_throttle_reasons.active"))
            .or_else(|| throttled(field("clocks_event_reasons.active")))
            .map(Arc::new),
        ecc_errors: EccErrors {
            corrected: field("ecc.errors.corrected.volatile.total").parse().ok(),
            uncorrected: field("ecc.errors.uncorrected.volatile.total").parse().ok(),
        },
        ..DeviceMeasurements::default()
    };
    let sample = DeviceSample {
        index,
        uuid,
        lost,
        name: word(field("name")),
        minor: None,
        profile: None,
        gpu_instance: None,
        mig_parent: false,
        mig_unsplit: false,
        measurements: if lost { DeviceMeasurements::default() } else { measurements },
        processes: None,
        // It may be split: a process on a part need not be in the list of the GPU, and without parts no program runs.
        processes_incomplete: field("mig.mode.current") == "Enabled",
        lists_answered: false,
    };
    Some((word(field("driver_version")), sample))
}

/// Adds the processes of `--query-compute-apps`. If the output cannot list the processes of a device, they stay unknown. A line
/// that names no GPU may be of any.
fn add_processes(devices: &mut [DeviceSample], text: &str) {
    let mut by_uuid: BTreeMap<&str, Option<Vec<GpuProcess>>> = BTreeMap::new();
    let mut is_complete = true;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [uuid, pid, used] = fields[..] else {
            is_complete = false;
            continue;
        };
        if !uuid.starts_with("GPU-") {
            is_complete = false;
            continue;
        }
        let rows = by_uuid.entry(uuid).or_insert_with(|| Some(Vec::new()));
        let Ok(pid) = pid.parse::<u32>() else {
            *rows = None;
            continue;
        };
        let Some(rows) = rows else { continue };
        let memory_used_bytes = mebibytes(used);
        match rows.iter_mut().find(|row| row.pid == pid) {
            // The process uses several parts of a split GPU.
            Some(row) => {
                row.memory_used_bytes = row.memory_used_bytes.zip(memory_used_bytes).map(|(a, b)| a.saturating_add(b));
            }
            None => rows.push(GpuProcess {
                pid,
                process_type: ProcessType::Compute,
                memory_used_bytes,
                utilization_ratio: None,
            }),
        }
    }
    for device in devices.iter_mut().filter(|device| !device.lost) {
        let unlisted = || is_complete.then(Vec::new);
        device.processes = by_uuid.remove(device.uuid.as_str()).unwrap_or_else(unlisted);
        device.processes_incomplete |= !is_complete && device.processes.is_some();
    }
}

/// A text value; absent for a word such as `[N/A]`.
fn word(field: &str) -> Option<String> {
    (!field.is_empty() && !field.starts_with('[')).then(|| field.to_owned())
}

fn number(field: &str) -> Option<f64> {
    field.parse().ok().filter(|number: &f64| number.is_finite())
}

/// A share as it was read: bounds remove an impossible one, and distrust what it contradicts.
fn percent(field: &str) -> Option<f64> {
    number(field).map(|percent| percent / 100.0)
}

/// The reasons of a bit mask such as `0x0000000000000004`.
fn throttled(field: &str) -> Option<BTreeMap<String, bool>> {
    u64::from_str_radix(field.strip_prefix("0x")?, 16).ok().map(throttle_reasons)
}

fn mebibytes(field: &str) -> Option<u64> {
    field.parse::<u64>().ok().map(|mebibytes| mebibytes.saturating_mul(1 << 20))
}
