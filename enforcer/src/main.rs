//! The program `genv-enforcer`.

use std::process::ExitCode;

use genv_core::gpu::reader;

fn main() -> ExitCode {
    if let Some(code) = reader::run_if_asked() {
        return code;
    }
    genv_enforcer::run()
}
