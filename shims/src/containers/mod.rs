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

pub(crate) use client::ContainerProgram;
pub(crate) use docker::DOCKER;
pub(crate) use podman::PODMAN;

use self::client::RestrictedValue;
use self::flags::{ContainerCommand, ContainerRequest, Flag, FlagKind};
use self::names::{AttachedDevices, VISIBLE};
use crate::devices::{DeviceIds, join};
use crate::environment::{CallContext, ShimEnvironment, place};
use crate::nvidia_smi;
use crate::outcome::{FAILED, NOT_ENOUGH_DEVICES, ProgramOutcome, Refusal, USAGE, say};
use crate::program::{RealProgram, is_bypassed};

/// The variable that claims an environment.
const ENVIRONMENT: &str = "GENV_ENVIRONMENT_ID";

/// Arguments, and their replacements.
type ArgumentEdit = (Range<usize>, Vec<OsString>);

/// Runs as `client`.
pub(crate) fn run(client: &ContainerProgram, arguments: &[OsString]) -> Result<ProgramOutcome, Refusal> {
    let real = RealProgram::find(client.name)?;
    Err(real.exec(&restricted(client, arguments)?))
}

/// The command line within the environment.
fn restricted(client: &ContainerProgram, arguments: &[OsString]) -> Result<Vec<OsString>, Refusal> {
    let untouched = || Ok(arguments.to_vec());
    let command = match flags::command(arguments, &client.global, &client.container) {
        Some(command) if !is_bypassed() => command,
        Some(_) | None => return untouched(),
    };
    let container = match command {
        ContainerRequest::Container(container) => container,
        ContainerRequest::Compose => {
            if let CallContext::Inside(environment) = place() {
                say(&compose_note(&environment));
            }
            return untouched();
        }
    };
    let needs_visible = needs_visible(&container);
    let asks = needs_visible || container.found.iter().any(asks);
    let environment = match place() {
        CallContext::Inside(environment) => environment,
        CallContext::Unknown(why) if asks => {
            let message = format!("cannot tell which devices this container may have: {why}");
            return Err(Refusal::new(FAILED, message));
        }
        CallContext::Unknown(_) | CallContext::Outside => return untouched(),
    };
    let devices = environment.indices();
    if asks && devices.is_empty() {
        return Err(Refusal::new(
            NOT_ENOUGH_DEVICES,
            "cannot give GPUs to a container: this environment is not attached to any device: run 'genv attach' first",
        ));
    }
    let nvidia_smi = RealProgram::find(nvidia_smi::NAME).ok();
    let known = nvidia_smi.as_ref().map(DeviceIds::new);
    let attached = AttachedDevices {
        devices: &devices,
        index: &|id| index(id, known.as_ref()),
        mig: &|index| known.as_ref().map_or_else(Vec::new, |known| known.mig(index)),
    };
    let mut edited = arguments.to_vec();
    let edits = edits(client, arguments, &container, &attached)?;
    // From the end, so that the other positions stay valid.
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

/// Whether NVIDIA's runtime is requested without devices: most GPU images request all.
fn needs_visible(container: &ContainerCommand) -> bool {
    let of = |kind| container.found.iter().filter(move |flag| flag.kind == kind);
    let runtime = of(FlagKind::Runtime).next_back();
    let runtime = runtime.and_then(|flag| flag.value.as_deref());
    runtime.is_some_and(|runtime| runtime.starts_with("nvidia"))
        && of(FlagKind::Gpus).next().is_none()
        && !of(FlagKind::Env).any(names_visible)
}

/// Whether a flag sets NVIDIA's variable.
fn names_visible(flag: &Flag) -> bool {
    let value = flag.value.as_deref();
    value.is_some_and(|value| value.split('=').next() == Some(VISIBLE))
}

/// The value of NVIDIA's variable in a flag. A flag without a value takes the one of this process.
fn visible(flag: &Flag) -> Option<String> {
    if !names_visible(flag) {
        return None;
    }
    match flag.value.as_deref()?.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => env::var(VISIBLE).ok(),
    }
}

/// Whether a flag requests devices.
fn asks(flag: &Flag) -> bool {
    match flag.kind {
        FlagKind::Gpus => true,
        FlagKind::Device => flag.value.as_deref().is_some_and(names::asks_for_names),
        FlagKind::Env => visible(flag).is_some_and(|value| names::gives_devices(&value)),
        FlagKind::Runtime => false,
    }
}

/// The edits of the arguments that request devices, in order.
fn edits(
    client: &ContainerProgram,
    arguments: &[OsString],
    container: &ContainerCommand,
    attached: &AttachedDevices<'_>,
) -> Result<Vec<ArgumentEdit>, Refusal> {
    let mut edits = Vec::new();
    let (mut left, mut dropped) = (0, Vec::new());
    for flag in container.found.iter().filter(|flag| asks(flag)) {
        let position = flag.position;
        let mut replace = |name: &str, before: &str, found: Option<RestrictedValue>| {
            if let Some(found) = found {
                note_dropped(name, &found.dropped);
                let argument = format!("{}{before}{}", flag.prefix, found.value);
                edits.push((position..position + 1, vec![argument.into()]));
            }
        };
        match (flag.kind, &flag.value) {
            (FlagKind::Gpus, None) => {
                let message = "cannot read --gpus: it is not text: write all, or devices' indices";
                return Err(Refusal::new(USAGE, message));
            }
            (FlagKind::Gpus, Some(request)) => {
                replace("--gpus", "", (client.restrict_gpus)(request, attached)?);
            }
            (FlagKind::Env, _) => {
                let request = visible(flag).unwrap_or_default();
                let found = names::restrict_visible(&request, attached)?;
                replace(VISIBLE, &format!("{VISIBLE}="), found);
            }
            (FlagKind::Device, Some(value)) => {
                let Some((values, others)) = names::device_values(value, attached) else {
                    continue;
                };
                left += values.iter().filter(|it| names::asks_for_names(it)).count();
                dropped.extend(others);
                // The flag is repeated before each value, also where it is a separate argument.
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
            (FlagKind::Device, None) | (FlagKind::Runtime, _) => {}
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

fn compose_note(environment: &ShimEnvironment) -> String {
    let devices = environment.indices();
    if devices.is_empty() {
        return "the shim does not restrict the devices that a compose file asks for, and this environment is not attached to any device: \
                run 'genv attach' first"
            .to_owned();
    }
    let ids: Vec<String> = devices.iter().map(|index| format!("\"{index}\"")).collect();
    format!(
        "the shim does not restrict the devices that a compose file asks for: write device_ids: [{}] there, the devices of this \
         environment, under 'devices: !override', since compose adds devices to those of other files",
        ids.join(", ")
    )
}

/// The GPU of an id in a container's request: `0`, `0:1` (a MIG device of it), or a UUID, which nvidia-smi resolves.
fn index(id: &str, known: Option<&DeviceIds<'_>>) -> Option<u32> {
    let id = id.strip_prefix(names::CDI).unwrap_or(id);
    let gpu = match id.split_once(':') {
        Some((gpu, mig)) if mig.parse::<u32>().is_ok() => gpu,
        Some(_) | None => id,
    };
    gpu.parse().ok().or_else(|| known?.index(id))
}
