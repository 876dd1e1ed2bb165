//! The program `genv`.

mod ago;
mod announce;
mod child;
mod choice;
mod commands;
mod completion;
mod device_facts;
mod doctor;
mod driver_timeout;
mod exporter;
mod failure;
mod handover;
mod jobs;
mod lease;
mod local_config;
mod local_snapshot;
mod machine;
mod output;
mod outside;
mod own_environment;
mod queue;
mod run;
mod shell;
mod source_flags;
mod users;
mod values;

use std::process::ExitCode;

use genv_core::gpu::reader;

fn main() -> ExitCode {
    if let Some(code) = reader::run_if_asked() {
        return code;
    }
    run::run()
}
