//! The commands, a file each.

mod completions;
mod devices;
mod enforce;
mod envs;
mod free;
mod man;
mod monitor;
mod shell;
mod snapshot;
mod usage;
mod who;

use clap::Subcommand;

/// What `genv` can be told to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Completions(completions::Completions),
    Devices(devices::Devices),
    Enforce(enforce::Enforce),
    Envs(envs::Envs),
    Free(free::Free),
    #[command(hide = true)]
    Man(man::Man),
    Monitor(monitor::Monitor),
    Shell(shell::Shell),
    Snapshot(snapshot::Snapshot),
    Usage(usage::Usage),
    Who(who::Who),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Completions(command) => command.run(),
            Self::Devices(command) => command.run(),
            Self::Enforce(command) => command.run(),
            Self::Envs(command) => command.run(),
            Self::Free(command) => command.run(),
            Self::Man(command) => command.run(),
            Self::Monitor(command) => command.run(),
            Self::Shell(command) => command.run(),
            Self::Snapshot(command) => command.run(),
            Self::Usage(command) => command.run(),
            Self::Who(command) => command.run(),
        }
    }
}
