//! `genv exec`

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{self, Command};

use clap::Args;
use genv_core::proc::own_uid;
use genv_core::state::{EditableState, MemberId, StoreError};

use super::activate::{Entry, Wanted, free_id, leave};
use crate::child::{Forwarding, become_command, command, handed_on};
use crate::failure::{EXIT_CODES, Failure};
use crate::machine::{Machine, tell};
use crate::{completion, shell, values};

const EXAMPLE: &str = "Example: train on two GPUs as soon as they can be had
  genv exec --gpus 2 --wait -- python train.py";

/// What `genv exec` ran in genv 1.x before 1.0: its stand-ins for these programs.
const OLD_TOOLS: [&str; 2] = ["nvidia-smi", "docker"];

/// Run a command in an environment of its own, which ends with it.
///
/// It is configured by a .genv folder as with 'genv activate'. The exit code is the command's, 128+n if signal n ended it.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Exec {
    /// Environment to join, or id of the new one.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,

    #[command(flatten)]
    wanted: Wanted,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Exec {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if is_old_spelling(&self.command, env::args_os()) {
            return run_tool(&self.command);
        }
        let mut command = command(&self.command)?;
        let mut machine = Machine::here()?;
        let own_pid = process::id();
        let eid = match self.eid {
            Some(eid) => eid,
            None => free_id(&machine.state().unwrap_or_default(), own_pid),
        };
        let entry = Entry {
            eid: &eid,
            member: own_pid,
            caller: None,
            local: self.wanted.local()?,
            attach: true,
        };
        let shown = self.wanted.enter(&mut machine, &entry)?;
        shell::enter_child(&mut command, &shown.for_shell());
        let done = run_within(&mut machine, &entry, command);
        if done.is_err() {
            leave(&mut machine, &entry);
        }
        handed_on(done?)
    }
}

/// Runs the command as the member of the environment, in the place of this program.
fn run_within(
    machine: &mut Machine,
    entry: &Entry<'_>,
    command: Command,
) -> anyhow::Result<process::ExitStatus> {
    let running = Forwarding::new()?.start(command)?;
    let child = Entry {
        member: running.pid(),
        local: entry.local.clone(),
        ..*entry
    };
    // It goes on if this program is killed, and its environment with it.
    let handed_over = machine.update(|state| {
        hand_over(state, entry, child.member);
        Ok::<_, StoreError>(())
    });
    if let Err(error) = handed_over {
        tell(&format!("the environment ends with this program: {error}"));
    }
    let ended = running.wait()?;
    leave(machine, &child);
    Ok(ended)
}

fn hand_over(state: &mut EditableState, entry: &Entry<'_>, child: u32) {
    state.activate(entry.eid, own_uid(), None, &MemberId::Process(child));
    state.leave(entry.eid, &MemberId::Process(entry.member));
}

/// Whether one of the old tools follows `exec` itself.
fn is_old_spelling(command: &[OsString], words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.collect();
    let before = words.len().checked_sub(command.len() + 1);
    let follows = before
        .and_then(|before| words.get(before))
        .is_some_and(|word| word == "exec");
    let tool = command.first().map(OsString::as_os_str);
    follows
        && OLD_TOOLS
            .into_iter()
            .any(|name| tool == Some(OsStr::new(name)))
}

/// Becomes the stand-in for a tool.
fn run_tool(words: &[OsString]) -> anyhow::Result<()> {
    let folder = shell::shims_folder().ok_or_else(|| {
        Failure::NotFound(
            "cannot run genv's stand-in: its folder is missing beside this program. Install genv again".to_owned(),
        )
    })?;
    let mut words = words.to_vec();
    if let Some(tool) = words.first_mut() {
        *tool = Path::new(&folder).join(&*tool).into_os_string();
    }
    Err(become_command(command(&words)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_old(line: &str, command: &str) -> bool {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(Into::into).collect() };
        is_old_spelling(&words(command), words(line).into_iter())
    }

    #[test]
    fn only_an_old_tool_right_after_exec_is_the_old_spelling() {
        assert!(is_old("genv exec nvidia-smi -L", "nvidia-smi -L"));
        assert!(is_old("genv exec docker", "docker"));
        assert!(!is_old("genv exec -- nvidia-smi", "nvidia-smi"));
        assert!(!is_old("genv exec --gpus 1 nvidia-smi", "nvidia-smi"));
        assert!(!is_old("genv exec python", "python"));
        assert!(!is_old("genv exec /usr/bin/docker", "/usr/bin/docker"));
    }
}
