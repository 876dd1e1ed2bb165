//! `genv lock`

use std::ffi::OsString;

use clap::Args;
use genv_core::state::lock_devices;

use crate::child::{SignalForwarding, command, exec_command, exit_code, exit_code_result};
use crate::machine::Machine;
use crate::own_environment;

const EXAMPLE: &str = "Example: run commands that share a device one at a time
  genv lock python benchmark.py";

/// Run a command while no other command under 'genv lock' uses the attached devices.
///
/// The command waits until the devices are free. The exit code is the command's. Outside of environments it runs without a lock.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Lock {
    /// Command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Lock {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let command = command(&self.command)?;
        let Some(eid) = own_environment::claimed_eid() else {
            return Err(exec_command(command));
        };
        let mut machine = Machine::here()?;
        let indices = machine.state()?.attached(&eid);
        if indices.is_empty() {
            return Err(exec_command(command));
        }
        let locks = lock_devices(machine.state_directory(), &indices.into_iter().collect(), None)?;
        let ended = SignalForwarding::new()?.start(command)?.wait()?;
        drop(locks);
        exit_code_result(exit_code(ended))
    }
}
