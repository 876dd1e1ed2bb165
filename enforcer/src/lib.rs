//! A daemon that applies a lab's rules on the use of GPUs.
//!
//! Each cycle a [`Publication`](genv_core::model::Publication), the [`config`] and the history of earlier cycles go into
//! [`plan::plan`]. This function is pure: no clock, no I/O, and no knowledge whether its steps are executed. The daemon
//! notifies users of the steps, logs, measures and executes them, and enters each outcome in the history. Every tool
//! (`run`, `check`, `test`, `replay`, `explain`) calls the same function, so that the tools show what the daemon does.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use genv_remote::HostListError;
use genv_simulator::SourceError;

mod blind;
mod by_gpu;
mod capabilities;
mod commands;
pub mod config;
mod control;
mod cycle;
pub mod directory;
mod endpoints;
pub mod execute;
mod execute_report;
mod explain;
mod flags;
mod groups;
mod heartbeat;
pub mod history_file;
mod host;
pub mod journal;
mod kinds;
mod log;
pub mod metrics;
mod notices;
mod notify;
mod output;
mod page;
pub mod plan;
mod present;
mod records;
mod recovery;
pub mod reload;
pub mod remote_steps;
mod replay;
mod report;
mod rule_test;
mod run;
pub mod status;
mod unread;
mod user_reports;

use flags::{Command, CommandLine};

/// A wrong command line or configuration: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// The error is already printed: the program only ends with exit code 1.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub(crate) struct SilentExit;

/// The program.
pub fn run() -> ExitCode {
    genv_web::allocator::keep_little();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(answer) => {
            // Help and version come here too. A failure to print has no other destination.
            let _ = answer.print();
            return ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1));
        }
    };
    let done = match line.command {
        Command::Run(flags) => run::run(*flags),
        Command::Check(flags) => commands::check(&flags),
        Command::Test(flags) => commands::test(&flags),
        Command::Explain(flags) => explain::explain(*flags),
        Command::Replay(flags) => replay::replay(&flags),
        Command::Report(flags) => report::report(&flags),
        Command::Status(flags) => commands::status(&flags),
        Command::Pause(flags) => commands::pause(&flags),
        Command::Waive(flags) => commands::waive(&flags),
        Command::Reset(flags) => commands::reset(&flags),
        Command::ExecuteReport(flags) => execute_report::execute_report(*flags),
        Command::CarryOut(flags) => remote_steps::execution::run(*flags),
        Command::Notify(flags) => notify::notify(&flags),
        Command::Man(folder) => folder.write(CommandLine::command()).map_err(Into::into),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is::<SilentExit>() {
                print_error(&error);
            }
            let usage = error.is::<UsageError>()
                || error.is::<HostListError>()
                || error.is::<genv_core::yaml::Error>()
                || matches!(error.downcast_ref(), Some(SourceError::Usage(_)));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// Prints the error on stderr, whatever the log level. A failure to print has no other destination.
fn print_error(error: &anyhow::Error) {
    let _ = writeln!(io::stderr(), "genv-enforcer: {error:#}");
}
