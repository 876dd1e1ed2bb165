//! Processes that an enforcer may end.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use genv_core::proc::{ProcReader, ProcessRead, ProcessRequest, ProcessSource as _};
use genv_enforcer::plan::{Key, ProcessTarget, Step, StepKind, Subject};
use rustix::process::geteuid;

use crate::patience::until;
use crate::process::Sleeper;
use crate::root::FIRST_UID;

/// Whose processes may be ended: root's are out of reach of every rule, so that where root runs the tests somebody else
/// is meant.
pub fn victim() -> u32 {
    let own = geteuid();
    if own.is_root() { FIRST_UID } else { own.as_raw() }
}

/// A process of the [`victim`] that sleeps, with these variables besides PATH.
pub fn sleeper(environment: &[(&str, &str)]) -> Result<Sleeper> {
    sleeper_of(victim(), &[&[("PATH", "/bin")], environment].concat())
}

/// A process that sleeps, of another user where root runs the tests, with variables as those of [`Sleeper::start`]; the
/// kernel has given it its name and its environ.
pub fn sleeper_of(uid: u32, environment: &[(&str, &str)]) -> Result<Sleeper> {
    copy_of_sleep(Path::new("/bin/sleep"), uid, environment)
}

/// A user other than the one who runs the tests, and a process of that user. Where the tests do not run as root: root,
/// and process 1.
pub fn process_of_another() -> Result<(u32, u32, Option<Sleeper>)> {
    if !geteuid().is_root() {
        return Ok((0, 1, None));
    }
    let process = sleeper_of(FIRST_UID, &[])?;
    Ok((FIRST_UID, process.pid(), Some(process)))
}

/// As [`sleeper_of`], of a copy of the program `sleep`.
pub fn copy_of_sleep(copy: &Path, uid: u32, environment: &[(&str, &str)]) -> Result<Sleeper> {
    let mut command = Command::new(copy);
    let command = command.env_clear().envs(environment.iter().copied());
    let process = Sleeper::spawn(as_user(command.arg("1000000"), uid))?;
    let of_process = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", process.pid()));
    let name = copy.file_name().context("a program without a name")?;
    until("it sleeps", || {
        let has_name = *of_process("comm")?.trim_end() == *name;
        Ok(has_name && (environment.is_empty() || !of_process("environ")?.is_empty()))
    })?;
    Ok(process)
}

pub fn as_victim(command: &mut Command) -> &mut Command {
    as_user(command, victim())
}

fn as_user(command: &mut Command, uid: u32) -> &mut Command {
    if geteuid().is_root() {
        command.uid(uid).gid(uid);
    }
    command
}

/// A process as a rule finds it now, on a host of this name and outside of all environments.
pub fn target(hostname: &str, pid: u32) -> Result<ProcessTarget> {
    let mut reader = ProcReader::new();
    let mut table = reader.read(&ProcessRequest { processes: vec![pid], members: Vec::new() });
    let Some(ProcessRead::Present(facts)) = table.processes.remove(&pid) else {
        bail!("process {pid} is not there");
    };
    let uid = facts.uid.with_context(|| format!("process {pid} has no user"))?;
    Ok(ProcessTarget {
        hostname: hostname.to_owned(),
        pid,
        start_time_ticks: facts.start_time_ticks,
        uid,
        username: reader.username(uid),
        comm: Some(facts.comm),
        eid: None,
        container_id: None,
    })
}

pub fn terminate(target: &ProcessTarget) -> Step {
    let subject = Subject::Process {
        hostname: target.hostname.clone(),
        pid: target.pid,
        start_time_ticks: target.start_time_ticks,
    };
    Step {
        key: Key { rule: "non-env-processes".to_owned(), subject },
        kind: StepKind::Terminate(target.clone().into()),
    }
}

pub fn ends(pid: u32) -> Result<()> {
    until(&format!("process {pid} ends"), || Ok(!is_alive(pid)))
}

pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some(None | Some('Z' | 'X')))
}
