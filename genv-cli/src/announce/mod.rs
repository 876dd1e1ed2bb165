//! One line on stderr about the effect of a command on an environment. Only interactive users get the line.

mod devices;

use std::fmt;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use clap::Args;
use genv_core::duration::format_duration;
use genv_core::state::{Activation, Configuration, EnvironmentState};

use crate::local_config::LocalConfig;
use crate::output::{harmless, print_note};
use crate::shell::Caller;

pub(crate) use devices::{AttachedDevice, indices};
use devices::{described, equipment, numbered, same, without};

/// The largest number of processes that a line names.
const MOST_NAMED: usize = 3;

/// The flag that suppresses the line.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct QuietFlag {
    /// Do not print a line about the effect.
    #[arg(short, long)]
    quiet: bool,
}

impl QuietFlag {
    /// The announcer of a command that changes this shell.
    pub(crate) fn announcer(self, caller: &Caller) -> Announcer {
        Announcer::of(caller).unless(self.quiet)
    }

    /// The announcer of a command that changes no shell.
    pub(crate) fn announcer_without_shell(self) -> Announcer {
        Announcer::without_shell().unless(self.quiet)
    }
}

/// Prints the line, or drops it if no interactive user reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announcer {
    is_read: bool,
}

impl Announcer {
    /// Prints if the shell is interactive and stderr is a terminal.
    pub(crate) fn of(caller: &Caller) -> Self {
        Self { is_read: caller.interactive() && io::stderr().is_terminal() }
    }

    /// Prints if stderr is a terminal and the command is a job of an interactive shell: such a shell puts each command
    /// into a process group of its own, and a script does not.
    pub(crate) fn without_shell() -> Self {
        Self { is_read: io::stderr().is_terminal() && leads_process_group() }
    }

    /// Does not print if `quiet`.
    pub(crate) const fn unless(self, quiet: bool) -> Self {
        Self { is_read: self.is_read && !quiet }
    }

    pub(crate) fn announce(self, line: &impl fmt::Display) {
        if self.is_read {
            print_note(&line.to_string());
        }
    }
}

/// `genv activate`
pub(crate) struct Activated<'a> {
    pub(crate) eid: &'a str,
    pub(crate) activation: Activation,
    pub(crate) devices: &'a [AttachedDevice],
    pub(crate) configuration: &'a Configuration,
    /// The end of the environment's lease.
    pub(crate) lease_end: Option<f64>,
    /// The path and the effective values of the loaded configuration.
    pub(crate) loaded: Option<(&'a Path, LocalConfig)>,
}

impl fmt::Display for Activated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = match self.activation {
            Activation::Created => "started",
            Activation::Joined => "joined",
        };
        write!(f, "{done} environment {} {}", harmless(self.eid), equipment(self.devices, self.lease_end))?;
        match (self.devices, self.configuration.gpus) {
            ([], None) => f.write_str(": 'genv attach --count 1' attaches one")?,
            ([], Some(gpus)) if gpus > 0 => write!(f, ": 'genv attach' attaches {gpus}")?,
            _ => {}
        }
        match &self.loaded {
            Some((source, loaded)) if *loaded != LocalConfig::default() => {
                write!(f, "; loaded {} from {}", loaded_values(loaded), path(source))
            }
            _ => Ok(()),
        }
    }
}

/// Whether this process leads its process group. In a container the leader may be outside, where getpgrp(2) returns 0, which
/// rustix does not expect.
fn leads_process_group() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let pid = stat.split(' ').next();
    // After the name: state, parent, group.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    pid.is_some_and(|pid| after_name.split_whitespace().nth(2) == Some(pid))
}

/// `genv exec`: the end of a sentence with the devices and the lease of a command.
pub(crate) struct CommandResources<'a> {
    pub(crate) devices: &'a [AttachedDevice],
    pub(crate) configuration: &'a Configuration,
    pub(crate) lease_end: Option<f64>,
}

impl CommandResources<'_> {
    /// Whether the command has no devices and did not request `--gpus 0`.
    pub(crate) const fn lacks_devices(&self) -> bool {
        self.devices.is_empty() && !matches!(self.configuration.gpus, Some(0))
    }
}

impl fmt::Display for CommandResources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&equipment(self.devices, self.lease_end))?;
        match self.lacks_devices() {
            true => f.write_str(": '--gpus 1' reserves one"),
            false => Ok(()),
        }
    }
}

/// `genv attach`
pub(crate) struct Attached<'a> {
    pub(crate) eid: &'a str,
    pub(crate) before: &'a [AttachedDevice],
    pub(crate) now: &'a [AttachedDevice],
}

impl fmt::Display for Attached<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let eid = harmless(self.eid);
        let new = without(self.now, self.before);
        let gone = without(self.before, self.now);
        if !new.is_empty() {
            write!(f, "attached {}", described(&new))?;
        }
        if !gone.is_empty() {
            let and = if new.is_empty() { "" } else { " and " };
            write!(f, "{and}detached {}", numbered(&gone))?;
        }
        if new.len() == self.now.len() && !new.is_empty() && gone.is_empty() {
            return write!(f, " to environment {eid}");
        }
        if !new.is_empty() {
            return write!(f, ": environment {eid} has {}", numbered(self.now));
        }
        let colon = if gone.is_empty() { "" } else { ": " };
        write!(f, "{colon}environment {eid} has {}", described(self.now))?;
        match same(self.before, self.now) {
            true => f.write_str(" as before"),
            false => Ok(()),
        }
    }
}

/// `genv detach`
pub(crate) struct Detached<'a> {
    pub(crate) eid: &'a str,
    /// The detached devices.
    pub(crate) gone: &'a [u32],
    /// The remaining devices.
    pub(crate) left: &'a [u32],
}

impl fmt::Display for Detached<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gone {
            [] => f.write_str("detached no device")?,
            gone => write!(f, "detached {}", indices(gone))?,
        }
        let (eid, left) = (harmless(self.eid), indices(self.left));
        write!(f, ": environment {eid} has {left}")
    }
}

/// `genv config`
pub(crate) struct Configured<'a> {
    pub(crate) before: &'a Configuration,
    pub(crate) now: &'a Configuration,
    pub(crate) loaded: Option<&'a Path>,
    pub(crate) saved: Option<&'a Path>,
}

impl fmt::Display for Configured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut done = Vec::new();
        if let Some(source) = self.loaded {
            done.push(format!("loaded {} from {}", values(self.now), path(source)));
        } else if self.before != self.now {
            let (now, before) = (values(self.now), values(self.before));
            done.push(format!("configured {now} (before: {before})"));
        } else if self.saved.is_none() {
            done.push(format!("configured {}, as before", values(self.now)));
        }
        if let Some(folder) = self.saved {
            done.push(format!("saved {} to {}", values(self.now), path(folder)));
        }
        f.write_str(&done.join("; "))?;
        let of_devices = |it: &Configuration| (it.gpus, it.gpu_memory);
        if of_devices(self.before) != of_devices(self.now) && self.now.gpus.is_some() {
            f.write_str(". Devices stay as they are until 'genv attach'")?;
        }
        Ok(())
    }
}

/// `genv deactivate`
pub(crate) struct Deactivated<'a> {
    pub(crate) eid: &'a str,
    /// The former devices of the environment.
    pub(crate) devices: &'a [u32],
    pub(crate) outcome: LeaveOutcome,
}

/// The state of an environment after a shell has left it.
pub(crate) enum LeaveOutcome {
    /// The environment had ended before.
    AlreadyEnded,
    /// The environment belongs to another user, and the shell was not in it.
    OtherUser,
    /// The environment ends with the shell.
    Ends,
    /// The environment continues with these members.
    Continues(EnvironmentState),
}

impl fmt::Display for Deactivated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "left environment {}, which ", harmless(self.eid))?;
        match &self.outcome {
            LeaveOutcome::AlreadyEnded => f.write_str("had ended before"),
            LeaveOutcome::OtherUser => f.write_str("belongs to another user"),
            LeaveOutcome::Ends => match self.devices {
                [] => f.write_str("has ended"),
                [one] => write!(f, "has ended: device {one} was detached"),
                several => write!(f, "has ended: {} were detached", indices(several)),
            },
            LeaveOutcome::Continues(environment) => {
                write!(f, "continues with {}", indices(self.devices))?;
                f.write_str(&remaining(environment))
            }
        }
    }
}

/// `: process 4711, process 4712 remain`
fn remaining(environment: &EnvironmentState) -> String {
    let processes = environment.pids().map(|pid| format!("process {pid}"));
    let kernels = environment.kernel_ids.iter();
    let kernels = kernels.map(|id| format!("Jupyter kernel {}", harmless(id)));
    let all: Vec<String> = processes.chain(kernels).collect();
    let named = all.get(..MOST_NAMED).unwrap_or(&all).join(", ");
    match all.len() {
        0 => String::new(),
        1 => format!(": {named} remains"),
        count if count <= MOST_NAMED => format!(": {named} remain"),
        count => format!(": {named} and {} more remain", count - MOST_NAMED),
    }
}

/// `gpus 2, gpu-memory 4g, name x`
fn values(configuration: &Configuration) -> String {
    listed(&configured(configuration))
}

/// `gpus 2, name x, gpu-type a100, for 8h`
fn loaded_values(config: &LocalConfig) -> String {
    let kind = &config.kind;
    let types = (!kind.types.is_empty()).then(|| kind.types.join(" or "));
    let types = types.map(|it| format!("gpu-type {}", harmless(&it)));
    let least = kind.memory_at_least;
    let least = least.map(|it| format!("gpu-memory-at-least {it}"));
    let lease = config.lease;
    let lease = lease.map(|it| format!("for {}", format_duration(it)));
    let mut values = configured(&config.configuration);
    values.extend([types, least, lease].into_iter().flatten());
    listed(&values)
}

fn configured(configuration: &Configuration) -> Vec<String> {
    let gpus = configuration.gpus.map(|it| format!("gpus {it}"));
    let gpu_memory = configuration.gpu_memory;
    let gpu_memory = gpu_memory.map(|it| format!("gpu-memory {it}"));
    let name = configuration.name.as_deref();
    let name = name.map(|it| format!("name {}", harmless(it)));
    [gpus, gpu_memory, name].into_iter().flatten().collect()
}

fn listed(values: &[String]) -> String {
    match values.is_empty() {
        true => "no values".to_owned(),
        false => values.join(", "),
    }
}

fn path(path: &Path) -> String {
    harmless(&path.display().to_string())
}

#[cfg(test)]
mod tests;
