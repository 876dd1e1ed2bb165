//! The output of `nvidia-smi --query-gpu` and `--query-compute-apps`, parsed to a sample of a GPU source.
//!
//! A value such as `[N/A]`, `[Not Supported]` or `[Unknown Error]` is absent in the sample. Neither query lists graphics
//! processes or the utilization of each process, and MIG devices count as parts of their GPUs.

use std::collections::BTreeMap;

use genv_core::gpu::{DeviceSample, GpuProcess, GpuSample};
use genv_core::model::{DeviceIndex, DeviceMeasurements, DeviceMemory, ProcessType};
use genv_core::text::{harmless, shortened};

use super::sections::Section;

/// An error quotes at most this many characters of the output.
const MAX_QUOTED_CHARACTERS: usize = 200;

/// The number of columns of `--query-gpu` in `poll.sh`. The name is the last column: it may have commas.
const DEVICE_COLUMNS: usize = 12;

/// Values of a device that does not answer any more.
const LOST: [&str; 2] = ["GPU is lost", "GPU requires reset"];

/// Parses both outputs to one sample.
///
/// # Errors
/// The output lists no device; the text is the reason.
pub(super) fn sample(devices: Section<'_>, processes: Section<'_>) -> Result<GpuSample, String> {
    let text = String::from_utf8_lossy(devices.text);
    let mut sample = GpuSample::default();
    let mut seen = std::collections::BTreeSet::new();
    for (driver_version, device) in text.lines().filter_map(device) {
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
    if processes.code == 0 {
        let text = String::from_utf8_lossy(processes.text);
        add_processes(&mut sample.devices, &text);
    }
    Ok(sample)
}

/// Why the output lists no device.
fn no_devices(section: Section<'_>, text: &str) -> String {
    if section.code == 127 {
        return "there is no nvidia-smi on this host: install the NVIDIA driver's programs".to_owned();
    }
    let printed = text.lines().map(str::trim).find(|line| !line.is_empty());
    let printed = printed.map_or_else(
        || "nothing".to_owned(),
        |line| format!("'{}'", shortened(&harmless(line), MAX_QUOTED_CHARACTERS)),
    );
    format!(
        "nvidia-smi lists no devices: it ended with exit code {} and printed {printed}: run it on this host",
        section.code
    )
}

/// Parses a line of `--query-gpu`: the driver version and the device. Absent for another line.
fn device(line: &str) -> Option<(Option<String>, DeviceSample)> {
    let fields: Vec<&str> = line.splitn(DEVICE_COLUMNS, ',').map(str::trim).collect();
    let [
        index,
        uuid,
        driver_version,
        total,
        used,
        free,
        utilization,
        memory_busy,
        temperature,
        power,
        power_limit,
        name,
    ] = fields[..]
    else {
        return None;
    };
    let index = DeviceIndex::gpu(index.parse().ok()?);
    let uuid = word(uuid).filter(|uuid| uuid.starts_with("GPU-"))?;
    let lost = fields.iter().any(|field| LOST.iter().any(|lost| field.contains(lost)));
    let memory = match (mebibytes(total), mebibytes(used), mebibytes(free)) {
        (Some(total_bytes), Some(used_bytes), Some(free_bytes)) => {
            Some(DeviceMemory { total_bytes, used_bytes, free_bytes, reserved_bytes: None })
        }
        _ => None,
    };
    let measurements = DeviceMeasurements {
        utilization_ratio: percent(utilization),
        memory_controller_busy_ratio: percent(memory_busy),
        memory,
        temperature_celsius: number(temperature),
        power_watts: number(power).filter(|watts| *watts >= 0.0),
        power_limit_watts: number(power_limit).filter(|watts| *watts >= 0.0),
        ..DeviceMeasurements::default()
    };
    let sample = DeviceSample {
        index,
        uuid,
        lost,
        name: word(name),
        minor: None,
        profile: None,
        mig_parent: false,
        measurements: if lost { DeviceMeasurements::default() } else { measurements },
        processes: None,
        processes_incomplete: false,
    };
    Some((word(driver_version), sample))
}

/// Adds the processes of `--query-compute-apps`. If the output cannot list the processes of a device, they stay unknown.
fn add_processes(devices: &mut [DeviceSample], text: &str) {
    let mut by_uuid: BTreeMap<&str, Option<Vec<GpuProcess>>> = BTreeMap::new();
    let mut is_complete = true;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [uuid, pid, used] = fields[..] else {
            is_complete = false;
            continue;
        };
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
    if !is_complete {
        return;
    }
    for device in devices.iter_mut().filter(|device| !device.lost) {
        device.processes = by_uuid.remove(device.uuid.as_str()).unwrap_or_else(|| Some(Vec::new()));
    }
}

/// A text value; absent for a word such as `[N/A]`.
fn word(field: &str) -> Option<String> {
    (!field.is_empty() && !field.starts_with('[')).then(|| field.to_owned())
}

fn number(field: &str) -> Option<f64> {
    field.parse().ok().filter(|number: &f64| number.is_finite())
}

fn percent(field: &str) -> Option<f64> {
    let percent = number(field).filter(|percent| (0.0..=100.0).contains(percent))?;
    Some(percent / 100.0)
}

fn mebibytes(field: &str) -> Option<u64> {
    field.parse::<u64>().ok()?.checked_mul(1 << 20)
}
