//! `genv free`

use std::collections::BTreeMap;
use std::io;

use clap::Args;
use genv_core::collect::seems_unused;
use genv_core::model::{Device, DeviceIndex, MemoryAmount, Snapshot};
use genv_core::outside;
use genv_core::state::{DeviceState, Waiting};
use serde::Serialize;

use super::devices::known;
use crate::ago::now_seconds;
use crate::lease;
use crate::local_snapshot;
use crate::machine::{Machine, USAGE_PATIENCE, tell};
use crate::output::{Cell, DOUBTFUL, GOOD, Table, TableFlags, counted, print_json, stdout};
use crate::queue::who_waits;

const EXAMPLE: &str = "Example: devices with at least 10 GB of unclaimed memory
  genv free --gpu-memory 10g";

/// Tell which devices could be attached now.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Free {
    /// Memory that is needed on each device. Without: all of it.
    #[arg(long, value_name = "AMOUNT", value_parser = crate::values::gpu_memory)]
    gpu_memory: Option<MemoryAmount>,

    /// List also devices that over-subscription would give, those with the fewest environments first.
    #[arg(short = 'o', long)]
    over_subscribe: bool,

    #[command(flatten)]
    output: TableFlags,
}

#[derive(Serialize)]
struct Answer {
    devices: Vec<FreeDevice>,
    /// The devices that are held and come free by a lease.
    expected: Vec<ExpectedDevice>,
    /// The processes that get devices first.
    waiting: Vec<WaitingProcess>,
    /// Why it is not known who uses the devices.
    gpus_unknown: Option<String>,
}

/// A device that is held, and the time at which its leases end.
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

/// A device, and what could be had of it.
#[derive(Serialize)]
struct FreeDevice {
    index: u32,
    name: Option<String>,
    /// Whether it can be attached now without over-subscription.
    available: bool,
    /// Whether it could be attached if the queue were empty.
    #[serde(skip)]
    unclaimed: bool,
    /// Whether another user's process uses it without holding it, which keeps it from being assigned.
    #[serde(skip)]
    used_by_others: bool,
    /// Environments that are attached to it.
    environments: usize,
    memory_total_bytes: Option<u64>,
    /// What no attachment claims.
    memory_unattached_bytes: Option<u64>,
    /// What no process holds; absent if the GPU does not tell.
    memory_free_bytes: Option<u64>,
    /// Processes of anybody on it; absent if the GPU does not tell.
    processes: Option<usize>,
}

impl Free {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let state = known(&mut machine)?;
        let waiting = machine.waiting(&state);
        let uses = machine.uses_of_others(&state);
        let snapshot = local_snapshot::take(USAGE_PATIENCE)?;
        let gpus_unknown = local_snapshot::silence(&snapshot, "gpu");
        let told = told(&snapshot);
        let devices = state.devices.iter();
        let mut devices: Vec<FreeDevice> = devices
            .filter(|device| told.get(&device.index).is_none_or(|gpu| gpu.up))
            .filter(|device| gpus_unknown.is_some() || told.contains_key(&device.index))
            .map(|device| self.free(device, told.get(&device.index).copied(), &snapshot))
            .filter(|it| it.unclaimed || self.over_subscribe)
            .map(|it| FreeDevice {
                available: it.unclaimed && waiting.is_empty() && !uses.contains_key(&it.index),
                used_by_others: uses.contains_key(&it.index),
                ..it
            })
            .collect();
        // In the order in which they would be attached.
        devices.sort_by_key(|it| {
            let busy = it.processes.is_some_and(|processes| processes > 0);
            let environments = if it.unclaimed { 0 } else { it.environments };
            (it.used_by_others, !it.unclaimed, environments, busy, it.index)
        });
        let answer = Answer {
            devices,
            expected: state
                .expectation(const { &BTreeMap::new() }, now_seconds())
                .of_devices()
                .into_iter()
                .map(|(index, timestamp_seconds)| ExpectedDevice { index, timestamp_seconds })
                .collect(),
            waiting: waiting.iter().map(|&Waiting { pid, uid, .. }| WaitingProcess { pid, uid }).collect(),
            gpus_unknown,
        };
        if self.output.json {
            print_json(&answer)?;
        } else {
            self.print(&answer, state.devices.len())?;
            name_expected(&answer.expected);
            name_waiting(&waiting);
        }
        Ok(())
    }

    fn free(&self, device: &DeviceState, gpu: Option<&Device>, snapshot: &Snapshot) -> FreeDevice {
        let total = device.total_memory.map(MemoryAmount::bytes);
        let unattached = total.map(|total| {
            let claimed = device.attachments.iter();
            let claimed = claimed.map(|it| it.gpu_memory.map_or(total, MemoryAmount::bytes));
            claimed.fold(total, u64::saturating_sub)
        });
        let unclaimed = match self.gpu_memory {
            None => device.attachments.is_empty(),
            Some(needed) => unattached.is_some_and(|left| left >= needed.bytes()),
        };
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
            processes: gpu.and_then(|_| processes(device.index, snapshot)),
        }
    }

    fn print(&self, answer: &Answer, all: usize) -> io::Result<()> {
        let header = &["ID", "MODEL", "UNCLAIMED", "UNUSED", "TOTAL", "PROCESSES", "HOW"];
        let mut table = Table::new(header).header(!self.output.no_header);
        for it in &answer.devices {
            let how = match (it.unclaimed, it.environments) {
                _ if it.used_by_others => unheld(true, false, it.processes),
                (true, _) => unheld(false, !it.available, it.processes),
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
        if answer.devices.is_empty() {
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
                    "{none}: 'genv devices' tells who holds {them}, '--over-subscribe' what could be shared."
                )?;
            }
        } else {
            table.write(&mut out)?;
        }
        if let Some(why) = &answer.gpus_unknown {
            let why = crate::output::harmless(why);
            tell(&format!("it is not known who uses the devices: {why}"));
        }
        Ok(())
    }
}

/// The state of a device that could be attached by its attachments. `is_used`: a process uses it outside of
/// environments. `is_waited_for`: processes wait in the queue for devices.
pub(super) fn unheld(is_used: bool, is_waited_for: bool, processes: Option<usize>) -> Cell {
    let state = match processes {
        _ if is_used => "used, not held",
        _ if is_waited_for => "waited for",
        // A command attaches it all the same; whether a process works there is not known.
        None => "not known",
        Some(0) => return Cell::own("free").style(GOOD),
        Some(_) => "used, not attached",
    };
    Cell::own(state).style(DOUBTFUL)
}

/// Reports when devices come free by leases.
fn name_expected(expected: &[ExpectedDevice]) {
    let devices = expected.iter();
    let devices = devices.map(|it| {
        let time = lease::moment(it.timestamp_seconds);
        format!("device {} at {time}", it.index)
    });
    let devices: Vec<String> = devices.collect();
    if !devices.is_empty() {
        let devices = devices.join(", ");
        tell(&format!("expected back, by leases: {devices}"));
    }
}

/// Reports the processes that get devices first.
pub(super) fn name_waiting(waiting: &[Waiting]) {
    if !waiting.is_empty() {
        tell(&format!(
            "{} in the queue for devices: 'genv activate --wait' waits too, 'genv activate -o' shares",
            who_waits(waiting)
        ));
    }
}

/// What GPUs told, by index.
pub(super) fn told(snapshot: &Snapshot) -> BTreeMap<u32, &Device> {
    let whole = |device: &&Device| device.index.mig.is_none();
    let devices = snapshot.devices.iter().filter(whole);
    devices.map(|device| (device.index.gpu, device)).collect()
}

/// How many processes use a GPU or a part of it, if all of them are known.
pub(super) fn processes(index: u32, snapshot: &Snapshot) -> Option<usize> {
    let gpu = DeviceIndex::gpu(index);
    let users = snapshot.processes.iter().filter(|process| {
        let mut devices = process.devices.iter();
        devices.any(|device| device.index.whole() == gpu)
    });
    let users = users.count();
    let parts = snapshot.devices.iter();
    let mut parts = parts.filter(|it| it.index.whole() == gpu && it.up);
    let is_confirmed = users > 0 || parts.all(|it| seems_unused(&it.measurements));
    (snapshot.processes_known(index) && is_confirmed).then_some(users)
}

/// Bytes for people; `?` if it is not known.
pub(super) fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), outside::memory)
}
