//! The environment of a command's shell, and which processes may be members of one.

use std::env;

use genv_core::proc::{
    ProcReader, ProcessRead, ProcessRequest, ProcessSource as _, is_kernel_thread, own_uid, user_phrase,
};
use genv_core::state::{Configuration, EditableState, EnvironmentState, Refusal, State};

use crate::failure::Failure;
use crate::shell::ShellEnvironment;

/// The environment that this program claims by its variables. It may have ended.
pub(crate) fn claimed_eid() -> Option<String> {
    let eid = env::var_os("GENV_ENVIRONMENT_ID").filter(|eid| !eid.is_empty())?;
    Some(eid.to_string_lossy().into_owned())
}

/// As [`claimed_eid`], or an error about this task.
pub(crate) fn active_eid(task: &'static str) -> Result<String, Failure> {
    claimed_eid().ok_or(Failure::NotActive(task))
}

/// The environment with this id, if it belongs to the caller.
///
/// # Errors
/// The environment has ended, or belongs to another user.
pub(crate) fn find_own<'a>(
    environments: &'a [EnvironmentState],
    eid: &str,
    task: &'static str,
) -> Result<&'a EnvironmentState, anyhow::Error> {
    let found = environments.iter().find(|it| it.eid == eid);
    let found = found.ok_or_else(|| Failure::Ended { task, eid: eid.to_owned() })?;
    if found.uid != own_uid() {
        return Err(Refusal::NotOwner { task, eid: eid.to_owned(), uid: found.uid }.into());
    }
    Ok(found)
}

/// The error of a change of this shell's own environment: a missing environment has ended.
pub(crate) fn of_own(error: anyhow::Error, task: &'static str) -> anyhow::Error {
    match error.downcast_ref() {
        Some(Refusal::NoSuchEnvironment { eid }) => Failure::Ended { task, eid: eid.clone() }.into(),
        _ => error,
    }
}

/// Checks that the caller may make a process a member of an environment: the process runs as the caller, or the caller is
/// root. An ended process is accepted, and the next command removes it.
///
/// # Errors
/// The process runs as another user, or is a thread of the kernel.
pub(crate) fn check_member(pid: u32) -> anyhow::Result<()> {
    anyhow::ensure!(
        !is_kernel_thread(pid),
        "cannot add process {pid}: it is a thread of the kernel, which cannot be in an environment. Name a shell or a program: \
         'ps' lists them"
    );
    let caller = own_uid();
    if caller == 0 {
        return Ok(());
    }
    let table = ProcReader::new().read(&ProcessRequest { processes: vec![pid], members: Vec::new() });
    let owner = match table.processes.get(&pid) {
        None | Some(ProcessRead::Vanished) => return Ok(()),
        Some(ProcessRead::Present(facts)) if table.user(facts) == Some(caller) => return Ok(()),
        Some(ProcessRead::Present(facts)) => facts.uid.filter(|uid| *uid != caller),
        Some(ProcessRead::Unreadable) => None,
    };
    let owner = owner.map_or_else(
        || "its users are unknown, or differ".to_owned(),
        |uid| format!("it runs as user {}", user_phrase(uid)),
    );
    anyhow::bail!(
        "cannot add process {pid}: {owner}, and an environment has only processes of its own user, {}. Name one of \
                 yours, or run it with sudo",
        user_phrase(caller)
    )
}

/// The facts of an environment that a shell shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EnvironmentView {
    eid: String,
    pub(crate) configuration: Configuration,
    pub(crate) devices: Vec<u32>,
    /// The end of its lease, Unix time.
    pub(crate) lease_end: Option<f64>,
}

impl EnvironmentView {
    /// The facts of an environment during a change.
    pub(crate) fn changed(state: &EditableState, eid: &str) -> Self {
        Self {
            eid: eid.to_owned(),
            configuration: state.configuration(eid).unwrap_or_default(),
            devices: state.attached(eid),
            lease_end: state.lease_end(eid),
        }
    }

    /// The facts of an environment in a state.
    pub(crate) fn now(state: &State, environment: &EnvironmentState) -> Self {
        Self {
            eid: environment.eid.clone(),
            configuration: configuration(environment),
            devices: state.attached(&environment.eid),
            lease_end: state.lease_end(&environment.eid),
        }
    }

    /// The id of the environment.
    pub(crate) fn eid(&self) -> &str {
        &self.eid
    }

    /// The facts for the variables of shells and child processes.
    pub(crate) fn for_shell(&self) -> ShellEnvironment<'_> {
        ShellEnvironment {
            eid: &self.eid,
            name: self.configuration.name.as_deref(),
            gpus: self.configuration.gpus,
            gpu_memory: self.configuration.gpu_memory,
            devices: &self.devices,
            lease_end: self.lease_end,
        }
    }
}

pub(crate) fn configuration(environment: &EnvironmentState) -> Configuration {
    Configuration { name: environment.name.clone(), gpus: environment.gpus, gpu_memory: environment.gpu_memory }
}
