//! `docker` within an environment: containers get its devices, and belong to it.

mod flags;
mod gpus;

use std::ffi::OsString;

use crate::devices::Devices;
use crate::environment::{Place, place};
use crate::nvidia_smi;
use crate::outcome::{FAILED, NOT_ENOUGH_DEVICES, Outcome, Refusal, USAGE, say};
use crate::program::{Program, is_bypassed};

/// What the shim stands in for.
pub(crate) const NAME: &str = "docker";

/// Runs as `docker`.
pub(crate) fn run(arguments: &[OsString]) -> Result<Outcome, Refusal> {
    let real = Program::find(NAME)?;
    Err(real.exec(&restricted(arguments)?))
}

/// The command line within the environment.
fn restricted(arguments: &[OsString]) -> Result<Vec<OsString>, Refusal> {
    let mut arguments = arguments.to_vec();
    let container = match flags::container(&arguments) {
        Some(container) if !is_bypassed() => container,
        Some(_) | None => return Ok(arguments),
    };
    let asks = !container.gpus.is_empty();
    let environment = match place() {
        Place::Inside(environment) => environment,
        Place::Unknown(why) if asks => {
            let message = format!("cannot tell which devices this container may have: {why}");
            return Err(Refusal::new(FAILED, message));
        }
        Place::Unknown(_) | Place::Outside => return Ok(arguments),
    };
    let attached = environment.indices();
    if asks && attached.is_empty() {
        return Err(Refusal::new(
            NOT_ENOUGH_DEVICES,
            "cannot give GPUs to a container: this environment is not attached to any device: run 'genv attach' first",
        ));
    }
    for gpus in &container.gpus {
        let Some(request) = &gpus.value else {
            let message = "cannot read --gpus: it is not text: write a number, all, or 'device=0'";
            return Err(Refusal::new(USAGE, message));
        };
        if let Some(restricted) = gpus::restrict(request, &attached, index)? {
            if !restricted.dropped.is_empty() {
                say(&format!(
                    "leaves out of --gpus what this environment is not attached to: {:?}",
                    restricted.dropped
                ));
            }
            arguments[gpus.position] = format!("{}{}", gpus.prefix, restricted.value).into();
        }
    }
    if let Some(unknown) = container.unknown {
        say(&format!(
            "does not know docker's flag {unknown}: what follows it was not looked at: put --gpus in front of it"
        ));
    }
    let at = container.flags;
    arguments.splice(at..at, ["-e".into(), "GENV_ENVIRONMENT_ID".into()]);
    Ok(arguments)
}

/// Which GPU an id means to docker: `0`, `0:1` (a MIG device of it), or a UUID, which NVIDIA's program knows.
fn index(id: &str) -> Option<u32> {
    let gpu = match id.split_once(':') {
        Some((gpu, mig)) if mig.parse::<u32>().is_ok() => gpu,
        Some(_) | None => id,
    };
    if let Ok(index) = gpu.parse() {
        return Some(index);
    }
    Devices::new(&Program::find(nvidia_smi::NAME).ok()?).index(id)
}
