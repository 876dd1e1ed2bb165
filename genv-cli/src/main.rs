//! The program `genv`.

mod ago;
mod child;
mod commands;
mod completion;
mod doctor;
mod failure;
mod handover;
mod local_config;
mod local_snapshot;
mod machine;
mod output;
mod own_environment;
mod queue;
mod run;
mod serve;
mod shell;
mod source_flags;
mod values;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run()
}
