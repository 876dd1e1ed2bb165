//! `genv remote`: other hosts, over SSH.

mod activate;
mod daemons;
mod devices;
mod envs;
mod hosts;
mod one_hyphen;
mod progress;
mod query;
mod results;

use clap::{Args, Subcommand};

use super::enforce::Enforce;
use super::monitor::Monitor;
use crate::failure::EXIT_CODES;
pub(super) use hosts::HostFlags;
use hosts::RemoteFlags;
pub(super) use one_hyphen::with_two_hyphens;
pub(super) use results::fetch_hosts;

const EXAMPLE: &str = "Example: list the free devices of all hosts, and start a shell with two of them
  genv remote -H gpu[01-08] devices
  genv remote -H gpu[01-08] activate --gpus 2

Connections are made as by 'ssh HOST', without questions: by the configuration, the agent and the keys of ssh.";

/// List and reserve the GPUs of other hosts, over SSH.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Remote {
    #[command(flatten)]
    hosts: RemoteFlags,

    #[command(subcommand)]
    command: RemoteCommand,
}

#[derive(Debug, Subcommand)]
enum RemoteCommand {
    Activate(activate::Activate),
    Devices(devices::Devices),
    Enforce(Enforce),
    Envs(envs::Envs),
    Monitor(Monitor),
    Query(query::Query),
}

impl Remote {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let hosts = self.hosts;
        match self.command {
            RemoteCommand::Activate(command) => command.run(&hosts),
            RemoteCommand::Devices(command) => command.run(&hosts),
            RemoteCommand::Enforce(command) => daemons::enforce(&hosts, command),
            RemoteCommand::Envs(command) => command.run(&hosts),
            RemoteCommand::Monitor(command) => daemons::monitor(&hosts, command),
            RemoteCommand::Query(command) => command.run(&hosts),
        }
    }
}
