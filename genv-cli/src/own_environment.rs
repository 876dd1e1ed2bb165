//! The environment that a command is called in.

use std::env;

use genv_core::proc::own_uid;
use genv_core::state::{Configuration, EditableState, EnvironmentState, State};

use crate::failure::Failure;
use crate::shell::ShellEnvironment;

/// The environment that this program's variables name; it may have ended.
pub(crate) fn claimed() -> Option<String> {
    let eid = env::var_os("GENV_ENVIRONMENT_ID").filter(|eid| !eid.is_empty())?;
    Some(eid.to_string_lossy().into_owned())
}

/// As [`claimed`]; `task` is what cannot be done outside.
///
/// # Errors
/// It names none.
pub(crate) fn active(task: &'static str) -> Result<String, Failure> {
    claimed().ok_or(Failure::NotActive(task))
}

/// The environment, if it is there and belongs to the caller.
///
/// # Errors
/// It ended, or belongs to another user.
pub(crate) fn own<'a>(
    environments: &'a [EnvironmentState],
    eid: &str,
    task: &'static str,
) -> Result<&'a EnvironmentState, anyhow::Error> {
    let found = environments.iter().find(|it| it.eid == eid);
    let found = found.ok_or_else(|| Failure::Ended {
        task,
        eid: eid.to_owned(),
    })?;
    check_owner(found, task)?;
    Ok(found)
}

/// # Errors
/// The environment belongs to another user.
pub(crate) fn check_owner(environment: &EnvironmentState, task: &str) -> anyhow::Result<()> {
    if environment.uid == own_uid() {
        return Ok(());
    }
    let owner = environment.username.as_deref().unwrap_or("no known name");
    anyhow::bail!(
        "cannot {task}: environment {} belongs to another user ({}, uid {}). 'genv activate' with another id, or with none, starts one of your own",
        environment.eid.escape_debug(),
        owner.escape_debug(),
        environment.uid
    )
}

/// Sees to it that the caller may do something for this user from outside of an environment, as the user and root may.
///
/// # Errors
/// The caller is another user.
pub(crate) fn check_may_change(uid: u32, task: &str) -> anyhow::Result<()> {
    let caller = own_uid();
    anyhow::ensure!(
        caller == 0 || caller == uid,
        "cannot {task} of the user with uid {uid}: that is for them and for root. Ask them, or run it with sudo"
    );
    Ok(())
}

/// As [`check_may_change`], of an environment, if it is there.
///
/// # Errors
/// The environment belongs to another user.
pub(crate) fn check_outside(
    environments: &[EnvironmentState],
    eid: &str,
    task: &str,
) -> anyhow::Result<()> {
    let found = environments.iter().find(|it| it.eid == eid);
    found.map_or(Ok(()), |it| {
        check_may_change(
            it.uid,
            &format!("{task} environment {}", eid.escape_debug()),
        )
    })
}

/// An environment as a shell shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    eid: String,
    pub(crate) configuration: Configuration,
    pub(crate) devices: Vec<u32>,
}

impl Shown {
    /// An environment that is being changed.
    pub(crate) fn changed(state: &EditableState, eid: &str) -> Self {
        Self {
            eid: eid.to_owned(),
            configuration: state.configuration(eid).unwrap_or_default(),
            devices: state.attached(eid),
        }
    }

    /// One as it was read.
    pub(crate) fn now(state: &State, environment: &EnvironmentState) -> Self {
        Self {
            eid: environment.eid.clone(),
            configuration: configuration(environment),
            devices: state.attached(&environment.eid),
        }
    }

    /// As shell and child processes are told of it.
    pub(crate) fn for_shell(&self) -> ShellEnvironment<'_> {
        ShellEnvironment {
            eid: &self.eid,
            name: self.configuration.name.as_deref(),
            gpus: self.configuration.gpus,
            gpu_memory: self.configuration.gpu_memory,
            devices: &self.devices,
        }
    }
}

/// What an environment is configured with.
pub(crate) fn configuration(environment: &EnvironmentState) -> Configuration {
    Configuration {
        name: environment.name.clone(),
        gpus: environment.gpus,
        gpu_memory: environment.gpu_memory,
    }
}
