//! The request of a command line of nvidia-smi.

use std::ffi::{OsStr, OsString};

use super::options::{MANNERS, PASSED, QUERIES, QUESTIONS, SETTINGS, subcommand};
use crate::devices::join;
use crate::has_word;

/// The treatment of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The real program gets the unchanged command line.
    Untouched,
    /// `-L`: the lines of the environment's devices are kept.
    List,
    /// The summary: its memory and its processes become the environment's.
    Table,
    /// `-q -x`: its processes are filtered.
    Xml,
    /// `--query-compute-apps` with these columns: its rows are filtered.
    ComputeApps(Vec<String>),
    /// A query of devices, which is restricted to the environment's devices.
    Query,
    /// A setting, which changes every device unless it is restricted.
    Setting,
    /// A subcommand.
    Subcommand(Subcommand),
    /// This option or subcommand is not known. It may be a setting.
    Unknown(String),
}

/// The devices of a subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subcommand {
    /// A list of them.
    List {
        /// Whether it can change a device.
        changes: bool,
    },
    /// A list of limited length.
    ShortList {
        /// The maximal length.
        most: usize,
        /// The variable that raises the maximum.
        more: Option<ExtraDevices>,
    },
    /// One device, which the subcommand can change.
    One,
    /// The devices that are named behind one of these options: it runs as typed if all of them are the environment's. One
    /// that can change a device is refused if it names none.
    Named {
        /// The options.
        options: &'static [&'static str],
        /// Whether it can change a device.
        changes: bool,
    },
}

/// A variable of the real program by which it takes more devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtraDevices {
    pub(crate) variable: &'static str,
    pub(crate) most: usize,
}

impl Mode {
    /// Whether it can change a device.
    pub(crate) const fn changes_devices(&self) -> bool {
        matches!(
            self,
            Self::Setting
                | Self::Unknown(_)
                | Self::Subcommand(
                    Subcommand::List { changes: true } | Subcommand::Named { changes: true, .. } | Subcommand::One
                )
        )
    }

    /// Whether the shim rewrites the output.
    pub(crate) const fn is_rewritten(&self) -> bool {
        matches!(self, Self::List | Self::Table | Self::Xml | Self::ComputeApps(_))
    }
}

/// An option's name: `--id=0` is `--id`.
fn name(argument: &OsStr) -> Option<&str> {
    let argument = argument.to_str()?;
    argument.starts_with('-').then(|| argument.split_once('=').map_or(argument, |(name, _)| name))
}

/// The mode of a command line.
pub(crate) fn mode(arguments: &[OsString]) -> Mode {
    if let Some(first) = arguments.first().filter(|_| is_subcommand(arguments)) {
        let first = first.to_string_lossy();
        return match subcommand(&first) {
            _ if arguments.iter().any(|argument| argument == "-h" || argument == "--help") => Mode::Untouched,
            // The topology of all devices takes no ids.
            Some(Mode::Subcommand(Subcommand::Named { changes: false, .. })) if ids(arguments).is_empty() => {
                Mode::Untouched
            }
            Some(known) => known,
            None => Mode::Unknown(first.into_owned()),
        };
    }
    let ids: Vec<usize> = ids(arguments).iter().map(|id| id.position).collect();
    let options: Vec<&str> = (0..arguments.len())
        .filter(|position| !ids.contains(position))
        .filter_map(|position| name(&arguments[position]))
        .collect();
    let has = |names: &str| options.iter().any(|option| has_word(names, option));
    let is_query = has("-q --query -a --all-gpus");
    let is_xml = has("-x --xml-format");
    let is_help = |option: &str| option.starts_with("--help-");
    let is_known = |option: &str| {
        is_help(option) || [MANNERS, QUERIES, QUESTIONS, PASSED].iter().any(|names| has_word(names, option))
    };
    // A document that embeds its DTD is one of devices all the same.
    let is_passed =
        |option: &str| is_help(option) || has_word(PASSED, option) && !(option == "--dtd" && is_query && is_xml);
    if has(SETTINGS) {
        Mode::Setting
    } else if let Some(unknown) = options.iter().find(|option| !is_known(option)) {
        Mode::Unknown((*unknown).to_owned())
    } else if options.iter().any(|option| is_passed(option)) {
        Mode::Untouched
    } else if has("-L --list-gpus") {
        Mode::List
    } else if has(QUERIES) {
        Mode::Query
    } else if let Some(columns) = value(arguments, &["--query-compute-apps"]) {
        columns.to_str().map_or(Mode::Query, compute_apps)
    } else if is_query && is_xml {
        Mode::Xml
    } else if is_query || is_xml {
        Mode::Query
    } else {
        Mode::Table
    }
}

/// A list of compute processes can be filtered if it has their pids.
fn compute_apps(columns: &str) -> Mode {
    let columns: Vec<String> = columns.split(',').map(|column| column.trim().to_owned()).collect();
    if columns.iter().any(|column| column == "pid") { Mode::ComputeApps(columns) } else { Mode::Query }
}

/// The value of an option, in either form.
fn value<'a>(arguments: &'a [OsString], names: &[&str]) -> Option<&'a OsStr> {
    let position = arguments.iter().position(|argument| name(argument).is_some_and(|name| names.contains(&name)))?;
    let argument = arguments[position].to_str()?;
    match argument.split_once('=') {
        Some((_, value)) => Some(OsStr::new(value)),
        None => arguments.get(position + 1).map(OsString::as_os_str),
    }
}

/// An `-i`, or an option of the same meaning, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdArgument {
    /// Where the value is: in an argument of its own, or behind a `=`.
    pub(crate) position: usize,
    /// The text before the value in that argument.
    pub(crate) prefix: String,
    /// The ids, separated by commas.
    pub(crate) value: String,
}

/// Options for ids of devices. `-g` is the old name of `-i` and still accepted; in subcommands it has another meaning.
fn names_of_ids(arguments: &[OsString]) -> &'static [&'static str] {
    if !is_subcommand(arguments) {
        return &["-i", "--id", "-g", "--gpu"];
    }
    match arguments.first().and_then(|first| subcommand(first.to_str()?)) {
        Some(Mode::Subcommand(Subcommand::Named { options, .. })) => options,
        _ => &["-i", "--id", "--index"],
    }
}

fn is_subcommand(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|first| name(first).is_none())
}

/// All ids of a command line. A final `-i` has no value; the real program reports this mistake.
pub(crate) fn ids(arguments: &[OsString]) -> Vec<IdArgument> {
    let names = names_of_ids(arguments);
    let mut found = Vec::new();
    let mut position = 0;
    while let Some(argument) = arguments.get(position) {
        if name(argument).is_some_and(|name| names.contains(&name)) {
            let text = argument.to_string_lossy();
            if let Some((name, value)) = text.split_once('=') {
                found.push(IdArgument { position, prefix: format!("{name}="), value: value.to_owned() });
            } else {
                position += 1;
                found.extend(arguments.get(position).map(|value| IdArgument {
                    position,
                    prefix: String::new(),
                    value: value.to_string_lossy().into_owned(),
                }));
            }
        }
        position += 1;
    }
    found
}

/// Takes `-f FILE` out of a command line, in every form.
pub(crate) fn take_file(arguments: &mut Vec<OsString>) -> Option<OsString> {
    let names = ["-f", "--filename"];
    let file = value(arguments, &names)?.to_owned();
    let position = arguments.iter().position(|argument| name(argument).is_some_and(|name| names.contains(&name)))?;
    let is_joined = arguments[position].to_str().is_some_and(|argument| argument.contains('='));
    arguments.drain(position..=position + usize::from(!is_joined));
    Some(file)
}

/// The command line with these devices, each list in the place of one of its own, or one list in the place of all.
/// Where it has none the first goes in front of everything that may be missing its value.
pub(crate) fn with_devices(arguments: &[OsString], lists: &[Vec<u32>]) -> Vec<OsString> {
    let ids = ids(arguments);
    let mut lists = lists.iter().map(|list| join(list)).cycle();
    let mut arguments = arguments.to_vec();
    if ids.is_empty() {
        let at = usize::from(is_subcommand(&arguments));
        let list = lists.next().unwrap_or_default();
        arguments.splice(at..at, ["-i".into(), list.into()]);
    }
    for (id, list) in ids.into_iter().zip(lists) {
        arguments[id.position] = format!("{}{list}", id.prefix).into();
    }
    arguments
}

#[cfg(test)]
mod tests;
