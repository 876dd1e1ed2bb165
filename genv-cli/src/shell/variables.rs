//! The changes of a shell's variables when it enters, shows and leaves an environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use genv_core::model::MemoryAmount;

use super::Shell;
use super::difference::{self, Difference};
use super::quote::quote;
use super::reminder::Reminders;

/// The facts of an environment in a shell's variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShellEnvironment<'a> {
    /// Environment id.
    pub(crate) eid: &'a str,
    /// Configured name.
    pub(crate) name: Option<&'a str>,
    /// Configured device count.
    pub(crate) gpus: Option<u32>,
    /// Configured memory per device.
    pub(crate) gpu_memory: Option<MemoryAmount>,
    /// Indices of the attached devices.
    pub(crate) devices: &'a [u32],
    /// The end of its lease, Unix time.
    pub(crate) lease_end: Option<f64>,
}

/// A change of the calling shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Set and export a variable.
    Set(&'static str, OsString),
    Unset(&'static str),
    /// Show or hide the environment in the prompt.
    Prompt(bool),
    /// Arguments of `__genv_watch`: a stamp, a folder of PATH or an empty text, the time of a reminder or an empty text, and files.
    /// No arguments: stop watching.
    Watch(Vec<OsString>),
}

/// The reason why a shell shows an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The shell enters the environment, and shows it in its prompt if `prompt`.
    Enter { prompt: bool },
    /// A command of the user changed the environment, or requested an update.
    Command,
    /// The prompt found a possible change: the user's own `CUDA_VISIBLE_DEVICES` stays.
    Prompt,
}

const PATH: &str = "PATH";
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The largest size of a value from the state. Any user may have written it, and with a variable of 128 KiB the kernel
/// starts no program any more, not even `genv deactivate`.
const MOST_BYTES: usize = 64 << 10;

/// Variables that only environments set.
const OWN: [&str; 5] = ["GENV_ENVIRONMENT_ID", "GENV_ENVIRONMENT_NAME", "GENV_GPUS", "GENV_GPU_MEMORY", "GENV_SHELL"];

/// The changes that make a shell show an environment. Without [`Occasion::Enter`] the choice about the prompt stays.
///
/// `variable` reads the shell's exported variables; `path_entry` is the folder for the front of PATH.
pub(crate) fn show(
    variable: impl Fn(&str) -> Option<OsString>,
    environment: &ShellEnvironment<'_>,
    path_entry: Option<OsString>,
    occasion: Occasion,
) -> Vec<Change> {
    let before = variable(difference::VARIABLE).map(|text| Difference::decode(&text));
    let inside = variable("GENV_ENVIRONMENT_ID").is_some_and(|eid| !eid.is_empty());
    let mut kept = before.unwrap_or_else(|| Difference {
        // In an environment of another program these values are not the user's.
        replaced: difference::REPLACED.map(|name| variable(name).filter(|_| !inside)),
        ..Difference::default()
    });
    if let Occasion::Enter { prompt } = occasion {
        kept.prompt = prompt;
    }

    let mut changes = Vec::new();
    let mut set = |name, value: Option<OsString>| {
        changes.push(match value {
            Some(value) => Change::Set(name, value),
            None => Change::Unset(name),
        });
    };
    set("GENV_ENVIRONMENT_ID", Some(environment.eid.into()));
    let name = environment.name.filter(|name| name.len() <= MOST_BYTES);
    set("GENV_ENVIRONMENT_NAME", name.map(Into::into));
    set("GENV_GPUS", environment.gpus.map(|gpus| gpus.to_string().into()));
    set("GENV_GPU_MEMORY", environment.gpu_memory.map(|amount| amount.to_string().into()));
    set("GENV_SHELL", Some("1".into()));
    if occasion != Occasion::Prompt || users_devices(&variable).is_none() {
        let devices = visible(environment.devices);
        set("CUDA_DEVICE_ORDER", Some("PCI_BUS_ID".into()));
        set(VISIBLE_DEVICES, Some(devices.clone()));
        kept.shown = Some(devices);
    }
    if let Some(entry) = path_entry {
        let path = variable(PATH).unwrap_or_default();
        if !entries(&path).any(|found| found == entry.as_bytes()) {
            set(PATH, Some(with_first(&path, &entry)));
            kept.path_entry = Some(entry);
        }
    }
    let given = kept.reminders.as_deref().and_then(Reminders::decode);
    kept.reminders = environment.lease_end.map(|end| {
        let due = Reminders::due(end);
        // After a command of the user the next prompt gives a due reminder, if the shell knows the lease.
        let given = given.filter(|it| it.end_seconds == due.end_seconds);
        let given = given.filter(|_| occasion != Occasion::Prompt);
        given.unwrap_or(due).encode()
    });
    set(difference::VARIABLE, Some(kept.encode().into()));
    changes.push(Change::Prompt(kept.prompt));
    changes
}

/// The last value that genv gave `CUDA_VISIBLE_DEVICES`, if known.
pub(crate) fn shown_devices(variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    Difference::decode(&variable(difference::VARIABLE)?).shown
}

/// A value of `CUDA_VISIBLE_DEVICES` that genv did not set; empty if the variable is not set.
pub(crate) fn users_devices(variable: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let shown = shown_devices(&variable)?;
    let now = variable(VISIBLE_DEVICES).unwrap_or_default();
    (now != shown).then_some(now)
}

/// The reminders of the lease that the shell has given.
pub(super) fn reminders(variable: impl Fn(&str) -> Option<OsString>) -> Option<Reminders> {
    let text = Difference::decode(&variable(difference::VARIABLE)?).reminders?;
    Reminders::decode(&text)
}

/// The folder at the front of PATH and the time of the next reminder, in these changes.
pub(super) fn watched(changes: &[Change]) -> [OsString; 2] {
    let kept = |name: &str| {
        changes.iter().find_map(|change| match change {
            Change::Set(known, value) if *known == name => Some(value.clone()),
            _ => None,
        })
    };
    let entry = kept(difference::VARIABLE).and_then(|text| Difference::decode(&text).path_entry);
    let next = reminders(kept).and_then(Reminders::next_uptime_seconds);
    let next = next.map(|seconds| seconds.to_string().into());
    [entry.unwrap_or_default(), next.unwrap_or_default()]
}

/// The changes that make a shell leave its environment.
pub(crate) fn hide(variable: impl Fn(&str) -> Option<OsString>) -> Vec<Change> {
    let before = variable(difference::VARIABLE).map(|text| Difference::decode(&text));
    let before = before.unwrap_or_default();
    let mut changes: Vec<Change> = OWN.map(Change::Unset).into();
    for (name, value) in difference::REPLACED.into_iter().zip(before.replaced) {
        changes.push(match value {
            Some(value) => Change::Set(name, value),
            None => Change::Unset(name),
        });
    }
    if let (Some(entry), Some(path)) = (before.path_entry, variable(PATH)) {
        changes.push(Change::Set(PATH, without_first(&path, &entry)));
    }
    changes.push(Change::Unset(difference::VARIABLE));
    changes.push(Change::Prompt(false));
    changes.push(Change::Watch(Vec::new()));
    changes
}

/// The changes as code of `shell`.
pub(crate) fn code(shell: Shell, changes: &[Change]) -> Vec<u8> {
    let mut code = Vec::new();
    for change in changes {
        match (shell, change) {
            (Shell::Bash | Shell::Zsh, Change::Set(name, value)) => {
                code.extend(format!("\\builtin export {name}=").bytes());
                code.extend(quote(shell, value.as_bytes()));
            }
            (Shell::Bash | Shell::Zsh, Change::Unset(name)) => {
                code.extend(format!("\\builtin unset -v {name}").bytes());
            }
            (Shell::Fish, Change::Set(name, value)) => {
                code.extend(format!("builtin set --global --export {name}").bytes());
                // PATH is a list in fish.
                let values = if *name == PATH { entries(value).collect() } else { vec![value.as_bytes()] };
                for value in values {
                    code.push(b' ');
                    code.extend(quote(shell, value));
                }
            }
            (Shell::Fish, Change::Unset(name)) => {
                // fish reports an error if the erased variable is not set.
                code.extend(
                    format!("builtin set --query --global {name}; and builtin set --erase --global {name}").bytes(),
                );
            }
            (_, Change::Prompt(shown)) => {
                let state = if *shown { "on" } else { "off" };
                code.extend(format!("__genv_prompt {state}").bytes());
            }
            (_, Change::Watch(words)) => {
                code.extend(b"__genv_watch");
                for word in words {
                    code.push(b' ');
                    code.extend(quote(shell, word.as_bytes()));
                }
            }
        }
        code.push(b'\n');
    }
    code
}

/// The value of `CUDA_VISIBLE_DEVICES`. It hides all devices for an empty list, and for an impossibly long one.
pub(crate) fn visible(devices: &[u32]) -> OsString {
    let indices: Vec<String> = devices.iter().map(u32::to_string).collect();
    let indices = indices.join(",");
    if (1..=MOST_BYTES).contains(&indices.len()) { indices.into() } else { "-1".into() }
}

fn entries(path: &OsStr) -> impl Iterator<Item = &[u8]> {
    path.as_bytes().split(|&byte| byte == b':')
}

fn with_first(path: &OsStr, entry: &OsStr) -> OsString {
    let mut longer = entry.to_owned();
    if !path.is_empty() {
        longer.push(":");
        longer.push(path);
    }
    longer
}

/// `path` without the first occurrence of `entry`.
fn without_first(path: &OsStr, entry: &OsStr) -> OsString {
    let mut found = false;
    let rest: Vec<&[u8]> = entries(path)
        .filter(|part| {
            found || *part != entry.as_bytes() || {
                found = true;
                false
            }
        })
        .collect();
    OsString::from_vec(rest.join(&b':'))
}

#[cfg(test)]
mod tests;
