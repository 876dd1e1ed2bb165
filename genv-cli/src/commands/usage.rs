//! `genv usage`

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use genv_core::model::{MemoryAmount, ProcessType, Snapshot};
use genv_core::state::shape::{DevicesDocument, EnvironmentsDocument, Times};
use serde::Serialize;

use super::devices::known;
use super::enforce::become_enforcer;
use crate::local_snapshot;
use crate::machine::Machine;
use crate::output::print_json;

/// How long GPUs may take to tell who uses them: who asks has nothing without.
const PATIENCE: Duration = Duration::from_secs(4);

/// Print the use of devices, or act on it, in the format of genv 1.4.3.
#[derive(Debug, Args)]
pub(crate) struct Usage {
    #[command(subcommand)]
    command: UsageCommand,
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Print processes, environments and devices. 'genv snapshot' has more fields.
    Snapshot {
        /// The only format that there is.
        #[arg(long, value_name = "FORMAT", default_value = "json")]
        format: Format,
        /// Only one of the three.
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<Kind>,
    },
    /// Have genv-enforcer carry out the actions of the report on stdin.
    Execute,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Devices,
    Envs,
    Processes,
}

#[derive(Serialize)]
struct All<'a> {
    processes: Processes,
    envs: EnvironmentsDocument<'a>,
    devices: DevicesDocument<'a>,
}

#[derive(Serialize)]
struct Processes {
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    used_gpu_memory: Vec<UsedMemory>,
    eid: Option<String>,
}

#[derive(Serialize)]
struct UsedMemory {
    index: u32,
    gpu_memory: String,
}

impl Usage {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            UsageCommand::Snapshot { format: Format::Json, kind } => snapshot(kind),
            UsageCommand::Execute => become_enforcer("act on the report", "execute-report", Vec::new()),
        }
    }
}

fn snapshot(kind: Option<Kind>) -> anyhow::Result<()> {
    let times = Times::here();
    let mut machine = Machine::here()?;
    match kind {
        Some(Kind::Envs) => {
            let state = machine.state()?;
            print_json(&EnvironmentsDocument::new(&state.environments, &times))?;
        }
        Some(Kind::Devices) => {
            let state = known(&mut machine)?;
            print_json(&DevicesDocument::new(&state.devices, &times))?;
        }
        Some(Kind::Processes) => print_json(&processes()?)?,
        None => {
            let processes = processes()?;
            let state = known(&mut machine)?;
            print_json(&All {
                processes,
                envs: EnvironmentsDocument::new(&state.environments, &times),
                devices: DevicesDocument::new(&state.devices, &times),
            })?;
        }
    }
    Ok(())
}

fn processes() -> anyhow::Result<Processes> {
    let snapshot = local_snapshot::take(PATIENCE)?;
    if let Some(why) = local_snapshot::silence(&snapshot, "gpu") {
        anyhow::bail!("cannot tell which processes use the GPUs: {why}");
    }
    Ok(Processes { processes: computing(&snapshot) })
}

/// Processes that compute, as `nvidia-smi --query-compute-apps` lists them, with memory in whole MiB.
fn computing(snapshot: &Snapshot) -> Vec<Process> {
    let processes = snapshot.processes.iter().filter_map(|process| {
        // Parts of one GPU are one to genv 1.4.3.
        let mut used_bytes = BTreeMap::<u32, u64>::new();
        for device in &process.devices {
            if device.process_type != ProcessType::Graphics {
                let used = used_bytes.entry(device.index.gpu).or_default();
                *used += device.memory_used_bytes.unwrap_or(0);
            }
        }
        let used_gpu_memory = used_bytes
            .into_iter()
            .map(|(index, bytes)| UsedMemory { index, gpu_memory: MemoryAmount::mebibytes(bytes >> 20).to_string() });
        let used_gpu_memory: Vec<_> = used_gpu_memory.collect();
        (!used_gpu_memory.is_empty()).then(|| Process {
            pid: process.pid,
            used_gpu_memory,
            eid: process.attribution.eid().map(str::to_owned),
        })
    });
    processes.collect()
}
