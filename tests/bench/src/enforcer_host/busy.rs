//! The busy host: its processes, its driver and its state.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use genv_tests::enforcer;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use rustix::process::{geteuid, getuid};

use crate::load::{DEVICES, ENVIRONMENTS, PROCESSES};

/// Users of the host, where root can be all of them.
const USERS: usize = 25;
/// Processes that are in no environment.
const OUTSIDE: usize = 10;
/// Environments with idle processes.
const IDLE: usize = 5;

/// The host; it ends with the value.
pub(super) struct Busy {
    pub(super) simulation: Simulation,
    processes: Vec<Sleeper>,
}

impl Busy {
    /// Each environment has two processes and is attached to all devices; some use more than they reserved, some do nothing.
    pub(super) fn start() -> Result<Self> {
        let processes = (0..PROCESSES).map(Self::process);
        let processes = processes.collect::<Result<Vec<_>>>()?;
        let mut scenario =
            format!("version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi}}]\n  processes:\n");
        for (number, process) in processes.iter().enumerate() {
            let environment = number % ENVIRONMENTS;
            // NVML reports whole percent.
            let works = number < ENVIRONMENTS && environment >= IDLE;
            let utilization = if works { 0.01 } else { 0.0 };
            let memory = if environment % 20 == 7 { 400 } else { 42 };
            let uses =
                (0..DEVICES).map(|index| format!("{{index: {index}, memory: {memory}mi, utilization: {utilization}}}"));
            let uses: Vec<_> = uses.collect();
            scenario += &format!("  - {{pid: {}, devices: [{}]}}\n", process.pid(), uses.join(", "));
        }
        Ok(Self { simulation: Simulation::new(&scenario), processes })
    }

    fn process(number: usize) -> Result<Sleeper> {
        let environment = number % ENVIRONMENTS;
        let mut command = Command::new("sleep");
        command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("HOME", "/home/somebody")]).arg("1000000");
        if number < PROCESSES - OUTSIDE {
            command.env("GENV_ENVIRONMENT_ID", format!("e{environment}"));
        }
        if geteuid().is_root() {
            command.uid(uid(environment)).gid(uid(environment));
        }
        Sleeper::spawn(&mut command)
    }

    pub(super) fn write_state(&self, folder: &Path) -> Result<()> {
        let environments: Vec<_> = (0..ENVIRONMENTS)
            .map(|number| Environment {
                eid: format!("e{number}"),
                uid: uid(number),
                pids: vec![self.processes[number].pid()],
                // One forgot a device that its processes use.
                devices: (usize::from(number % 20 == 3)..DEVICES).collect(),
                gpu_memory: Some("512mi"),
            })
            .collect();
        state::write(folder, DEVICES, &environments)
    }
}

fn uid(environment: usize) -> u32 {
    if geteuid().is_root() { enforcer::victim() + (environment % USERS) as u32 } else { getuid().as_raw() }
}
