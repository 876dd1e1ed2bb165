//! The commands, one file for each.

mod activate;
mod attach;
mod completions;
mod config;
mod deactivate;
mod detach;
mod devices;
mod doctor;
mod enforce;
mod envs;
mod exec;
mod extend;
mod free;
mod home;
mod jobs;
mod lock;
mod man;
mod monitor;
mod older;
mod overview;
mod query;
mod queue;
mod remote;
mod remote_serve;
mod shell;
mod snapshot;
mod status;
mod top;
mod usage;
mod who;
mod why;

use std::ffi::OsString;

use clap::{Args, Subcommand};

/// The commands of `genv`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Activate(activate::Activate),
    Deactivate(deactivate::Deactivate),
    Attach(attach::Attach),
    Detach(detach::Detach),
    Config(config::Config),
    Status(status::Status),
    Home(home::Home),
    Lock(lock::Lock),
    Exec(exec::Exec),
    Extend(extend::Extend),
    Jobs(jobs::Jobs),
    Logs(jobs::Logs),
    Wait(jobs::Wait),
    Stop(jobs::Stop),
    Envs(envs::Envs),
    Devices(devices::Devices),
    Free(free::Free),
    Top(top::Top),
    Queue(queue::Queue),
    Who(who::Who),
    Why(why::Why),
    Doctor(doctor::Doctor),
    Usage(usage::Usage),
    Monitor(monitor::Monitor),
    Enforce(enforce::Enforce),
    Remote(remote::Remote),
    Shell(shell::Shell),
    Completions(completions::Completions),
    Snapshot(snapshot::Snapshot),
    Version(older::Version),
    #[command(hide = true)]
    Init(older::Init),
    #[command(hide = true)]
    Man(man::Man),
    #[command(hide = true)]
    RemoteServe(remote_serve::RemoteServe),
    #[command(hide = true)]
    Root(older::Root),
}

/// Converts the words of a command line from older spellings.
pub(crate) fn spelled_out(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    remote::with_two_hyphens(older::without_exec(words.into_iter().collect()))
}

/// Runs `genv` without a command on a terminal.
pub(crate) fn overview() -> anyhow::Result<()> {
    devices::Devices::default().run()
}

impl Command {
    /// The definition of this command alone, if it is one of the frequent commands.
    pub(crate) fn define_alone(name: &str) -> Option<clap::Command> {
        type Define = fn(clap::Command) -> clap::Command;
        const FREQUENT: [(&str, Define); 6] = [
            ("activate", activate::Activate::augment_args),
            ("deactivate", deactivate::Deactivate::augment_args),
            ("devices", devices::Devices::augment_args),
            ("envs", envs::Envs::augment_args),
            ("shell", shell::Shell::augment_args),
            ("status", status::Status::augment_args),
        ];
        let (name, define) = FREQUENT.into_iter().find(|(known, _)| *known == name)?;
        Some(define(clap::Command::new(name)))
    }

    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Activate(command) => command.run(),
            Self::Deactivate(command) => command.run(),
            Self::Attach(command) => command.run(),
            Self::Detach(command) => command.run(),
            Self::Config(command) => command.run(),
            Self::Status(command) => command.run(),
            Self::Home(command) => command.run(),
            Self::Lock(command) => command.run(),
            Self::Exec(command) => command.run(),
            Self::Extend(command) => command.run(),
            Self::Jobs(command) => command.run(),
            Self::Logs(command) => command.run(),
            Self::Wait(command) => command.run(),
            Self::Stop(command) => command.run(),
            Self::Envs(command) => command.run(),
            Self::Devices(command) => command.run(),
            Self::Free(command) => command.run(),
            Self::Top(command) => command.run(),
            Self::Queue(command) => command.run(),
            Self::Who(command) => command.run(),
            Self::Why(command) => command.run(),
            Self::Doctor(command) => command.run(),
            Self::Usage(command) => command.run(),
            Self::Monitor(command) => command.run(),
            Self::Enforce(command) => command.run(),
            Self::Remote(command) => command.run(),
            Self::Shell(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Snapshot(command) => command.run(),
            Self::Version(command) => command.run(),
            Self::Init(command) => command.run(),
            Self::Man(command) => command.run(),
            Self::RemoteServe(command) => command.run(),
            Self::Root(command) => command.run(),
        }
    }
}
