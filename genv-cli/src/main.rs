//! The program `genv`.

mod ago;
mod child;
mod commands;
mod completion;
mod doctor;
mod failure;
mod handover;
mod here;
mod local_config;
mod machine;
mod now;
mod output;
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
