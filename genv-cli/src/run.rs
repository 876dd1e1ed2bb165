//! From the command line to a command, and from its outcome to an exit code.

use std::io;
use std::process::ExitCode;

use clap::Parser;
use genv_core::sources::SourceError;

use crate::commands::Command;

const EXAMPLE: &str =
    "Example: what is known of the built-in simulation, on a machine without a GPU
  genv snapshot --gpu.source=simulated

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// Share the GPUs of a machine: see who holds and who uses them.
#[derive(Debug, Parser)]
#[command(name = "genv", version, after_help = EXAMPLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Reads the command line and does what it says.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => {
            // Help and version are answers too. Nobody is left to tell if printing fails.
            let _ = answer.print();
            return ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(1));
        }
    };
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough, as `head` has.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            let usage = matches!(error.downcast_ref(), Some(SourceError::Usage(_)));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[expect(clippy::print_stderr, reason = "errors are for people, on stderr")]
fn complain(error: &anyhow::Error) {
    eprintln!("genv: {error:#}");
}
