//! `genv free`

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use genv_core::collect::{occupation, processes_on};
use genv_core::model::{Device, MemoryAmount, Snapshot};
use genv_core::outside;
use genv_core::state::allocate::{MIG_UNSPLIT_REMEDY, Occupation, fits, in_mig_mode_unsplit};
use genv_core::state::{DeviceState, Inventory, Waiting, waiting_phrase};
use serde::Serialize;

use crate::ago::now_seconds;
use crate::announce::indices;
use crate::lease;
use crate::local_snapshot;
use crate::machine::Machine;
use crate::output::{Cell, DOUBTFUL, GOOD, Table, TableFlags, counted, print_json, print_note, stdout};

const EXAMPLE: &str = "Example: list devices with at least 10 GB of unclaimed memory
  genv free --gpu-memory 10g";

/// List the devices that can be attached now.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Free {
    /// Memory that is needed on each device. Default: all memory.
    #[arg(long, value_name = "AMOUNT", value_parser = crate::values::gpu_memory)]
    gpu_memory: Option<MemoryAmount>,

    /// Also list devices that can only be shared, those with the fewest environments first.
    #[arg(short = 'o', long)]
    over_subscribe: bool,

    #[command(flatten)]
    output: TableFlags,
}

#[derive(Serialize)]
struct FreeReport {
    devices: Vec<FreeDevice>,
    /// The held devices whose leases have an end.
    expected: Vec<ExpectedDevice>,
    /// The processes in the queue.
    waiting: Vec<WaitingProcess>,
    /// Devices in MIG mode without MIG devices: no CUDA program runs on them, and they are not free.
    mig_unsplit: Vec<u32>,
    /// Why the processes on the devices are unknown.
    gpus_unknown: Option<String>,
}

/// A held device, and the time at which its last lease ends.
#[derive(Serialize)]
struct ExpectedDevice {
    index: u32,
    timestamp_seconds: f64,
}

/// A process in the queue.
#[derive(Serialize)]
struct WaitingProcess {
    pid: u32,
    uid: u32,
}

/// A device with its free capacity.
#[derive(Serialize)]
struct FreeDevice {
    index: u32,
    name: Option<String>,
    /// Whether the device can be attached now without over-subscription.
    available: bool,
    /// Whether the device could be attached if the queue were empty.
    #[serde(skip)]
    unclaimed: bool,
    /// Whether another user's process uses the device without holding it. Such a device is not assigned.
    #[serde(skip)]
    used_by_others: bool,
    /// The number of environments that hold the device.
    environments: usize,
    memory_total_bytes: Option<u64>,
    /// The memory that no attachment claims.
    memory_unattached_bytes: Option<u64>,
    /// The memory that no process uses; absent if the driver does not report it.
    memory_free_bytes: Option<u64>,
    /// The number of processes on the device; absent if the driver does not report them.
    processes: Option<usize>,
    #[serde(skip)]
    occupation: Occupation,
}

impl Free {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let mut state = machine.state_with_devices()?;
        let waiting = machine.waiting(&state);
        let newest = machine.newest_sample(&state);
        let uses = machine.uses_of_others(&state, &newest);
        let usage = machine.usage(&state, newest.sample.as_ref().ok());
        let snapshot = local_snapshot::take(newest.sample)?;
        let gpus_unknown = local_snapshot::silence(&snapshot, "gpu");
        let gpus = gpus_by_index(&snapshot);
        let mig_unsplit = gpus.values().filter(|gpu| gpu.mig_unsplit);
        let mig_unsplit: Vec<u32> = mig_unsplit.map(|gpu| gpu.index.gpu).collect();
        // The driver's answer counts, also while the state still has the memory of a card that was replaced.
        let memory = |gpu: &Device| gpu.measurements.memory.map(|memory| memory.total_bytes >> 20);
        Inventory::new(gpus.iter().map(|(index, gpu)| (*index, memory(gpu)))).merge_into(&mut state.devices);
        let devices = state.devices.iter();
        let mut devices: Vec<FreeDevice> = devices
            .filter(|device| gpus.get(&device.index).is_none_or(|gpu| gpu.up && !gpu.mig_unsplit))
            .filter(|device| gpus_unknown.is_some() || gpus.contains_key(&device.index))
            .map(|device| self.free_device(device, gpus.get(&device.index).copied(), &snapshot))
            .filter(|it| it.unclaimed || self.over_subscribe)
            .map(|it| FreeDevice {
                available: it.unclaimed && waiting.is_empty() && !uses.contains_key(&it.index),
                used_by_others: uses.contains_key(&it.index),
                ..it
            })
            .collect();
        // In the order of attachment.
        devices.sort_by_key(|it| {
            let environments = if it.unclaimed { 0 } else { it.environments };
            (it.used_by_others, !it.unclaimed, environments, it.occupation, it.index)
        });
        let report = FreeReport {
            devices,
            expected: state
                .expectation(&usage, now_seconds())
                .of_devices()
                .into_iter()
                .map(|(index, timestamp_seconds)| ExpectedDevice { index, timestamp_seconds })
                .collect(),
            waiting: waiting.iter().map(|&Waiting { pid, uid, .. }| WaitingProcess { pid, uid }).collect(),
            mig_unsplit,
            gpus_unknown,
        };
        if self.output.json {
            print_json(&report)?;
        } else {
            self.print(&report, state.devices.len())?;
            print_expected(&report.expected);
            print_queue_note(&waiting);
        }
        Ok(())
    }

    fn free_device(&self, device: &DeviceState, gpu: Option<&Device>, snapshot: &Snapshot) -> FreeDevice {
        let total = device.total_memory.map(MemoryAmount::bytes);
        let unattached = total.map(|total| {
            let claimed = device.attachments.iter();
            let claimed = claimed.map(|it| it.gpu_memory.map_or(total, MemoryAmount::bytes));
            claimed.fold(total, u64::saturating_sub)
        });
        let unclaimed = fits(device, "", self.gpu_memory);
        FreeDevice {
            index: device.index,
            name: gpu.and_then(|gpu| gpu.name.clone()),
            available: unclaimed,
            unclaimed,
            used_by_others: false,
            environments: device.attachments.len(),
            memory_total_bytes: total,
            memory_unattached_bytes: unattached,
            memory_free_bytes: gpu.and_then(|gpu| Some(gpu.measurements.memory?.free_bytes)),
            processes: gpu.and_then(|_| processes_on(device.index, snapshot)),
            occupation: gpu.map_or(Occupation::Unknown, |_| occupation(device.index, snapshot)),
        }
    }

    fn print(&self, report: &FreeReport, all: usize) -> io::Result<()> {
        let header = &["ID", "MODEL", "UNCLAIMED", "UNUSED", "TOTAL", "PROCESSES", "HOW"];
        let mut table = Table::new(header).header(!self.output.no_header);
        for it in &report.devices {
            let how = match (it.unclaimed, it.environments) {
                _ if it.used_by_others => availability_cell(true, false, it.processes),
                (true, _) => availability_cell(false, !it.available, it.processes),
                (false, 0) => Cell::own("with less memory").style(DOUBTFUL),
                (false, n) => Cell::own(format!("shared with {}", counted(n, "environment"))).style(DOUBTFUL),
            };
            table.row([
                Cell::own(it.index.to_string()),
                Cell::foreign(it.name.as_deref().unwrap_or("?")),
                Cell::own(memory(it.memory_unattached_bytes)),
                Cell::own(memory(it.memory_free_bytes)),
                Cell::own(memory(it.memory_total_bytes)),
                Cell::own(it.processes.map_or("?".to_owned(), |it| it.to_string())),
                how,
            ]);
        }
        let mut out = stdout();
        if report.devices.is_empty() {
            use io::Write as _;
            let (none, them) = match all {
                1 => ("The one device is not free".to_owned(), "it"),
                _ => (format!("None of {all} devices is free"), "them"),
            };
            if self.over_subscribe {
                writeln!(out, "{none}: there is no device.")?;
            } else {
                writeln!(
                    out,
                    "{none}: 'genv devices' shows who holds {them}, '--over-subscribe' lists what can be shared."
                )?;
            }
        } else {
            table.write(&mut out)?;
        }
        if !report.mig_unsplit.is_empty() {
            print_note(&format!("{}. {MIG_UNSPLIT_REMEDY}", in_mig_mode_unsplit(&report.mig_unsplit)));
        }
        let untold = report.devices.iter().filter(|it| self.gpu_memory.is_some() && it.memory_total_bytes.is_none());
        let untold: Vec<u32> = untold.map(|it| it.index).collect();
        if !untold.is_empty() {
            print_note(&format!(
                "the driver does not tell the memory of {}: only one environment can hold such a device",
                indices(&untold)
            ));
        }
        if let Some(why) = &report.gpus_unknown {
            let why = crate::output::harmless(why);
            print_note(&format!("the processes on the devices are unknown: {why}"));
        }
        Ok(())
    }
}

/// The state of a device without a holder. `is_used`: a process outside of environments uses the device. `is_waited_for`:
/// processes wait in the queue for devices.
pub(super) fn availability_cell(is_used: bool, is_waited_for: bool, processes: Option<usize>) -> Cell {
    let state = match processes {
        _ if is_used => "used, not held",
        _ if is_waited_for => "waited for",
        // The device can be attached, although its processes are unknown.
        None => "not known",
        Some(0) => return Cell::own("free").style(GOOD),
        Some(_) => "used, not attached",
    };
    Cell::own(state).style(DOUBTFUL)
}

/// Prints the times at which leases of held devices end.
fn print_expected(expected: &[ExpectedDevice]) {
    let devices = expected.iter();
    let devices = devices.map(|it| {
        let time = lease::moment(it.timestamp_seconds);
        format!("device {} at {time}", it.index)
    });
    let devices: Vec<String> = devices.collect();
    if !devices.is_empty() {
        let devices = devices.join(", ");
        print_note(&format!("expected to become free, by leases: {devices}"));
    }
}

pub(super) fn print_queue_note(waiting: &[Waiting]) {
    if !waiting.is_empty() {
        print_note(&format!(
            "{} in the queue for devices: 'genv activate --wait' waits too, 'genv activate -o' shares",
            waiting_phrase(waiting)
        ));
    }
}

/// The GPUs of a snapshot by index, without MIG devices.
pub(super) fn gpus_by_index(snapshot: &Snapshot) -> BTreeMap<u32, &Device> {
    let whole = |device: &&Device| device.index.mig.is_none();
    let devices = snapshot.devices.iter().filter(whole);
    devices.map(|device| (device.index.gpu, device)).collect()
}

/// An amount of memory for people; `?` if unknown.
pub(super) fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), outside::memory)
}
