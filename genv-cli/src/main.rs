//! The program `genv`.

mod commands;
#[allow(dead_code, reason = "the commands of the life cycle use it")]
mod failure;
#[allow(dead_code, reason = "the commands that load and save it use it")]
mod local_config;
#[allow(dead_code, reason = "the commands of the life cycle use it")]
mod machine;
mod run;
mod shell;
mod source_flags;
#[allow(dead_code, reason = "the commands of the life cycle use it")]
mod values;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run()
}
