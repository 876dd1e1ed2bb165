//! The program `genv`.

mod ago;
mod commands;
mod completion;
#[allow(dead_code, reason = "the commands of the life cycle use it")]
mod failure;
mod handover;
#[allow(dead_code, reason = "the commands that load and save it use it")]
mod local_config;
#[allow(dead_code, reason = "the commands of the life cycle use it")]
mod machine;
mod now;
mod output;
mod run;
mod shell;
mod source_flags;
#[allow(dead_code, reason = "the commands of the life cycle use it")]
mod values;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run()
}
