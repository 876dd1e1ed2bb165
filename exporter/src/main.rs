//! The program `genv-exporter`.

use std::process::ExitCode;

fn main() -> ExitCode {
    genv_exporter::run()
}
