//! `docker` and `podman` within an environment: containers get its devices, and belong to it.

mod client;
mod docker;
mod flags;
mod gpus;
mod names;
mod podman;

use std::env;
use std::ffi::OsString;
use std::ops::Range;

pub(crate) use client::Client;
pub(crate) use docker::DOCKER;
pub(crate) use podman::PODMAN;

use self::client::Restricted;
use self::flags::{Command, Container, Flag, Kind};
use self::names::{Attached, VISIBLE};
use crate::devices::{Devices, join};
use crate::environment::{Environment, Place, place};
use crate::nvidia_smi;
use crate::outcome::{FAILED, NOT_ENOUGH_DEVICES, Outcome, Refusal, USAGE, say};
use crate::program::{Program, is_bypassed};

/// The variable by which a process belongs to an environment.
const ENVIRONMENT: &str = "GENV_ENVIRONMENT_ID";

/// Arguments, and what takes their place.
type Edit = (Range<usize>, Vec<OsString>);

/// Runs as `client`.
pub(crate) fn run(client: &Client, arguments: &[OsString]) -> Result<Outcome, Refusal> {
    let real = Program::find(client.name)?;
    Err(real.exec(&restricted(client, arguments)?))
}

/// The command line within the environment.
fn restricted(client: &Client, arguments: &[OsString]) -> Result<Vec<OsString>, Refusal> {
    let untouched = || Ok(arguments.to_vec());
    let command = match flags::command(arguments, &client.global, &client.container) {
        Some(command) if !is_bypassed() => command,
        Some(_) | None => return untouched(),
    };
    let container = match command {
        Command::Container(container) => container,
        Command::Compose => {
            if let Place::Inside(environment) = place() {
                say(&compose_note(&environment));
            }
            return untouched();
        }
    };
    let needs_visible = needs_visible(&container);
    let asks = needs_visible || container.found.iter().any(asks);
    let environment = match place() {
        Place::Inside(environment) => environment,
        Place::Unknown(why) if asks => {
            let message = format!("cannot tell which devices this container may have: {why}");
            return Err(Refusal::new(FAILED, message));
        }
        Place::Unknown(_) | Place::Outside => return untouched(),
    };
    let devices = environment.indices();
    if asks && devices.is_empty() {
        return Err(Refusal::new(
            NOT_ENOUGH_DEVICES,
            "cannot give GPUs to a container: this environment is not attached to any device: run 'genv attach' first",
        ));
    }
    let nvidia_smi = Program::find(nvidia_smi::NAME).ok();
    let known = nvidia_smi.as_ref().map(Devices::new);
    let attached = Attached {
        devices: &devices,
        index: &|id| index(id, known.as_ref()),
        mig: &|index| known.as_ref().map_or_else(Vec::new, |known| known.mig(index)),
    };
    let mut edited = arguments.to_vec();
    let edits = edits(client, arguments, &container, &attached)?;
    // From behind, so that positions stay what they are.
    for (range, replacement) in edits.into_iter().rev() {
        edited.splice(range, replacement);
    }
    if let Some(unknown) = container.unknown {
        say(&format!(
            "the shim does not know {}'s flag {unknown}: what follows it was not looked at: put --gpus and --device in front of it",
            client.name
        ));
    }
    let mut added = vec!["-e".into(), ENVIRONMENT.into()];
    if needs_visible {
        added.extend(["-e".into(), format!("{VISIBLE}={}", join(&devices)).into()]);
    }
    edited.splice(container.flags..container.flags, added);
    Ok(edited)
}

/// Whether NVIDIA's runtime is asked for and nothing says for which devices: most images for GPUs say all.
fn needs_visible(container: &Container) -> bool {
    let of = |kind| container.found.iter().filter(move |flag| flag.kind == kind);
    let runtime = of(Kind::Runtime).next_back();
    let runtime = runtime.and_then(|flag| flag.value.as_deref());
    runtime.is_some_and(|runtime| runtime.starts_with("nvidia"))
        && of(Kind::Gpus).next().is_none()
        && !of(Kind::Env).any(names_visible)
}

/// Whether a flag is one for NVIDIA's variable.
fn names_visible(flag: &Flag) -> bool {
    let value = flag.value.as_deref();
    value.is_some_and(|value| value.split('=').next() == Some(VISIBLE))
}

/// The value that a flag gives NVIDIA's variable: without one of its own, that of this process.
fn visible(flag: &Flag) -> Option<String> {
    if !names_visible(flag) {
        return None;
    }
    match flag.value.as_deref()?.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => env::var(VISIBLE).ok(),
    }
}

/// Whether a flag asks for devices.
fn asks(flag: &Flag) -> bool {
    match flag.kind {
        Kind::Gpus => true,
        Kind::Device => flag.value.as_deref().is_some_and(names::asks_for_names),
        Kind::Env => visible(flag).is_some_and(|value| names::gives_devices(&value)),
        Kind::Runtime => false,
    }
}

/// What becomes of the arguments that ask for devices, in their order.
fn edits(
    client: &Client,
    arguments: &[OsString],
    container: &Container,
    attached: &Attached<'_>,
) -> Result<Vec<Edit>, Refusal> {
    let mut edits = Vec::new();
    let (mut left, mut dropped) = (0, Vec::new());
    for flag in container.found.iter().filter(|flag| asks(flag)) {
        let position = flag.position;
        let mut replace = |name: &str, before: &str, found: Option<Restricted>| {
            if let Some(found) = found {
                note_dropped(name, &found.dropped);
                let argument = format!("{}{before}{}", flag.prefix, found.value);
                edits.push((position..position + 1, vec![argument.into()]));
            }
        };
        match (flag.kind, &flag.value) {
            (Kind::Gpus, None) => {
                let message = "cannot read --gpus: it is not text: write all, or devices' indices";
                return Err(Refusal::new(USAGE, message));
            }
            (Kind::Gpus, Some(request)) => {
                replace("--gpus", "", (client.restrict_gpus)(request, attached)?);
            }
            (Kind::Env, _) => {
                let request = visible(flag).unwrap_or_default();
                let found = names::restrict_visible(&request, attached)?;
                replace(VISIBLE, &format!("{VISIBLE}="), found);
            }
            (Kind::Device, Some(value)) => {
                let Some((values, others)) = names::device_values(value, attached) else {
                    continue;
                };
                left += values.iter().filter(|it| names::asks_for_names(it)).count();
                dropped.extend(others);
                // The flag stands before each value, whether it is an argument of its own or not.
                let (start, own) = if flag.prefix.is_empty() {
                    (position - 1, Some(&arguments[position - 1]))
                } else {
                    (position, None)
                };
                let each = values.iter().flat_map(|value| {
                    let argument = format!("{}{value}", flag.prefix).into();
                    own.cloned().into_iter().chain([argument])
                });
                edits.push((start..position + 1, each.collect()));
            }
            (Kind::Device, None) | (Kind::Runtime, _) => {}
        }
    }
    if left == 0 && !dropped.is_empty() {
        let dropped = dropped.join(",");
        return Err(gpus::too_few("--device", &dropped, attached.devices));
    }
    note_dropped("--device", &dropped);
    Ok(edits)
}

fn note_dropped(name: &str, dropped: &[String]) {
    if !dropped.is_empty() {
        say(&format!("the shim leaves out of {name} what this environment is not attached to: {dropped:?}"));
    }
}

fn compose_note(environment: &Environment) -> String {
    let devices = environment.indices();
    if devices.is_empty() {
        return "the shim does not restrict the devices that a compose file asks for, and this environment is not attached to any device: \
                run 'genv attach' first"
            .to_owned();
    }
    let ids: Vec<String> = devices.iter().map(|index| format!("\"{index}\"")).collect();
    format!(
        "the shim does not restrict the devices that a compose file asks for: write device_ids: [{}] there, the devices of this \
         environment",
        ids.join(", ")
    )
}

/// Which GPU an id means to a container: `0`, `0:1` (a MIG device of it), or a UUID, which NVIDIA's program knows.
fn index(id: &str, known: Option<&Devices<'_>>) -> Option<u32> {
    let id = id.strip_prefix(names::CDI).unwrap_or(id);
    let gpu = match id.split_once(':') {
        Some((gpu, mig)) if mig.parse::<u32>().is_ok() => gpu,
        Some(_) | None => id,
    };
    gpu.parse().ok().or_else(|| known?.index(id))
}
