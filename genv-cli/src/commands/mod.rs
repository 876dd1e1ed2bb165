//! The commands, a file each.

mod shell;
mod snapshot;

use clap::Subcommand;

/// What `genv` can be told to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Shell(shell::Shell),
    Snapshot(snapshot::Snapshot),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Shell(command) => command.run(),
            Self::Snapshot(command) => command.run(),
        }
    }
}
