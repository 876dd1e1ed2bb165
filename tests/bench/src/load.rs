//! The load that the budgets speak of: 8 devices, 100 environments, and 200 real processes on all devices.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};

/// Devices of the load.
pub(crate) const DEVICES: usize = 8;
/// Environments of the load.
pub(crate) const ENVIRONMENTS: usize = 100;
/// Processes of the load, each on all devices.
pub(crate) const PROCESSES: usize = 200;

/// A machine under load; it ends with the value.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) simulation: Simulation,
    processes: Vec<Sleeper>,
}

impl Load {
    /// Starts the processes and describes them to the simulated driver.
    pub(crate) fn start() -> Result<Self> {
        let processes = (0..PROCESSES)
            .map(|process| {
                let eid = format!("e{}", process % ENVIRONMENTS);
                Sleeper::start(&[
                    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
                    ("HOME", "/home/somebody"),
                    ("CUDA_VISIBLE_DEVICES", "0"),
                    ("GENV_ENVIRONMENT_ID", &eid),
                ])
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            simulation: Simulation::new(&scenario(&processes)?),
            processes,
        })
    }

    /// Writes the state: each environment has its first process as member and is attached to one device.
    pub(crate) fn write_state(&self, folder: &Path) -> Result<()> {
        write_environments(folder, |number| self.processes[number].pid())
    }

    /// Pids of the processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Sleeper::pid).collect()
    }

    /// The simulated driver.
    pub(crate) fn library(&self) -> PathBuf {
        self.simulation.library_folder().join("libnvidia-ml.so.1")
    }
}

/// Writes the state of the load: each environment has one member and is attached to one device.
pub(crate) fn write_environments(folder: &Path, member: impl Fn(usize) -> u32) -> Result<()> {
    let environments: Vec<_> = (0..ENVIRONMENTS)
        .map(|number| Environment {
            eid: format!("e{number}"),
            uid: rustix::process::getuid().as_raw(),
            pids: vec![member(number)],
            devices: vec![number % DEVICES],
            gpu_memory: Some("1gi"),
        })
        .collect();
    state::write(folder, DEVICES, &environments)
}

fn scenario(processes: &[Sleeper]) -> Result<String> {
    let mut scenario = format!(
        "version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi, fans: [0.5]}}]\n  processes:\n"
    );
    for process in processes {
        write!(scenario, "  - {{pid: {}, devices: [", process.pid())?;
        for device in 0..DEVICES {
            write!(
                scenario,
                "{{index: {device}, memory: 42mi, utilization: 0.004}}, "
            )?;
        }
        scenario.push_str("]}\n");
    }
    Ok(scenario)
}
