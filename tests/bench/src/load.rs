//! The load of the budgets: 8 devices, 100 environments, and 200 real processes on all devices.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use genv_tests::exporter::Exporter;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use serde_json::{Value, json};

pub(crate) const DEVICES: usize = 8;
pub(crate) const ENVIRONMENTS: usize = 100;
/// Processes of the load, each on all devices.
pub(crate) const PROCESSES: usize = 200;
/// Processes of a machine on which little goes on.
pub(crate) const FEW_PROCESSES: usize = 10;

/// The load in words.
pub(crate) const LOAD: &str = "8 devices, 100 environments, 200 processes on all devices";

/// A machine under load; it ends with the value.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) simulation: Simulation,
    processes: Vec<Sleeper>,
}

impl Load {
    /// Starts the processes. The utilization of one process in ten may change from cycle to cycle.
    pub(crate) fn start(one_in_ten_changes: bool) -> Result<Self> {
        Self::with(PROCESSES, sleep_in_environment, |process, device| {
            let utilization = if one_in_ten_changes && process.is_multiple_of(10) {
                let phase = device * 400 + process * 10;
                format!("{{wave: {{period: 3700ms, low: 0, high: 0.04, phase: {phase}ms}}}}")
            } else {
                "0.004".to_owned()
            };
            format!("memory: 42mi, utilization: {utilization}")
        })
    }

    /// Starts few processes, each on all devices.
    pub(crate) fn few() -> Result<Self> {
        Self::with(FEW_PROCESSES, sleep_in_environment, |_, _| "memory: 42mi, utilization: 0.004".to_owned())
    }

    /// Starts a command for each process, and describes to the simulated driver how a process uses a device.
    pub(crate) fn with(
        processes: usize,
        command: impl Fn(usize) -> Command,
        uses: impl Fn(usize, usize) -> String,
    ) -> Result<Self> {
        let processes = (0..processes).map(|process| Sleeper::spawn(&mut command(process)));
        let processes = processes.collect::<Result<Vec<_>>>()?;
        let mut scenario =
            format!("version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi, fans: [0.5]}}]\n  processes:\n");
        for (number, process) in processes.iter().enumerate() {
            let uses = (0..DEVICES).map(|device| format!("{{index: {device}, {}}}", uses(number, device)));
            let uses = uses.collect::<Vec<_>>().join(", ");
            writeln!(scenario, "  - {{pid: {}, devices: [{uses}]}}", process.pid())?;
        }
        Ok(Self { simulation: Simulation::new(&scenario), processes })
    }

    /// Writes the state: each environment has its first process as member and is attached to one device.
    pub(crate) fn write_state(&self, folder: &Path) -> Result<()> {
        self.write_environments(folder, |number, pid| Environment {
            eid: format!("e{number}"),
            uid: rustix::process::getuid().as_raw(),
            pids: vec![pid],
            devices: vec![number % DEVICES],
            gpu_memory: Some("1gi"),
        })?;
        write_as_before(folder)
    }

    /// Writes the state of these environments, of a number and the pid of its first process.
    pub(crate) fn write_environments(&self, folder: &Path, of: impl Fn(usize, u32) -> Environment) -> Result<()> {
        let environments = (0..ENVIRONMENTS).map(|number| of(number, self.processes[number].pid()));
        state::write(folder, DEVICES, &environments.collect::<Vec<_>>())
    }

    /// Waits until the exporter shows all environments and processes.
    pub(crate) fn wait_until_seen_by(&self, exporter: &Exporter) -> Result<()> {
        exporter.wait_for("the load", |scrape| {
            scrape.value("genv_environments", &[]).ok() == Some(ENVIRONMENTS as f64)
                && scrape.value("genv_processes", &[("state", "environment")]).ok() == Some(self.processes.len() as f64)
        })?;
        Ok(())
    }

    /// A command of the program `genv`, with this load and state on a terminal.
    pub(crate) fn genv(&self, program: &Path, command: &str, state: &Path) -> Command {
        let mut genv = Command::new(program);
        genv.arg(command)
            .env("GENV_NVML_LIBRARY", self.simulation.library())
            .env("GENV_SCENARIO", self.simulation.scenario())
            .env("GENV_TMPDIR", state)
            .env("TERM", "xterm");
        genv
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Sleeper::pid).collect()
    }
}

pub(crate) fn sleep_in_environment(process: usize) -> Command {
    let mut command = Command::new("sleep");
    command
        .arg("1000000")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", "/home/somebody")
        .env("CUDA_VISIBLE_DEVICES", "0")
        .env("GENV_ENVIRONMENT_ID", format!("e{}", process % ENVIRONMENTS));
    command
}

/// Writes a state also as the versions before `state.json` read it; others ignore these files.
fn write_as_before(folder: &Path) -> Result<()> {
    const TIME: &str = "20/11/2026 12:00:00";
    let state = state::read(folder)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let environments = list(&state["environments"]).into_iter().map(|it| {
        let pids: Vec<Value> = list(&it["members"]).iter().map(|member| member["pid"].clone()).collect();
        json!({"eid": it["eid"], "uid": it["uid"], "creation": TIME, "username": it["username"], "pids": pids,
            "config": {"name": null, "gpu_memory": it["gpu_memory"], "gpus": null}, "kernel_ids": []})
    });
    let devices = list(&state["devices"]).into_iter().map(|it| {
        let attachments = list(&it["attachments"]).into_iter();
        let attachments =
            attachments.map(|it| json!({"eid": it["eid"], "gpu_memory": it["gpu_memory"], "time": TIME}));
        json!({"index": it["index"], "total_memory": it["total_memory"], "attachments": attachments.collect::<Vec<_>>()})
    });
    let environments = json!({ "envs": environments.collect::<Vec<_>>() });
    let devices = json!({ "devices": devices.collect::<Vec<_>>() });
    for (name, content) in [("envs.json", environments), ("devices.json", devices)] {
        std::fs::write(folder.join(name), content.to_string())?;
    }
    Ok(())
}
