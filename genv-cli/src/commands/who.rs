//! `genv who`

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use genv_core::model::{Attribution, Device, MemoryAmount, Process, Snapshot};
use genv_core::state::allocate::AllocateError;
use genv_core::state::shape::Times;
use genv_core::state::{AttachmentState, DeviceState, State};
use serde::Serialize;

use super::devices::known;
use super::free::{memory, processes, told};
use crate::ago::{ago, now_seconds};
use crate::announce::indices;
use crate::completion;
use crate::lease;
use crate::local_snapshot;
use crate::machine::{Machine, USAGE_PATIENCE, tell};
use crate::output::{Cell, DOUBTFUL, Table, TableFlags, harmless, print_json, stdout};
use crate::users::Users;

const EXAMPLE: &str = "Example: who holds device 0, and whose processes run on it
  genv who 0";

/// List holders of devices and processes on devices, in environments and outside.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Who {
    /// Indices of the devices; without: all devices.
    #[arg(value_name = "INDEX", value_parser = crate::values::index, allow_negative_numbers = true, add = completion::devices())]
    indices: Vec<u32>,

    #[command(flatten)]
    output: TableFlags,
}

#[derive(Serialize)]
struct Answers {
    devices: Vec<Answer>,
}

#[derive(Serialize)]
struct Answer {
    index: u32,
    name: Option<String>,
    up: Option<bool>,
    memory_total_bytes: Option<u64>,
    memory_used_bytes: Option<u64>,
    utilization_ratio: Option<f64>,
    holders: Vec<Holder>,
    /// Absent if they are not all known.
    processes: Option<Vec<User>>,
    /// The processes that are known where others may be there.
    #[serde(skip)]
    named: Vec<User>,
    /// Why it is not known who uses it.
    gpus_unknown: Option<String>,
}

/// An environment that is attached.
#[derive(Serialize)]
struct Holder {
    eid: String,
    name: Option<String>,
    uid: Option<u32>,
    username: Option<String>,
    /// Absent: all of it.
    memory_bytes: Option<u64>,
    attached: Option<String>,
    /// The end of the environment's lease; absent without one.
    lease_end_timestamp_seconds: Option<f64>,
    #[serde(skip)]
    attached_timestamp_seconds: Option<f64>,
}

/// A process that uses it.
#[derive(Serialize)]
struct User {
    pid: u32,
    username: Option<String>,
    command: Option<String>,
    /// `environment`, `outside` or `unknown`.
    state: &'static str,
    eid: Option<String>,
    /// Whether that environment is attached to the device.
    attached: bool,
    memory_used_bytes: Option<u64>,
}

impl Who {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let state = known(&mut machine)?;
        let devices = self.devices(&state)?;
        let snapshot = local_snapshot::take(USAGE_PATIENCE)?;
        let answers = devices.iter().map(|it| Answer::new(it, &state, &snapshot));
        let answers: Vec<Answer> = answers.collect();
        match (&answers[..], &self.indices[..]) {
            ([answer], [_]) if self.output.json => print_json(answer)?,
            _ if self.output.json => print_json(&Answers { devices: answers })?,
            _ => self.print(&answers)?,
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

    fn print(&self, answers: &[Answer]) -> io::Result<()> {
        let mut out = stdout();
        for (position, answer) in answers.iter().enumerate() {
            if position > 0 {
                writeln!(out)?;
            }
            self.print_device(answer, &mut out)?;
        }
        out.flush()?;
        drop(out);
        tell_unknown(answers);
        Ok(())
    }

    fn print_device(&self, answer: &Answer, out: &mut impl Write) -> io::Result<()> {
        let mut facts = vec![format!("Device {}", answer.index)];
        facts.extend(answer.name.as_deref().map(harmless));
        facts.push(match answer.memory_used_bytes {
            Some(used) => format!("{} of {} used", memory(Some(used)), memory(answer.memory_total_bytes)),
            None => memory(answer.memory_total_bytes),
        });
        facts.extend(answer.utilization_ratio.map(|it| format!("{:.0} % busy", it * 100.0)));
        facts.extend((answer.up == Some(false)).then(|| "it does not answer".to_owned()));
        writeln!(out, "{}", facts.join(", "))?;
        if answer.holders.is_empty() {
            writeln!(out, "Nobody holds it")?;
        } else {
            let header = &["HELD BY", "ENV ID", "ENV NAME", "MEMORY", "SINCE", "UNTIL"];
            let mut table = Table::new(header).header(!self.output.no_header);
            let mut users = Users::default();
            for it in &answer.holders {
                let since = it.attached_timestamp_seconds;
                let claimed = it.memory_bytes.map(|it| memory(Some(it)));
                table.row([
                    it.uid.map(|uid| users.cell(uid)).unwrap_or_default(),
                    Cell::foreign(&it.eid),
                    Cell::foreign(it.name.as_deref().unwrap_or_default()),
                    Cell::own(claimed.unwrap_or_else(|| "all".to_owned())),
                    Cell::own(since.map(|it| ago(it, now_seconds())).unwrap_or_default()),
                    lease::cell(it.lease_end_timestamp_seconds),
                ]);
            }
            table.drop_empty(5);
            table.write(out)?;
        }
        let processes = answer.processes.as_ref().unwrap_or(&answer.named);
        if !processes.is_empty() {
            let header = &["USED BY", "PID", "COMMAND", "MEMORY", "IN"];
            let mut table = Table::new(header).header(!self.output.no_header);
            for it in processes {
                table.row([
                    Cell::foreign(it.username.as_deref().unwrap_or("?")),
                    Cell::own(it.pid.to_string()),
                    Cell::foreign(it.command.as_deref().unwrap_or("?")),
                    Cell::own(memory(it.memory_used_bytes)),
                    it.place(),
                ]);
            }
            table.write(out)?;
        } else if answer.processes.is_some() {
            writeln!(out, "No process uses it")?;
        }
        Ok(())
    }
}

/// Reports why it is not known who uses some of the devices.
fn tell_unknown(answers: &[Answer]) {
    let mut reasons = BTreeMap::<_, Vec<u32>>::new();
    for answer in answers.iter().filter(|it| it.processes.is_none()) {
        let reason = (answer.gpus_unknown.as_deref(), !answer.named.is_empty());
        reasons.entry(reason).or_default().push(answer.index);
    }
    for ((reason, is_any_known), devices) in reasons {
        let besides = if is_any_known { " besides" } else { "" };
        let used = match answers {
            [_] => "it".to_owned(),
            _ => indices(&devices),
        };
        let reason = harmless(reason.unwrap_or("the driver did not name all processes; 'nvidia-smi' tells more"));
        tell(&format!("it is not known who uses {used}{besides}: {reason}"));
    }
}

impl User {
    /// Where it runs.
    fn place(&self) -> Cell {
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

impl Answer {
    fn new(device: &DeviceState, state: &State, snapshot: &Snapshot) -> Self {
        let gpu: BTreeMap<u32, &Device> = told(snapshot);
        let gpu = gpu.get(&device.index).copied();
        let measured = gpu.and_then(|gpu| gpu.measurements.memory);
        let total = device.total_memory.map(MemoryAmount::bytes);
        let gpus_unknown = local_snapshot::silence(snapshot, "gpu");
        let users = snapshot.processes.iter();
        let users = users.filter_map(|it| user_of(it, device, snapshot));
        let users: Vec<User> = users.collect();
        let (processes, named) =
            if processes(device.index, snapshot).is_some() { (Some(users), Vec::new()) } else { (None, users) };
        Self {
            index: device.index,
            name: gpu.and_then(|gpu| gpu.name.clone()),
            up: gpu.map(|gpu| gpu.up),
            memory_total_bytes: total.or(measured.map(|it| it.total_bytes)),
            memory_used_bytes: measured.map(|it| it.used_bytes),
            utilization_ratio: gpu.and_then(|gpu| gpu.measurements.utilization_ratio),
            holders: device.attachments.iter().map(|it| holder(it, state)).collect(),
            processes,
            named,
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

/// The process as a user of the device, if it is one.
fn user_of(process: &Process, device: &DeviceState, snapshot: &Snapshot) -> Option<User> {
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
    Some(User {
        pid: process.pid,
        username: snapshot.user_of(process).map(str::to_owned),
        command: process.comm.clone(),
        state: process.attribution.state(),
        attached: eid.as_ref().is_some_and(attached),
        eid,
        memory_used_bytes: here().map(|it| it.memory_used_bytes).sum(),
    })
}
