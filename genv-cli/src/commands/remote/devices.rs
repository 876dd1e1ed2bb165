//! `genv remote devices`

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use genv_core::model::{Device, Snapshot};
use genv_remote::HostEntry;
use serde::Serialize;

use super::hosts::RemoteFlags;
use super::results::{HostResults, fetch_all};
use crate::commands::free::{gpus_by_index, memory, processes};
use crate::output::{Cell, Format, Table, csv_line, print, print_csv, print_json, stdout};

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
    available: usize,
    /// Whether the host has genv.
    installed: bool,
    devices: Vec<DeviceEntry<'a>>,
}

#[derive(Serialize)]
struct DeviceEntry<'a> {
    index: u32,
    name: Option<&'a str>,
    available: bool,
    environments: usize,
    memory_total_bytes: Option<u64>,
    memory_free_bytes: Option<u64>,
    /// Absent if the driver does not report them.
    processes: Option<usize>,
}

impl Devices {
    pub(super) fn run(self, flags: &RemoteFlags) -> anyhow::Result<()> {
        let results = fetch_all(flags, &["gpu", "state"])?;
        if self.list.json {
            print_json(&results.document(host_devices))?;
        } else {
            self.print(&results)?;
        }
        Ok(results.finish()?)
    }

    fn print(&self, results: &HostResults) -> io::Result<()> {
        let hosts: Vec<HostDevices<'_>> = results.document(host_devices).hosts;
        let total: usize = hosts.iter().map(|host| host.total).sum();
        let available: usize = hosts.iter().map(|host| host.available).sum();
        if self.list.format == Format::Csv {
            let lines = hosts.iter().map(|host| {
                let (total, available) = (host.total.to_string(), host.available.to_string());
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
                    Cell::own(host.available.to_string()),
                    Cell::foreign(&models(&host.devices)),
                ]);
            }
            table.write(&mut stdout())?;
        }
        self.list.summarize(&format!("{total} devices with {available} available on {} hosts", hosts.len()))
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
            processes: processes(device.index.gpu, snapshot),
        })
        .collect();
    HostDevices {
        hostname: &host.name,
        total: devices.len(),
        available: devices.iter().filter(|device| device.available).count(),
        installed: snapshot.installed,
        devices,
    }
}

/// Whether no environment holds a device. On a host without genv: whether no process uses it.
fn is_available(device: &Device, snapshot: &Snapshot) -> bool {
    let is_used = || processes(device.index.gpu, snapshot).is_some_and(|it| it > 0);
    device.up && device.attachments.is_empty() && (snapshot.installed || !is_used())
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
