//! A daemon that applies a lab's rules on the use of GPUs.
//!
//! Each cycle a [`Publication`](genv_core::model::Publication), the [`config`] and the history of earlier cycles go into
//! [`plan::plan`], which is pure: no clock, no I/O, no idea whether its steps will be carried out. What it returns is
//! told to the users, logged, measured, and carried out or not; how each step went is settled in the history.
//! Every tool (`run`, `check`, `test`, `replay`, `explain`) calls the same function, so that what is shown is what
//! happens.

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
pub mod history_file;
mod host;
mod log;
pub mod metrics;
mod notify;
pub mod plan;
mod progress;
mod records;
mod recovery;
pub mod reload;
pub mod remote_steps;
mod replay;
mod report;
mod rule_test;
mod run;
pub mod status;
pub mod tell;
mod told;
mod unread;

use flags::{Command, CommandLine};

/// The program was told something that makes no sense: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// What there is to say has been said: only exit code 1 is left.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub(crate) struct Silent;

/// The program.
pub fn run() -> ExitCode {
    genv_web::allocator::keep_little();
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(answer) => {
            // Help and version are answers too. Nobody is left to tell if printing fails.
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
            if !error.is::<Silent>() {
                complain(&error);
            }
            let usage = error.is::<UsageError>()
                || error.is::<HostListError>()
                || error.is::<genv_core::yaml::Error>()
                || matches!(error.downcast_ref(), Some(SourceError::Usage(_)));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// The last words, also where the log is filtered; nobody may be there to hear them.
fn complain(error: &anyhow::Error) {
    let _ = writeln!(io::stderr(), "genv-enforcer: {error:#}");
}
