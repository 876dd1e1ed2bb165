//! `genv remote devices`

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use genv_core::collect::{occupation, processes_on};
use genv_core::model::{Device, Snapshot};
use genv_core::state::allocate::{MIG_UNSPLIT_REMEDY, Occupation, in_mig_mode_unsplit};
use genv_remote::HostEntry;
use serde::Serialize;

use super::hosts::RemoteFlags;
use super::results::{HostResults, fetch_all, line};
use crate::announce::indices;
use crate::commands::free::{gpus_by_index, memory};
use crate::output::{Cell, Format, Table, csv_line, print, print_csv, print_json, print_note, stdout};

/// List the number of devices of each host, and how many can be attached now.
#[derive(Debug, Args)]
pub(super) struct Devices {
    #[command(flatten)]
    list: SummaryFlags,
}

/// Flags for the format of a list with a summary.
#[derive(Clone, Debug, Args)]
pub(super) struct SummaryFlags {
    /// Output format: tui is a table, csv has values separated by commas.
    #[arg(long, value_name = "FORMAT", default_value = "tui")]
    pub(super) format: Format,

    /// Print JSON.
    #[arg(long, conflicts_with = "format")]
    pub(super) json: bool,

    /// Omit the line with the names of the columns.
    #[arg(long)]
    pub(super) no_header: bool,

    /// Omit the last line, with the totals.
    #[arg(long)]
    pub(super) no_summary: bool,
}

#[derive(Serialize)]
struct HostDevices<'a> {
    hostname: &'a str,
    total: usize,
    /// The devices that are known to be available.
    available: usize,
    /// The devices of which it is not known whether they are available.
    not_known: usize,
    /// Whether the host has genv.
    installed: bool,
    devices: Vec<DeviceEntry<'a>>,
}

#[derive(Serialize)]
struct DeviceEntry<'a> {
    index: u32,
    name: Option<&'a str>,
    /// Absent if it is not known.
    available: Option<bool>,
    environments: usize,
    memory_total_bytes: Option<u64>,
    memory_free_bytes: Option<u64>,
    /// Absent if the driver does not report them.
    processes: Option<usize>,
    /// Whether the device answers.
    up: bool,
    /// Whether the device is in MIG mode without MIG devices.
    mig_unsplit: bool,
}

impl Devices {
    pub(super) fn run(self, flags: &RemoteFlags) -> anyhow::Result<()> {
        let results = fetch_all(flags, &["gpu", "state"])?;
        if self.list.json {
            print_json(&results.document(host_devices))?;
        } else {
            self.print(&results)?;
            if !flags.quiet {
                for host in results.document(host_devices).hosts {
                    for reason in unusable(&host.devices) {
                        print_note(&line(host.hostname, &reason));
                    }
                }
            }
        }
        Ok(results.finish()?)
    }

    fn print(&self, results: &HostResults) -> io::Result<()> {
        let hosts: Vec<HostDevices<'_>> = results.document(host_devices).hosts;
        let total: usize = hosts.iter().map(|host| host.total).sum();
        let available: usize = hosts.iter().map(|host| host.available).sum();
        let not_known: usize = hosts.iter().map(|host| host.not_known).sum();
        if self.list.format == Format::Csv {
            let lines = hosts.iter().map(|host| {
                let (total, available) = (host.total.to_string(), host.available_text());
                csv_line([host.hostname, &total, &available])
            });
            print_csv("HOST,TOTAL,AVAILABLE", !self.list.no_header, lines)?;
        } else {
            let header = &["HOST", "TOTAL", "AVAILABLE", "MODELS"];
            let mut table = Table::new(header).header(!self.list.no_header);
            for host in &hosts {
                table.row([
                    Cell::foreign(host.hostname),
                    Cell::own(host.total.to_string()),
                    Cell::own(host.available_text()),
                    Cell::foreign(&models(&host.devices)),
                ]);
            }
            table.write(&mut stdout())?;
        }
        let available = match not_known {
            0 => format!("{available} available"),
            _ => format!("{available} available and {not_known} not known"),
        };
        self.list.summarize(&format!("{total} devices with {available} on {} hosts", hosts.len()))
    }
}

impl HostDevices<'_> {
    /// The number of available devices: `2+` if others may be available, and `?` if only others may be.
    fn available_text(&self) -> String {
        match (self.available, self.not_known) {
            (available, 0) => available.to_string(),
            (0, _) => "?".to_owned(),
            (available, _) => format!("{available}+"),
        }
    }
}

impl SummaryFlags {
    /// Prints the last line, as genv 1.4.3 does.
    pub(super) fn summarize(&self, counted: &str) -> io::Result<()> {
        if self.no_summary {
            return Ok(());
        }
        print(format!("\nTotal {counted}\n").as_bytes())
    }
}

fn host_devices<'a>(host: &'a HostEntry, snapshot: &'a Snapshot) -> HostDevices<'a> {
    let devices: Vec<DeviceEntry<'a>> = gpus_by_index(snapshot)
        .into_values()
        .map(|device| DeviceEntry {
            index: device.index.gpu,
            name: device.name.as_deref(),
            available: is_available(device, snapshot),
            environments: device.attachments.len(),
            memory_total_bytes: device.measurements.memory.map(|it| it.total_bytes),
            memory_free_bytes: device.measurements.memory.map(|it| it.free_bytes),
            processes: processes_on(device.index.gpu, snapshot),
            up: device.up,
            mig_unsplit: device.mig_unsplit,
        })
        .collect();
    HostDevices {
        hostname: &host.name,
        total: devices.len(),
        available: devices.iter().filter(|device| device.available == Some(true)).count(),
        not_known: devices.iter().filter(|device| device.available.is_none()).count(),
        installed: snapshot.installed,
        devices,
    }
}

/// Why devices of a host can be attached by no environment.
fn unusable(devices: &[DeviceEntry<'_>]) -> Vec<String> {
    let those = |is_meant: fn(&DeviceEntry<'_>) -> bool| -> Vec<u32> {
        devices.iter().filter(|it| is_meant(it)).map(|it| it.index).collect()
    };
    let (lost, unsplit) = (those(|it| !it.up), those(|it| it.mig_unsplit));
    let lost = (!lost.is_empty()).then(|| format!("no answer from {}. See whether 'nvidia-smi' works", indices(&lost)));
    let unsplit = (!unsplit.is_empty()).then(|| format!("{}. {MIG_UNSPLIT_REMEDY}", in_mig_mode_unsplit(&unsplit)));
    [lost, unsplit].into_iter().flatten().collect()
}

/// Whether no environment holds a device; absent if its environments are not known. On a host without genv: whether no process
/// uses the device; absent if it is not known.
fn is_available(device: &Device, snapshot: &Snapshot) -> Option<bool> {
    if !device.up || device.mig_unsplit || !device.attachments.is_empty() {
        return Some(false);
    }
    if snapshot.installed {
        return knows_environments(snapshot).then_some(true);
    }
    match occupation(device.index.gpu, snapshot) {
        Occupation::Unused => Some(true),
        Occupation::Unknown => None,
        Occupation::Used => Some(false),
    }
}

/// Whether the environments of a host with genv are known. Without its processes, no environment is known to continue.
pub(super) fn knows_environments(snapshot: &Snapshot) -> bool {
    snapshot.collectors.get("state").is_some_and(|it| it.current)
}

/// `4 NVIDIA A100 (80.0 GiB), 2 Tesla T4 (15.0 GiB)`.
fn models(devices: &[DeviceEntry<'_>]) -> String {
    let mut counts = BTreeMap::<(&str, Option<u64>), usize>::new();
    for device in devices {
        let model = (device.name.unwrap_or("?"), device.memory_total_bytes);
        *counts.entry(model).or_default() += 1;
    }
    let models = counts.iter().map(|((name, bytes), count)| format!("{count} {name} ({})", memory(*bytes)));
    models.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use genv_core::model::{
        Attribution, CollectorStatus, DeviceIndex, DeviceMeasurements, DeviceMemory, Process, ProcessDevice,
        ProcessType,
    };
    use proptest::prelude::*;

    use super::*;

    /// A device of a host without genv, by its utilization and whether all its processes are known.
    fn device(gpu: u32, utilization_ratio: f64, processes_measured: bool) -> Device {
        Device {
            index: DeviceIndex::gpu(gpu),
            uuid: format!("GPU-{gpu}"),
            up: true,
            name: None,
            minor: None,
            profile: None,
            mig_parent: false,
            measurements: DeviceMeasurements {
                utilization_ratio: Some(utilization_ratio),
                ..DeviceMeasurements::default()
            },
            processes_measured,
            use_unexplained: false,
            contradictory: false,
            measurement_stuck: false,
            mig_unsplit: false,
            gpu_instance: None,
            attachments: Arc::default(),
        }
    }

    fn process(gpu: u32) -> Arc<Process> {
        Arc::new(Process {
            pid: 7,
            start_time_ticks: None,
            uid: None,
            username: None,
            comm: None,
            container_id: None,
            attribution: Attribution::Outside { reason: "no_claim".to_owned() },
            devices: vec![ProcessDevice {
                index: DeviceIndex::gpu(gpu),
                process_type: ProcessType::Compute,
                memory_used_bytes: None.into(),
                utilization_ratio: None.into(),
            }],
        })
    }

    #[test]
    fn without_genv_a_device_is_available_only_if_it_is_known_that_no_process_uses_it() {
        let mut snapshot = Snapshot {
            devices: vec![
                device(0, 0.0, true),
                // A list that fails, an empty one on a busy device, and an incomplete one with a process.
                device(1, 0.0, false),
                device(2, 0.98, true),
                device(3, 0.0, false),
                device(4, 0.0, true),
                Device { up: false, ..device(5, 0.0, false) },
                Device { mig_unsplit: true, ..device(6, 0.0, true) },
            ],
            processes: vec![process(3), process(4)],
            ..Snapshot::default()
        };
        let all = |snapshot: &Snapshot| -> Vec<Option<bool>> {
            snapshot.devices.iter().map(|device| is_available(device, snapshot)).collect()
        };
        assert_eq!(all(&snapshot), [Some(true), None, None, Some(false), Some(false), Some(false), Some(false)]);
        // Environments tell which devices are available, as of 'genv free' there.
        snapshot.installed = true;
        for (current, expected) in [(true, Some(true)), (false, None)] {
            snapshot.collectors.insert("state".to_owned(), CollectorStatus { current, ..CollectorStatus::default() });
            assert_eq!(all(&snapshot)[..5], [expected; 5]);
            assert_eq!(all(&snapshot)[5..], [Some(false); 2]);
        }
    }

    #[test]
    fn unusable_devices_are_named_with_the_reason() {
        let lost = |gpu| Device { up: false, ..device(gpu, 0.0, false) };
        let unsplit = Device { mig_unsplit: true, ..device(2, 0.0, true) };
        let snapshot =
            Snapshot { devices: vec![device(0, 0.0, true), lost(1), unsplit, lost(3)], ..Snapshot::default() };
        let host = HostEntry { name: "gpu01".to_owned(), user: None, port: None };
        let unsplit = "device 2 is in MIG mode without MIG devices, and runs no CUDA program";
        assert_eq!(
            unusable(&host_devices(&host, &snapshot).devices),
            [
                "no answer from devices 1, 3. See whether 'nvidia-smi' works".to_owned(),
                format!("{unsplit}. {MIG_UNSPLIT_REMEDY}")
            ]
        );
    }

    #[test]
    fn the_number_of_available_devices_tells_that_others_are_not_known() {
        for (available, not_known, text) in [(0, 0, "0"), (3, 0, "3"), (2, 1, "2+"), (0, 2, "?")] {
            let host = HostDevices {
                hostname: "gpu01",
                total: 4,
                available,
                not_known,
                installed: false,
                devices: Vec::new(),
            };
            assert_eq!(host.available_text(), text);
        }
    }

    proptest! {
        #[test]
        fn without_genv_nothing_is_available_unless_all_answers_say_so(
            utilization in prop::option::of(prop_oneof![Just(0.0), Just(0.05), 0.0..1.0_f64]),
            used_bytes in prop::option::of(0..2_u64 << 30),
            (is_up, is_list_whole, is_listed, mig_unsplit) in any::<(bool, bool, bool, bool)>(),
        ) {
            let memory = used_bytes.map(|used_bytes| DeviceMemory {
                total_bytes: 2 << 30,
                used_bytes,
                free_bytes: (2 << 30) - used_bytes,
                reserved_bytes: None,
            });
            let measurements =
                DeviceMeasurements { utilization_ratio: utilization, memory, ..DeviceMeasurements::default() };
            let snapshot = Snapshot {
                devices: vec![Device { up: is_up, mig_unsplit, measurements, ..device(0, 0.0, is_list_whole) }],
                processes: is_listed.then(|| process(0)).into_iter().collect(),
                ..Snapshot::default()
            };
            let rests = utilization.is_none_or(|it| it <= 0.05) && used_bytes.is_none_or(|it| it <= 1088 << 20);
            let is_confirmed = rests && (utilization.is_some() || used_bytes.is_some());
            let expected = match (is_up && !mig_unsplit, is_listed) {
                (true, false) => (is_list_whole && is_confirmed).then_some(true),
                _ => Some(false),
            };
            prop_assert_eq!(is_available(&snapshot.devices[0], &snapshot), expected);
        }
    }
}
