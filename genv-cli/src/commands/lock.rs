//! `genv lock`

use std::ffi::OsString;

use clap::Args;
use genv_core::state::lock_devices;

use crate::child::{Forwarding, become_command, command, exit_code, handed_on};
use crate::machine::Machine;
use crate::own_environment;

const EXAMPLE: &str = "Example: commands that share a device by memory run one at a time
  genv lock python benchmark.py";

/// Run a command while no other command under 'genv lock' uses the attached devices.
///
/// It waits until they are free, and ends with the command's exit code. Outside of an environment it just runs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Lock {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Lock {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let command = command(&self.command)?;
        let Some(eid) = own_environment::claimed() else {
            return Err(become_command(command));
        };
        let mut machine = Machine::here()?;
        let indices = machine.state()?.attached(&eid);
        if indices.is_empty() {
            return Err(become_command(command));
        }
        let locks = lock_devices(machine.state_directory(), &indices.into_iter().collect(), None)?;
        let ended = Forwarding::new()?.start(command)?.wait()?;
        drop(locks);
        handed_on(exit_code(ended))
    }
}
