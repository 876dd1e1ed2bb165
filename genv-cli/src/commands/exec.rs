//! `genv exec`

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use clap::Args;
use genv_core::duration::parse_duration;
use genv_core::state::{Facts, MemberId, Refusal, Request};

use super::activate::{EnterRequest, EnteredEnvironment, EnvironmentFlags, free_id};
use super::deactivate::named;
use crate::announce::{CommandResources, QuietFlag};
use crate::child::{SignalForwarding, command, exec_command, exit_code, exit_code_result, look_up};
use crate::device_facts::DeviceProcess;
use crate::driver_timeout::brief_patience;
use crate::failure::{EXIT_CODES, Failure};
use crate::jobs::{DetachedJob, JobStart};
use crate::machine::Machine;
use crate::output::print_note;
use crate::{completion, shell, values};

const EXAMPLE: &str = "Example: train on two GPUs as soon as they are free
  genv exec --gpus 2 --wait -- python train.py

Train on one device with 40 GB or more
  genv exec --gpu-memory-at-least 40g -- python train.py

Train as a job that continues after logout, and print its output
  genv exec --detach --gpus 2 --wait -- python train.py
  genv logs --follow";

/// The programs whose shims `genv exec` ran before genv 1.0.
const OLD_TOOLS: [&str; 2] = ["nvidia-smi", "docker"];

/// The first note of a job that waits for devices.
const JOB_WAITS: &str = "the job starts when it gets its devices: if this terminal is closed before, it does not start";

/// Run a command in a new environment that ends with the command.
///
/// Remaining processes of the command lose their devices, and stderr names the ones that still use a device. A .genv folder or a genv.toml
/// configures the environment, as with 'genv activate'. The exit code is the command's, or 128+n if signal n ended it.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Exec {
    #[command(flatten)]
    environment: EnvironmentFlags,

    /// Run the command as a job that continues after logout, and print the job's number. 'genv jobs' lists jobs.
    #[arg(long)]
    detach: bool,

    /// Environment to join, or id for a new one.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,

    #[command(flatten)]
    quiet: QuietFlag,

    /// Run the command as the job of this folder. A program with --detach starts itself with this flag.
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with = "detach")]
    job: Option<PathBuf>,

    /// Command and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Exec {
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        if is_old_spelling(&self.command, env::args_os()) {
            return run_tool(&self.command);
        }
        let mut command = command(&self.command)?;
        // A missing program must be an error before the wait for devices.
        look_up(&command, shell::shims_folder().as_deref()).map_err(|error| self.with_hint(error))?;
        let announcer = self.quiet.announcer_without_shell();
        if self.detach {
            return DetachedJob::start(self.environment.name(), announcer);
        }
        if self.job.is_some() {
            self.environment.wait.note_first(JOB_WAITS);
        }
        let name = self.environment.name().map(str::to_owned);
        let job = self.job.map(|folder| JobStart::new(folder, name, self.command));
        let mut machine = Machine::here()?;
        let own_pid = process::id();
        let eid = match self.eid {
            Some(eid) => eid,
            None => free_id(&machine.state().unwrap_or_default(), own_pid),
        };
        let entry = EnterRequest {
            eid: &eid,
            member: own_pid,
            caller: None,
            local: self.environment.local()?.config,
            attach: true,
        };
        let entered = self.environment.enter(&mut machine, &entry)?;
        let given = given(&entered);
        if job.is_none() && given.lacks_devices() {
            announcer.announce(&format!("the command runs {given}"));
        }
        shell::enter_child(&mut command, &entered.shown.for_shell());
        let prepared = job.as_ref().map_or(Ok(()), |job| job.prepare(&mut command));
        let job = job.as_ref().map(|job| (job, &entered));
        let done = prepared.and_then(|()| run_within(&mut machine, &entry, command, job));
        if done.is_err()
            && let Err(error) = leave(&mut machine, &entry, false)
        {
            print_note(&error.to_string());
        }
        exit_code_result(done?)
    }

    /// Adds a hint if the missing program looks like a value of --wait.
    fn with_hint(&self, error: Failure) -> Failure {
        let Some(first) = self.command.first().and_then(|it| it.to_str()) else {
            return error;
        };
        match error {
            Failure::NotFound(_) if self.environment.wait.is_without_limit() && parse_duration(first).is_ok() => {
                Failure::NotFound(format!(
                    "cannot run {first}: there is no such program. To wait at most this long, write --wait={first}"
                ))
            }
            error => error,
        }
    }
}

fn given(entered: &EnteredEnvironment) -> CommandResources<'_> {
    CommandResources {
        devices: &entered.devices,
        configuration: &entered.shown.configuration,
        lease_end: entered.shown.lease_end,
    }
}

/// Runs the command as a member of the environment in place of this program.
fn run_within(
    machine: &mut Machine,
    entry: &EnterRequest<'_>,
    command: Command,
    job: Option<(&JobStart, &EnteredEnvironment)>,
) -> anyhow::Result<u8> {
    let running = SignalForwarding::new()?.start(command)?;
    let child = EnterRequest { member: running.pid(), local: entry.local.clone(), ..*entry };
    // So the environment continues with the command if this program is killed.
    let request = Request::HandOver { eid: entry.eid.to_owned(), from: entry.member, to: child.member };
    let handed_over = machine.change(&request, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()));
    if let Err(error) = handed_over {
        let why = if error.is::<Refusal>() { "its id is another user's by now".to_owned() } else { error.to_string() };
        print_note(&format!("the environment ends with this program: {why}"));
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

/// Ends the environment after its command, unless a shell has joined. Names processes that still use its devices.
fn end(machine: &mut Machine, child: &EnterRequest<'_>) {
    let processes = remaining_processes(machine, child.eid, child.member);
    if let Err(error) = leave(machine, child, true) {
        return print_note(&error.to_string());
    }
    for process in &processes {
        let (are, it) = if process.devices.len() == 1 { ("is", "it") } else { ("are", "them") };
        print_note(&format!(
            "{}, which {are} free now: the process is in no environment any more, and another environment may get {it}. \
             'kill {}' ends the process",
            named(std::slice::from_ref(process)),
            process.id.pid
        ));
    }
}

/// The processes that use the devices of an environment, if the environment ends with this member.
fn remaining_processes(machine: &mut Machine, eid: &str, member: u32) -> Vec<DeviceProcess> {
    let state = machine.state().unwrap_or_default();
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let ends = environment.is_some_and(|it| it.shells().all(|pid| pid == member) && it.kernel_ids.is_empty());
    if !ends || state.attached(eid).is_empty() {
        return Vec::new();
    }
    let processes = machine.device_processes(&state, eid, brief_patience());
    processes.unwrap_or_default()
}

/// Removes a member from its environment. If the environment has ended and its id is another user's by now, nothing is
/// left to do.
fn leave(machine: &mut Machine, entry: &EnterRequest<'_>, as_shell: bool) -> anyhow::Result<()> {
    let member = MemberId::Process(entry.member);
    let request = Request::Leave { eid: Some(entry.eid.to_owned()), member, as_shell };
    match machine.change(&request, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(())) {
        Err(error) if error.is::<Refusal>() => Ok(()),
        left => left,
    }
}

/// Whether one of the old tools directly follows `exec`.
fn is_old_spelling(command: &[OsString], words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<OsString> = words.collect();
    let before = words.len().checked_sub(command.len() + 1);
    let follows = before.and_then(|before| words.get(before)).is_some_and(|word| word == "exec");
    let tool = command.first().map(OsString::as_os_str);
    follows && OLD_TOOLS.into_iter().any(|name| tool == Some(OsStr::new(name)))
}

/// Replaces this program by the shim of a tool.
fn run_tool(words: &[OsString]) -> anyhow::Result<()> {
    let folder = shell::shims_folder().ok_or_else(|| {
        Failure::NotFound(
            "cannot run genv's shim: its folder is missing beside this program. Install genv again".to_owned(),
        )
    })?;
    let mut words = words.to_vec();
    if let Some(tool) = words.first_mut() {
        *tool = Path::new(&folder).join(&*tool).into_os_string();
    }
    Err(exec_command(command(&words)?))
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
