//! `nvidia-smi` within an environment: what it shows and changes are the environment's devices.

mod arguments;
mod compute_apps;
mod destination;
mod filter;
mod list;
mod options;
mod table;
mod xml;

use std::env;
use std::ffi::OsString;

use arguments::{Mode, More, Subcommand, ids, mode, take_file, with_devices};
use compute_apps::ComputeApps;
use destination::Destination;
use filter::Filter;
use list::List;
use table::Table;
use xml::Xml;

use crate::devices::{Devices, join};
use crate::environment::{Environment, Place, place};
use crate::outcome::{FAILED, Outcome, Refusal, print, say};
use crate::program::{Program, is_bypassed};

/// What the shim stands in for.
pub(crate) const NAME: &str = "nvidia-smi";

/// With what the real program ends when none of the devices that it was asked for exists.
const NO_DEVICES: u8 = 6;

/// Runs as `nvidia-smi`.
pub(crate) fn run(arguments: &[OsString]) -> Result<Outcome, Refusal> {
    let real = Program::find(NAME)?;
    let mode = mode(arguments);
    if is_bypassed() || mode == Mode::Untouched {
        return Err(real.exec(arguments));
    }
    let environment = match place() {
        Place::Outside => return Err(real.exec(arguments)),
        Place::Unknown(why) if mode.changes_devices() => {
            return Err(Refusal::new(FAILED, format!("cannot tell which devices this may change: {why}")));
        }
        Place::Unknown(why) => {
            say(&format!("the shim shows every device: {why}"));
            return Err(real.exec(arguments));
        }
        Place::Inside(environment) => environment,
    };
    if environment.devices.is_empty() {
        return Ok(no_devices("this environment is not attached to any device: run 'genv attach' first"));
    }
    restricted(&real, mode, arguments, *environment)
}

/// Ends as the real program does when there are no such devices.
fn no_devices(hint: &str) -> Outcome {
    print("No devices were found\n");
    say(hint);
    Outcome::Code(NO_DEVICES)
}

/// Runs the real program on the devices of the environment.
fn restricted(
    real: &Program,
    mode: Mode,
    arguments: &[OsString],
    mut environment: Environment,
) -> Result<Outcome, Refusal> {
    let attached = environment.indices();
    if mode == Mode::List {
        // The real program lists into no file, and says so.
        let output: (&mut dyn Filter, _) = (&mut List::new(attached), Destination::Stdout);
        return filter::run(real, real.command(arguments), Some(output));
    }
    let Some(chosen) = chosen(real, &mode, arguments, &attached) else {
        return Ok(no_devices(&format!(
            "this environment is attached to {} and not to what is named here: name one of those, or run 'genv attach'",
            join(&attached)
        )));
    };
    let restricted = with_devices(arguments, &chosen);
    if mode.is_rewritten() && env::var_os("GENV_SMI").is_some_and(|value| value == "raw") {
        return Err(real.exec(&restricted));
    }
    let devices = std::mem::take(&mut environment.devices);
    let own = |pids: &[u32]| environment.own(pids);
    match mode {
        Mode::Subcommand(subcommand) => run_subcommand(real, subcommand, arguments, chosen),
        Mode::Xml => rewritten(real, &restricted, &mut Xml::new(own)),
        Mode::ComputeApps(columns) => rewritten(real, &restricted, &mut ComputeApps::new(&columns, own)),
        Mode::Table => {
            let mut table = Table::new(devices, own);
            let outcome = rewritten(real, &restricted, &mut table)?;
            table.left_out().iter().for_each(|line| say(line));
            Ok(outcome)
        }
        Mode::Untouched | Mode::List | Mode::Query | Mode::Setting => Err(real.exec(&restricted)),
    }
}

/// Of each list of devices that is named those that are the environment's, or else all of its own. Nothing if a list
/// has none of them. What several lists mean is up to the real program: to some the last one counts, others refuse.
fn chosen(real: &Program, mode: &Mode, arguments: &[OsString], attached: &[u32]) -> Option<Vec<Vec<u32>>> {
    let devices = Devices::new(real);
    let mut lists = Vec::new();
    for ids in ids(arguments) {
        let list = devices.named(&ids.value, attached);
        // What lies between two devices is told of both or not at all.
        let is_told = *mode != Mode::Subcommand(Subcommand::Topology)
            || ids.value.split(',').all(|id| !devices.named(id, attached).is_empty());
        lists.push(Some(list).filter(|list| !list.is_empty() && is_told)?);
    }
    if lists.is_empty() {
        lists.push(attached.to_vec());
    }
    Some(lists)
}

/// Runs the real program, its output changed by a filter.
fn rewritten(real: &Program, arguments: &[OsString], filter: &mut dyn Filter) -> Result<Outcome, Refusal> {
    let mut without_file = arguments.to_vec();
    let destination = match take_file(&mut without_file) {
        None => Destination::Stdout,
        Some(path) => match Destination::file(path.into()) {
            Some(file) => file,
            None => return Err(real.exec(arguments)),
        },
    };
    let command = real.command(&without_file);
    filter::run(real, command, Some((filter, destination)))
}

fn run_subcommand(
    real: &Program,
    subcommand: Subcommand,
    arguments: &[OsString],
    mut lists: Vec<Vec<u32>>,
) -> Result<Outcome, Refusal> {
    let mut last = lists.pop().unwrap_or_default();
    match subcommand {
        Subcommand::Topology => Err(real.exec(arguments)),
        Subcommand::List { .. } => {
            lists.push(last);
            Err(real.exec(&with_devices(arguments, &lists)))
        }
        Subcommand::ShortList { most, more } => {
            let more = more.filter(|_| last.len() > most);
            let most = more.map_or(most, |more| more.most);
            if last.len() > most {
                say(&format!(
                    "the shim shows the first {most} of {} devices, for {NAME} takes no more: name others with -i",
                    last.len()
                ));
                last.truncate(most);
            }
            let mut command = real.command(&with_devices(arguments, &[last]));
            if let Some(More { variable, .. }) = more {
                command.env(variable, "1");
            }
            Err(real.become_program(command))
        }
        Subcommand::One => one_by_one(real, arguments, &last),
    }
}

/// Runs the real program once a device, and ends as the first did that failed.
fn one_by_one(real: &Program, arguments: &[OsString], chosen: &[u32]) -> Result<Outcome, Refusal> {
    if let [device] = chosen {
        return Err(real.exec(&with_devices(arguments, &[vec![*device]])));
    }
    let mut ended = Outcome::Code(0);
    for device in chosen {
        let command = real.command(&with_devices(arguments, &[vec![*device]]));
        match filter::run(real, command, None)? {
            Outcome::Signal(signal) => return Ok(Outcome::Signal(signal)),
            code if ended == Outcome::Code(0) => ended = code,
            Outcome::Code(_) => {}
        }
    }
    Ok(ended)
}
