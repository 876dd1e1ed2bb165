//! The program `genv-shim`, which replaces `nvidia-smi`, `docker` and `podman` within an environment.
//!
//! The name under which the program is called selects the shim.

mod containers;
mod devices;
mod environment;
mod nvidia_smi;
mod outcome;
mod program;

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use outcome::ProgramOutcome;

fn main() -> ExitCode {
    let mut arguments = env::args_os();
    let called = arguments.next().unwrap_or_default();
    let arguments: Vec<OsString> = arguments.collect();
    let outcome = match Path::new(&called).file_name().and_then(|name| name.to_str()) {
        Some(nvidia_smi::NAME) => nvidia_smi::run(&arguments),
        Some("docker") => containers::run(&containers::DOCKER, &arguments),
        Some("podman") => containers::run(&containers::PODMAN, &arguments),
        _ => Ok(own_name(&arguments)),
    };
    outcome::exit(outcome)
}

/// Whether a list of words, separated by blanks, has a word.
fn has_word(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| listed == word)
}

/// Under its own name the program prints its purpose.
fn own_name(arguments: &[OsString]) -> ProgramOutcome {
    match arguments {
        [argument] if argument == "--version" => {
            outcome::print(concat!("genv-shim ", env!("CARGO_PKG_VERSION"), "\n"));
            ProgramOutcome::Code(0)
        }
        [argument] if argument == "--help" || argument == "-h" => {
            outcome::print(HELP);
            ProgramOutcome::Code(0)
        }
        _ => {
            outcome::say(
                "cannot stand in for anything under this name: link it as nvidia-smi, docker or podman into a folder that comes first on PATH, or see 'genv-shim --help'",
            );
            ProgramOutcome::Code(2)
        }
    }
}

const HELP: &str = "Stand in for nvidia-smi, docker and podman within an environment.

Link this program under those names into a folder that comes first on PATH, as packages do in
/usr/lib/genv/shims:
  ln -s /usr/lib/genv/genv-shim ~/shims/nvidia-smi

  GENV_BYPASS=1 nvidia-smi   runs the real program untouched
  GENV_SMI=raw nvidia-smi    shows the environment's devices with everybody's processes
";
