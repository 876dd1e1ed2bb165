//! `genv exec`

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::proc::own_uid;
use genv_core::state::{EditableState, MemberId, StoreError};

use super::activate::{Entered, Entry, Wanted, free_id, leave};
use super::deactivate::named;
use crate::announce::{Given, QuietFlag};
use crate::child::{Forwarding, become_command, command, exit_code, handed_on, look_up};
use crate::failure::{EXIT_CODES, Failure};
use crate::jobs::{Detached, Starting};
use crate::machine::{Job, Machine, USAGE_PATIENCE, tell};
use crate::{completion, shell, values};

const EXAMPLE: &str = "Example: train on two GPUs as soon as they can be had
  genv exec --gpus 2 --wait -- python train.py

On one device with 40 GB or more
  genv exec --gpu-memory-at-least 40g -- python train.py

The same as a job that goes on after logout, and what it prints
  genv exec --detach --gpus 2 --wait -- python train.py
  genv logs --follow";

/// What `genv exec` ran in genv 1.x before 1.0: its stand-ins for these programs.
const OLD_TOOLS: [&str; 2] = ["nvidia-smi", "docker"];

/// What a job that waits for devices tells first.
const JOB_WAITS: &str = "the job starts when it gets its devices: if this terminal is closed before, it does not start";

/// Run a command in an environment of its own, which ends with it.
///
/// Processes that the command leaves behind keep no device, and are in no environment then; those that still work on one are
/// named on stderr. It is configured by a .genv folder or genv.toml as with 'genv activate'. The exit code is the command's, 128+n if signal n ended it.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Exec {
    #[command(flatten)]
    wanted: Wanted,

    /// Run it as a job, which goes on after logout; prints the job's number. 'genv jobs' lists jobs.
    #[arg(long)]
    detach: bool,

    /// Environment to join, or id of the new one.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,

    #[command(flatten)]
    quiet: QuietFlag,

    /// Run it as the job of this folder, in the place of the program with --detach.
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with = "detach")]
    job: Option<PathBuf>,

    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Exec {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        if is_old_spelling(&self.command, env::args_os()) {
            return run_tool(&self.command);
        }
        let mut command = command(&self.command)?;
        // A missing program is an error before the wait for devices.
        look_up(&command, shell::shims_folder().as_deref()).map_err(|error| self.with_hint(error))?;
        let announcer = self.quiet.announcer_without_shell();
        if self.detach {
            return Detached::start(self.wanted.name(), announcer);
        }
        if self.job.is_some() {
            self.wanted.wait.note_first(JOB_WAITS);
        }
        let name = self.wanted.name().map(str::to_owned);
        let job = self.job.map(|folder| Starting::new(folder, name, self.command));
        let mut machine = Machine::here()?;
        let own_pid = process::id();
        let eid = match self.eid {
            Some(eid) => eid,
            None => free_id(&machine.state().unwrap_or_default(), own_pid),
        };
        let entry =
            Entry { eid: &eid, member: own_pid, caller: None, local: self.wanted.local()?.config, attach: true };
        let entered = self.wanted.enter(&mut machine, &entry)?;
        let given = given(&entered);
        if job.is_none() && given.lacks_devices() {
            announcer.announce(&format!("the command runs {given}"));
        }
        shell::enter_child(&mut command, &entered.shown.for_shell());
        let prepared = job.as_ref().map_or(Ok(()), |job| job.prepare(&mut command));
        let job = job.as_ref().map(|job| (job, &entered));
        let done = prepared.and_then(|()| run_within(&mut machine, &entry, command, job));
        if done.is_err() {
            leave(&mut machine, &entry);
        }
        handed_on(done?)
    }

    /// The error of a missing program, if it may be the value of --wait.
    fn with_hint(&self, error: Failure) -> Failure {
        let Some(first) = self.command.first().and_then(|it| it.to_str()) else {
            return error;
        };
        match error {
            Failure::NotFound(_) if self.wanted.wait.is_without_limit() && parse_duration(first).is_ok() => {
                Failure::NotFound(format!(
                    "cannot run {first}: there is no such program. To wait for so long, write --wait={first}"
                ))
            }
            error => error,
        }
    }
}

fn given(entered: &Entered) -> Given<'_> {
    Given { devices: &entered.devices, configuration: &entered.shown.configuration, lease_end: entered.shown.lease_end }
}

/// Runs the command as the member of the environment, in the place of this program.
fn run_within(
    machine: &mut Machine,
    entry: &Entry<'_>,
    command: Command,
    job: Option<(&Starting, &Entered)>,
) -> anyhow::Result<u8> {
    let running = Forwarding::new()?.start(command)?;
    let child = Entry { member: running.pid(), local: entry.local.clone(), ..*entry };
    // It goes on if this program is killed, and its environment with it.
    let handed_over = machine.update(|state| {
        hand_over(state, entry, child.member);
        Ok::<_, StoreError>(())
    });
    if let Err(error) = handed_over {
        tell(&format!("the environment ends with this program: {error}"));
    }
    let job = job.map(|(job, entered)| {
        let given = given(entered).to_string();
        job.runs(running.pid(), &entered.shown, &given)
    });
    let job = match job.transpose() {
        Ok(job) => job,
        Err(error) => {
            running.kill();
            return Err(error);
        }
    };
    let code = exit_code(running.wait()?);
    end(machine, &child);
    if let Some(job) = job {
        job.ended(code);
    }
    Ok(code)
}

/// Ends the environment together with its command, unless a shell joined the environment. Names processes that still
/// work on its devices.
fn end(machine: &mut Machine, child: &Entry<'_>) {
    let jobs = jobs_left(machine, child.eid, child.member);
    let ended = machine.update(|state| {
        state.leave_as_shell(child.eid, child.member);
        Ok::<_, StoreError>(())
    });
    if let Err(error) = ended {
        return tell(&error.to_string());
    }
    for job in &jobs {
        let (are, it) = if job.devices.len() == 1 { ("is", "it") } else { ("are", "them") };
        tell(&format!(
            "{}, which {are} free now: the process is in no environment any more, and another environment may get {it}. \
             'kill {}' ends the process",
            named(std::slice::from_ref(job)),
            job.process.pid
        ));
    }
}

/// The processes that work on the devices of an environment, if the environment ends with this member.
fn jobs_left(machine: &mut Machine, eid: &str, member: u32) -> Vec<Job> {
    let state = machine.state().unwrap_or_default();
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let ends = environment.is_some_and(|it| state.shells(it).all(|pid| pid == member) && it.kernel_ids.is_empty());
    if !ends || state.attached(eid).is_empty() {
        return Vec::new();
    }
    let jobs = machine.jobs(&state, eid, USAGE_PATIENCE);
    jobs.unwrap_or_default()
}

fn hand_over(state: &mut EditableState, entry: &Entry<'_>, child: u32) {
    state.activate(entry.eid, own_uid(), None, &MemberId::Process(child));
    state.leave(entry.eid, &MemberId::Process(entry.member));
}

/// Whether one of the old tools follows `exec` itself.
fn is_old_spelling(command: &[OsString], words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.collect();
    let before = words.len().checked_sub(command.len() + 1);
    let follows = before.and_then(|before| words.get(before)).is_some_and(|word| word == "exec");
    let tool = command.first().map(OsString::as_os_str);
    follows && OLD_TOOLS.into_iter().any(|name| tool == Some(OsStr::new(name)))
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
