//! The commands, a file each.

mod snapshot;

use clap::Subcommand;

/// What `genv` can be told to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Snapshot(snapshot::Snapshot),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Snapshot(command) => command.run(),
        }
    }
}
