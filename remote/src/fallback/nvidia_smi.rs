//! What `nvidia-smi --query-gpu` and `--query-compute-apps` print, as a sample of a GPU source.
//!
//! It prints in words what it could not ask, as `[N/A]`, `[Not Supported]` or `[Unknown Error]`: that is then absent.
//! Processes that only draw are in none of its queries, MIG devices are parts of their GPUs, and nobody's share of the
//! utilization is told.

use std::collections::BTreeMap;

use genv_core::gpu::{DeviceSample, GpuProcess, GpuSample};
use genv_core::model::{DeviceIndex, DeviceMeasurements, DeviceMemory, ProcessType};
use genv_core::text::{harmless, shortened};

use super::sections::Section;

/// How much of what it complains about is told.
const MOST_SHOWN_CHARACTERS: usize = 200;

/// Columns of `--query-gpu`, in the order in which the script asks for them. The name is last: it may have commas.
const DEVICE_COLUMNS: usize = 12;

/// What a device that does not answer any more has in the place of values.
const LOST: [&str; 2] = ["GPU is lost", "GPU requires reset"];

/// The sample of both outputs.
///
/// # Errors
/// No device is told of, and why.
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
    // A machine without any device says so in words, too.
    if sample.devices.is_empty() {
        return Err(complaint("devices", devices, &text));
    }
    sample.devices.sort_by_key(|device| device.index);
    if processes.code == 0 {
        let text = String::from_utf8_lossy(processes.text);
        attach(&mut sample.devices, &text);
    }
    Ok(sample)
}

/// Why it told nothing.
fn complaint(of: &str, section: Section<'_>, text: &str) -> String {
    if section.code == 127 {
        return "there is no nvidia-smi on this host: install the NVIDIA driver's programs".to_owned();
    }
    let said = text.lines().map(str::trim).find(|line| !line.is_empty());
    let said = said.map_or_else(
        || "nothing".to_owned(),
        |line| format!("'{}'", shortened(&harmless(line), MOST_SHOWN_CHARACTERS)),
    );
    format!(
        "nvidia-smi tells of no {of}: it ended with exit code {} and said {said}: run it on this host",
        section.code
    )
}

/// One line of `--query-gpu`; none if it is something else.
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

/// Adds the processes of `--query-compute-apps`. A device of which it says that it cannot tell has none that are known.
fn attach(devices: &mut [DeviceSample], text: &str) {
    let mut by_uuid: BTreeMap<&str, Option<Vec<GpuProcess>>> = BTreeMap::new();
    let mut understood = true;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [uuid, pid, used] = fields[..] else {
            understood = false;
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
            // Its parts of a GPU that is split.
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
    if !understood {
        return;
    }
    for device in devices.iter_mut().filter(|device| !device.lost) {
        device.processes = by_uuid.remove(device.uuid.as_str()).unwrap_or_else(|| Some(Vec::new()));
    }
}

/// A text that is not one of its words for what it could not ask.
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
