//! `genv who`

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use genv_core::collect::processes_on;
use genv_core::model::{Attribution, Device, MemoryAmount, Process, Snapshot};
use genv_core::state::allocate::{AllocateError, MIG_UNSPLIT_REMEDY, in_mig_mode_unsplit};
use genv_core::state::shape::Times;
use genv_core::state::{AttachmentState, DeviceState, State};
use serde::Serialize;

use super::free::{gpus_by_index, memory};
use crate::ago::{ago, now_seconds};
use crate::announce::indices;
use crate::completion;
use crate::lease;
use crate::local_snapshot;
use crate::machine::Machine;
use crate::output::{Cell, DOUBTFUL, Table, TableFlags, harmless, print_json, print_note, stdout};
use crate::users::Users;

const EXAMPLE: &str = "Example: list the holders of device 0 and the processes on it
  genv who 0";

/// List the holders of devices and the processes on them, in environments and outside.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Who {
    /// Indices of the devices. Default: all devices.
    #[arg(value_name = "INDEX", value_parser = crate::values::index, allow_negative_numbers = true, add = completion::devices())]
    indices: Vec<u32>,

    #[command(flatten)]
    output: TableFlags,
}

#[derive(Serialize)]
struct DevicesReport {
    devices: Vec<DeviceReport>,
}

#[derive(Serialize)]
struct DeviceReport {
    index: u32,
    name: Option<String>,
    up: Option<bool>,
    memory_total_bytes: Option<u64>,
    memory_used_bytes: Option<u64>,
    utilization_ratio: Option<f64>,
    holders: Vec<Holder>,
    /// Absent if some are unknown.
    processes: Option<Vec<DeviceUser>>,
    /// The known processes, if others may be unknown.
    #[serde(skip)]
    named: Vec<DeviceUser>,
    /// Whether the device is in MIG mode without MIG devices.
    #[serde(skip)]
    mig_unsplit: bool,
    /// Why the processes on the device are unknown.
    gpus_unknown: Option<String>,
}

/// An environment that holds the device.
#[derive(Serialize)]
struct Holder {
    eid: String,
    name: Option<String>,
    uid: Option<u32>,
    username: Option<String>,
    /// Absent: the whole device.
    memory_bytes: Option<u64>,
    attached: Option<String>,
    /// The end of the environment's lease; absent without one.
    lease_end_timestamp_seconds: Option<f64>,
    #[serde(skip)]
    attached_timestamp_seconds: Option<f64>,
}

/// A process that uses the device.
#[derive(Serialize)]
struct DeviceUser {
    pid: u32,
    username: Option<String>,
    command: Option<String>,
    /// `environment`, `outside` or `unknown`.
    state: &'static str,
    eid: Option<String>,
    /// Whether that environment holds the device.
    attached: bool,
    memory_used_bytes: Option<u64>,
}

impl Who {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let state = machine.state_with_devices()?;
        let devices = self.devices(&state)?;
        let snapshot = local_snapshot::take(machine.newest_sample(&state).sample)?;
        let reports = devices.iter().map(|it| DeviceReport::new(it, &state, &snapshot));
        let reports: Vec<DeviceReport> = reports.collect();
        match (&reports[..], &self.indices[..]) {
            ([report], [_]) if self.output.json => print_json(report)?,
            _ if self.output.json => print_json(&DevicesReport { devices: reports })?,
            _ => self.print(&reports)?,
        }
        Ok(())
    }

    /// The devices that the indices name, each once.
    fn devices<'a>(&self, state: &'a State) -> Result<Vec<&'a DeviceState>, AllocateError> {
        if self.indices.is_empty() {
            return Ok(state.devices.iter().collect());
        }
        let mut devices: Vec<&DeviceState> = Vec::new();
        for index in &self.indices {
            let device = state.devices.iter().find(|it| it.index == *index);
            let device = device.ok_or_else(|| AllocateError::NoSuchDevice {
                index: *index,
                total: u32::try_from(state.devices.len()).unwrap_or(u32::MAX),
            })?;
            if !devices.iter().any(|it| it.index == *index) {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    fn print(&self, reports: &[DeviceReport]) -> io::Result<()> {
        let mut out = stdout();
        for (position, report) in reports.iter().enumerate() {
            if position > 0 {
                writeln!(out)?;
            }
            self.print_device(report, &mut out)?;
        }
        out.flush()?;
        drop(out);
        print_unknown(reports);
        Ok(())
    }

    fn print_device(&self, report: &DeviceReport, out: &mut impl Write) -> io::Result<()> {
        let mut facts = vec![format!("Device {}", report.index)];
        facts.extend(report.name.as_deref().map(harmless));
        facts.push(match report.memory_used_bytes {
            Some(used) => format!("{} of {} used", memory(Some(used)), memory(report.memory_total_bytes)),
            None => memory(report.memory_total_bytes),
        });
        facts.extend(report.utilization_ratio.map(|it| format!("{:.0} % busy", it * 100.0)));
        facts.extend((report.up == Some(false)).then(|| "it does not report".to_owned()));
        writeln!(out, "{}", facts.join(", "))?;
        if report.holders.is_empty() {
            writeln!(out, "No environment holds it")?;
        } else {
            let header = &["HELD BY", "ENV ID", "ENV NAME", "MEMORY", "SINCE", "UNTIL"];
            let mut table = Table::new(header).header(!self.output.no_header);
            let mut users = Users::default();
            for it in &report.holders {
                let since = it.attached_timestamp_seconds;
                let claimed = it.memory_bytes.map(|it| memory(Some(it)));
                table.row([
                    it.uid.map(|uid| users.cell(uid)).unwrap_or_default(),
                    Cell::foreign(&it.eid),
                    Cell::foreign(it.name.as_deref().unwrap_or_default()),
                    Cell::own(claimed.unwrap_or_else(|| "all".to_owned())),
                    Cell::own(since.map(|it| ago(it, now_seconds())).unwrap_or_default()),
                    lease::table_cell(it.lease_end_timestamp_seconds),
                ]);
            }
            table.drop_empty(5);
            table.write(out)?;
        }
        let processes = report.processes.as_ref().unwrap_or(&report.named);
        if !processes.is_empty() {
            let header = &["USED BY", "PID", "COMMAND", "MEMORY", "IN"];
            let mut table = Table::new(header).header(!self.output.no_header);
            for it in processes {
                table.row([
                    Cell::foreign(it.username.as_deref().unwrap_or("?")),
                    Cell::own(it.pid.to_string()),
                    Cell::foreign(it.command.as_deref().unwrap_or("?")),
                    Cell::own(memory(it.memory_used_bytes)),
                    it.environment_cell(),
                ]);
            }
            table.write(out)?;
        } else if report.processes.is_some() {
            writeln!(out, "No process uses it")?;
        }
        Ok(())
    }
}

/// Prints why processes on devices are unknown, and which devices run no program.
fn print_unknown(reports: &[DeviceReport]) {
    let mut reasons = BTreeMap::<_, Vec<u32>>::new();
    let mig_unsplit: Vec<u32> = reports.iter().filter(|it| it.mig_unsplit).map(|it| it.index).collect();
    if !mig_unsplit.is_empty() {
        print_note(&format!("{}. {MIG_UNSPLIT_REMEDY}", in_mig_mode_unsplit(&mig_unsplit)));
    }
    for report in reports.iter().filter(|it| it.processes.is_none() && !it.mig_unsplit) {
        let reason = (report.gpus_unknown.as_deref(), !report.named.is_empty());
        reasons.entry(reason).or_default().push(report.index);
    }
    for ((reason, is_any_known), devices) in reasons {
        let other = if is_any_known { "other " } else { "" };
        let used = match reports {
            [_] => "it".to_owned(),
            _ => indices(&devices),
        };
        let reason = harmless(reason.unwrap_or("the driver did not list all processes; 'nvidia-smi' may show more"));
        print_note(&format!("it is unknown which {other}processes use {used}: {reason}"));
    }
}

impl DeviceUser {
    /// The environment of the process.
    fn environment_cell(&self) -> Cell {
        match &self.eid {
            Some(eid) if self.attached => Cell::foreign(eid),
            Some(eid) => {
                let eid = harmless(eid);
                Cell::own(format!("{eid}, which is not attached to it")).style(DOUBTFUL)
            }
            None if self.state == "outside" => Cell::own("no environment").style(DOUBTFUL),
            None => Cell::own("?"),
        }
    }
}

impl DeviceReport {
    fn new(device: &DeviceState, state: &State, snapshot: &Snapshot) -> Self {
        let gpu: BTreeMap<u32, &Device> = gpus_by_index(snapshot);
        let gpu = gpu.get(&device.index).copied();
        let measured = gpu.and_then(|gpu| gpu.measurements.memory);
        let total = device.total_memory.map(MemoryAmount::bytes);
        let gpus_unknown = local_snapshot::silence(snapshot, "gpu");
        let users = snapshot.processes.iter();
        let users = users.filter_map(|it| user_of(it, device, snapshot));
        let users: Vec<DeviceUser> = users.collect();
        let (processes, named) =
            if processes_on(device.index, snapshot).is_some() { (Some(users), Vec::new()) } else { (None, users) };
        Self {
            index: device.index,
            name: gpu.and_then(|gpu| gpu.name.clone()),
            up: gpu.map(|gpu| gpu.up),
            memory_total_bytes: measured.map(|it| it.total_bytes).or(total),
            memory_used_bytes: measured.map(|it| it.used_bytes),
            utilization_ratio: gpu.and_then(|gpu| gpu.measurements.utilization_ratio),
            holders: device.attachments.iter().map(|it| holder(it, state)).collect(),
            processes,
            named,
            mig_unsplit: gpu.is_some_and(|gpu| gpu.mig_unsplit),
            gpus_unknown,
        }
    }
}

fn holder(attachment: &AttachmentState, state: &State) -> Holder {
    let environment = state.environments.iter().find(|it| it.eid == attachment.eid);
    Holder {
        eid: attachment.eid.clone(),
        name: environment.and_then(|it| it.name.clone()),
        uid: environment.map(|it| it.uid),
        username: environment.and_then(|it| it.username.clone()),
        memory_bytes: attachment.gpu_memory.map(MemoryAmount::bytes),
        attached: attachment.attached_timestamp_seconds.map(|attached| Times::here().text(Some(attached))),
        attached_timestamp_seconds: attachment.attached_timestamp_seconds,
        lease_end_timestamp_seconds: state.lease_end(&attachment.eid),
    }
}

/// The entry of a process, if it uses the device.
fn user_of(process: &Process, device: &DeviceState, snapshot: &Snapshot) -> Option<DeviceUser> {
    let here = || {
        let devices = process.devices.iter();
        devices.filter(|it| it.index.gpu == device.index)
    };
    here().next()?;
    let eid = match &process.attribution {
        Attribution::Environment { eid } => Some(eid.clone()),
        Attribution::Outside { .. } | Attribution::Unknown { .. } => None,
    };
    let attached = |eid: &String| device.attachments.iter().any(|it| it.eid == *eid);
    Some(DeviceUser {
        pid: process.pid,
        username: snapshot.user_of(process).map(str::to_owned),
        command: process.comm.clone(),
        state: process.attribution.state(),
        attached: eid.as_ref().is_some_and(attached),
        eid,
        memory_used_bytes: here().map(|it| it.memory_used_bytes.get()).sum(),
    })
}
