//! The load that the budgets speak of: 8 devices, 100 environments, and 200 real processes on all devices.

use std::fmt::Write;
use std::path::Path;

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

/// Whose utilization is another one in each cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// No process changes.
    Nobody,
    /// That of one process in ten, on each of its devices.
    OneInTen,
    /// That of every process, which is as much as can change.
    Everybody,
}

impl Change {
    /// Whether that of the process of this number changes.
    pub(crate) const fn is_of(self, process: usize) -> bool {
        match self {
            Self::Nobody => false,
            Self::OneInTen => process.is_multiple_of(10),
            Self::Everybody => true,
        }
    }

    /// The use of a device by the process with this number.
    pub(crate) fn uses(self, process: usize) -> String {
        let changes = self.is_of(process);
        let uses = (0..DEVICES).map(|device| {
            let utilization = if changes {
                let phase = device * 400 + process * 10;
                format!("{{wave: {{period: 3700ms, low: 0, high: 0.04, phase: {phase}ms}}}}")
            } else {
                "0.004".to_owned()
            };
            format!("{{index: {device}, memory: 42mi, utilization: {utilization}}}")
        });
        uses.collect::<Vec<_>>().join(", ")
    }
}

/// A machine under load; it ends with the value.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) simulation: Simulation,
    processes: Vec<Sleeper>,
}

impl Load {
    /// Starts the processes and describes them to the simulated driver.
    pub(crate) fn start(change: Change) -> Result<Self> {
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
        Ok(Self { simulation: Simulation::new(&scenario(&processes, change)?), processes })
    }

    /// Writes the state: each environment has its first process as member and is attached to one device.
    pub(crate) fn write_state(&self, folder: &Path) -> Result<()> {
        write_environments(folder, |number| self.processes[number].pid())
    }

    /// Pids of the processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Sleeper::pid).collect()
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

fn scenario(processes: &[Sleeper], change: Change) -> Result<String> {
    let mut scenario =
        format!("version: 1\nhosts:\n- devices: [{{count: {DEVICES}, memory: 80gi, fans: [0.5]}}]\n  processes:\n");
    for (number, process) in processes.iter().enumerate() {
        let uses = change.uses(number);
        writeln!(scenario, "  - {{pid: {}, devices: [{uses}]}}", process.pid())?;
    }
    Ok(scenario)
}
