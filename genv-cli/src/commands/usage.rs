//! `genv usage`

use std::collections::BTreeMap;

use clap::{Args, Subcommand, ValueEnum};
use genv_core::model::{MemoryAmount, ProcessType, Snapshot};
use genv_core::state::shape::{DevicesDocument, EnvironmentsDocument, Times};
use serde::Serialize;

use super::enforce::exec_enforcer;
use crate::driver_timeout::needed_patience;
use crate::local_snapshot;
use crate::machine::Machine;
use crate::output::print_json;

/// Print the use of devices, or execute a report about it, in the format of genv 1.4.3.
#[derive(Debug, Args)]
pub(crate) struct Usage {
    #[command(subcommand)]
    command: UsageCommand,
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Print processes, environments and devices. 'genv snapshot' has more fields.
    Snapshot {
        /// Output format.
        #[arg(long, value_name = "FORMAT", default_value = "json")]
        format: Format,
        /// Print only this one of the three.
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<Kind>,
    },
    /// Execute the actions of the report on stdin, by genv-enforcer.
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
struct UsageDocument<'a> {
    processes: ComputeProcesses,
    envs: EnvironmentsDocument<'a>,
    devices: DevicesDocument<'a>,
}

#[derive(Serialize)]
struct ComputeProcesses {
    processes: Vec<ComputeProcess>,
}

#[derive(Serialize)]
struct ComputeProcess {
    pid: u32,
    used_gpu_memory: Vec<UsedMemory>,
    eid: Option<String>,
}

#[derive(Serialize)]
struct UsedMemory {
    index: u32,
    /// Absent if the driver does not report it.
    gpu_memory: Option<String>,
}

impl Usage {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            UsageCommand::Snapshot { format: Format::Json, kind } => snapshot(kind),
            UsageCommand::Execute => exec_enforcer("act on the report", "execute-report", Vec::new()),
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
            let state = machine.state_with_devices()?;
            print_json(&DevicesDocument::new(&state.devices, &times))?;
        }
        Some(Kind::Processes) => print_json(&processes(&mut machine)?)?,
        None => {
            let processes = processes(&mut machine)?;
            let state = machine.state_with_devices()?;
            print_json(&UsageDocument {
                processes,
                envs: EnvironmentsDocument::new(&state.environments, &times),
                devices: DevicesDocument::new(&state.devices, &times),
            })?;
        }
    }
    Ok(())
}

fn processes(machine: &mut Machine) -> anyhow::Result<ComputeProcesses> {
    let snapshot = local_snapshot::take(machine.sample(needed_patience()))?;
    if let Some(why) = local_snapshot::silence(&snapshot, "gpu") {
        anyhow::bail!("cannot find the processes on the GPUs: {why}");
    }
    Ok(ComputeProcesses { processes: computing(&snapshot) })
}

/// ComputeProcesses that compute, as `nvidia-smi --query-compute-apps` lists them, with memory in whole MiB.
fn computing(snapshot: &Snapshot) -> Vec<ComputeProcess> {
    let processes = snapshot.processes.iter().filter_map(|process| {
        // genv 1.4.3 does not distinguish the parts of a GPU.
        let mut used_bytes = BTreeMap::<u32, Option<u64>>::new();
        for device in &process.devices {
            if device.process_type != ProcessType::Graphics {
                let used = used_bytes.entry(device.index.gpu).or_insert(Some(0));
                *used = used.zip(device.memory_used_bytes.get()).map(|(a, b)| a.saturating_add(b));
            }
        }
        let used_gpu_memory = used_bytes.into_iter().map(|(index, bytes)| UsedMemory {
            index,
            gpu_memory: bytes.map(|bytes| MemoryAmount::mebibytes(bytes >> 20).to_string()),
        });
        let used_gpu_memory: Vec<_> = used_gpu_memory.collect();
        (!used_gpu_memory.is_empty()).then(|| ComputeProcess {
            pid: process.pid,
            used_gpu_memory,
            eid: process.attribution.eid().map(str::to_owned),
        })
    });
    processes.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use genv_core::model::{Attribution, DeviceIndex, Process, ProcessDevice};

    use super::*;

    #[test]
    fn memory_that_the_driver_does_not_report_is_absent() {
        let on = |gpu, part, memory_used_bytes: Option<u64>| ProcessDevice {
            index: DeviceIndex::mig(gpu, part),
            process_type: ProcessType::Compute,
            memory_used_bytes: memory_used_bytes.into(),
            utilization_ratio: None.into(),
        };
        let process = Process {
            pid: 7,
            start_time_ticks: None,
            uid: None,
            username: None,
            comm: None,
            container_id: None,
            attribution: Attribution::Outside { reason: "no_claim".to_owned() },
            devices: vec![on(0, 0, Some(1 << 30)), on(0, 1, Some(1 << 30)), on(1, 0, Some(1 << 30)), on(1, 1, None)],
        };
        let found = computing(&Snapshot { processes: vec![Arc::new(process)], ..Snapshot::default() });
        let memory: Vec<Option<&str>> = found[0].used_gpu_memory.iter().map(|it| it.gpu_memory.as_deref()).collect();
        assert_eq!(memory, [Some("2048mi"), None]);
    }
}
