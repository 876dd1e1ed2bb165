//! The program `genv`.

mod commands;
mod run;
mod shell;
mod source_flags;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::run()
}
