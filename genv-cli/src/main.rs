//! The program `genv`.

mod commands;
#[allow(dead_code, reason = "the commands that load and save it use it")]
mod local_config;
mod run;
mod shell;
mod source_flags;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run()
}
