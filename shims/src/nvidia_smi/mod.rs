//! `nvidia-smi` within an environment, which shows and changes only the environment's devices.

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

use arguments::{ExtraDevices, Mode, Subcommand, ids, mode, take_file, with_devices};
use compute_apps::ComputeAppsFilter;
use destination::Destination;
use filter::OutputFilter;
use list::ListFilter;
use table::SummaryFilter;
use xml::XmlFilter;

use crate::devices::{DeviceIds, join};
use crate::environment::{CallContext, ShimEnvironment, place};
use crate::outcome::{FAILED, ProgramOutcome, Refusal, print, say};
use crate::program::{RealProgram, is_bypassed};

/// The name of the real program.
pub(crate) const NAME: &str = "nvidia-smi";

/// How a command line runs as typed.
const BYPASSED: &str = "'GENV_BYPASS=1 nvidia-smi …'";

/// The exit code of the real program if no requested device exists.
const NO_DEVICES: u8 = 6;

/// Runs as `nvidia-smi`.
pub(crate) fn run(arguments: &[OsString]) -> Result<ProgramOutcome, Refusal> {
    let real = RealProgram::find(NAME)?;
    let mode = mode(arguments);
    if is_bypassed() || mode == Mode::Untouched {
        return Err(real.exec(arguments));
    }
    let environment = match place() {
        CallContext::Outside => return Err(real.exec(arguments)),
        CallContext::Unknown(why) if mode.changes_devices() => {
            return Err(Refusal::new(FAILED, format!("cannot tell which devices this may change: {why}")));
        }
        CallContext::Unknown(why) => {
            say(&format!("the shim shows every device: {why}"));
            return Err(real.exec(arguments));
        }
        CallContext::Inside(environment) => environment,
    };
    if environment.devices.is_empty() {
        let hint = "this environment is not attached to any device: run 'genv attach' first";
        let hint = match &mode {
            Mode::Unknown(word) => {
                format!("genv does not know {word:?}, and {hint}; {BYPASSED} runs it on every device")
            }
            _ => hint.to_owned(),
        };
        return Ok(no_devices(&mode, &hint));
    }
    restricted(&real, mode, arguments, *environment)
}

/// Ends as the real program does when there are no such devices.
fn no_devices(mode: &Mode, hint: &str) -> ProgramOutcome {
    let (text, code) = match mode {
        // A list may be empty.
        Mode::List => (list::NONE, 0),
        _ => ("No devices were found\n", NO_DEVICES),
    };
    print(text);
    say(hint);
    ProgramOutcome::Code(code)
}

/// Runs the real program on the devices of the environment.
fn restricted(
    real: &RealProgram,
    mode: Mode,
    arguments: &[OsString],
    mut environment: ShimEnvironment,
) -> Result<ProgramOutcome, Refusal> {
    if let Mode::Subcommand(Subcommand::Named { options, changes: true }) = &mode
        && ids(arguments).is_empty()
    {
        return Err(Refusal::new(
            FAILED,
            format!(
                "cannot tell which device this may change: name it behind {}; {BYPASSED} runs it as typed",
                options.join(" or ")
            ),
        ));
    }
    let attached = environment.indices();
    if mode == Mode::List {
        // The real program lists into no file, and says so.
        let output: (&mut dyn OutputFilter, _) = (&mut ListFilter::new(attached), Destination::Stdout);
        return filter::run(real, real.command(arguments), Some(output));
    }
    let Some(chosen) = chosen(real, &mode, arguments, &attached) else {
        let hint = format!(
            "this environment is attached to {} and not to what is named here: name one of those, or run 'genv attach'",
            join(&attached)
        );
        return Ok(no_devices(&mode, &hint));
    };
    let restricted = with_devices(arguments, &chosen);
    if mode.is_rewritten() && env::var_os("GENV_SMI").is_some_and(|value| value == "raw") {
        return Err(real.exec(&restricted));
    }
    let devices = std::mem::take(&mut environment.devices);
    let own = |pids: &[u32]| environment.own(pids);
    match mode {
        Mode::Subcommand(subcommand) => run_subcommand(real, subcommand, arguments, chosen),
        Mode::Xml => rewritten(real, &restricted, &mut XmlFilter::new(own)),
        Mode::ComputeApps(columns) => rewritten(real, &restricted, &mut ComputeAppsFilter::new(&columns, own)),
        Mode::Table => {
            let mut table = SummaryFilter::new(devices, own);
            let outcome = rewritten(real, &restricted, &mut table)?;
            table.notes().iter().for_each(|line| say(line));
            Ok(outcome)
        }
        Mode::Unknown(word) => {
            say(&format!(
                "genv does not know {word:?}, and restricts it to this environment's devices by '-i': {BYPASSED} runs it as typed"
            ));
            Err(real.exec(&restricted))
        }
        Mode::Untouched | Mode::List | Mode::Query | Mode::Setting => Err(real.exec(&restricted)),
    }
}

/// Of each list of devices that is named those that are the environment's, or else all of its own. Nothing if a list
/// has none of them. What several lists mean is up to the real program: to some the last one counts, others refuse.
fn chosen(real: &RealProgram, mode: &Mode, arguments: &[OsString], attached: &[u32]) -> Option<Vec<Vec<u32>>> {
    let devices = DeviceIds::new(real);
    let mut lists = Vec::new();
    for ids in ids(arguments) {
        let list = devices.named(&ids.value, attached);
        // A link between two devices, for example, is shown only if both are the environment's.
        let is_told = !matches!(mode, Mode::Subcommand(Subcommand::Named { .. }))
            || ids.value.split(',').all(|id| !devices.named(id, attached).is_empty());
        lists.push(Some(list).filter(|list| !list.is_empty() && is_told)?);
    }
    if lists.is_empty() {
        lists.push(attached.to_vec());
    }
    Some(lists)
}

/// Runs the real program, its output changed by a filter.
fn rewritten(
    real: &RealProgram,
    arguments: &[OsString],
    filter: &mut dyn OutputFilter,
) -> Result<ProgramOutcome, Refusal> {
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
    real: &RealProgram,
    subcommand: Subcommand,
    arguments: &[OsString],
    mut lists: Vec<Vec<u32>>,
) -> Result<ProgramOutcome, Refusal> {
    let mut last = lists.pop().unwrap_or_default();
    match subcommand {
        Subcommand::Named { .. } => Err(real.exec(arguments)),
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
            if let Some(ExtraDevices { variable, .. }) = more {
                command.env(variable, "1");
            }
            Err(real.become_program(command))
        }
        Subcommand::One => one_by_one(real, arguments, &last),
    }
}

/// Runs the real program once per device, and returns the first failure.
fn one_by_one(real: &RealProgram, arguments: &[OsString], chosen: &[u32]) -> Result<ProgramOutcome, Refusal> {
    if let [device] = chosen {
        return Err(real.exec(&with_devices(arguments, &[vec![*device]])));
    }
    let mut ended = ProgramOutcome::Code(0);
    for device in chosen {
        let command = real.command(&with_devices(arguments, &[vec![*device]]));
        match filter::run(real, command, None)? {
            ProgramOutcome::Signal(signal) => return Ok(ProgramOutcome::Signal(signal)),
            code if ended == ProgramOutcome::Code(0) => ended = code,
            ProgramOutcome::Code(_) => {}
        }
    }
    Ok(ended)
}
