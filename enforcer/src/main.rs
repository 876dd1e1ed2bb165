//! The program `genv-enforcer`.

use std::process::ExitCode;

fn main() -> ExitCode {
    genv_enforcer::run()
}
