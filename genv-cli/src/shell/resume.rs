//! A shell that is in an environment already when it starts, because its parent was, or that asks how it is now.

use std::env;

use genv_core::state::{Configuration, MemberId, State, StateStore, StoreError};

use super::{Caller, CallerError, ShellEnvironment};

/// What became of the environment that a shell's variables name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// The shell shows it as it is now.
    Shown,
    /// The shell showed an environment that it cannot be in, and shows none any more. This is why.
    Left(String),
    /// There is nothing to do: the shell is in no environment, or in a container, whose environment is not its own to join.
    Nothing,
}

/// Why the shell stays as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error(transparent)]
    State(#[from] genv_core::state::StateError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Caller(#[from] CallerError),
}

/// An environment as it is now.
struct Found {
    eid: String,
    configuration: Configuration,
    devices: Vec<u32>,
    member: bool,
}

/// Shows the shell the environment that its variables name, as it is now. If it ended, or is another user's, the shell leaves.
///
/// `join`: the shell becomes a member of it, as every shell that was started within an environment.
pub(crate) fn resume(
    caller: Caller,
    store: &mut StateStore,
    join: bool,
) -> Result<Resumed, ResumeError> {
    let Some(eid) = env::var_os("GENV_ENVIRONMENT_ID") else {
        return Ok(Resumed::Nothing);
    };
    if env::var_os("GENV_CONTAINER").is_some() {
        return Ok(Resumed::Nothing);
    }
    let eid = eid.to_string_lossy().into_owned();
    let pid = caller.pid();
    // Most shells have joined or have nothing to join: neither needs the lock.
    let mut found = find(&store.read()?, &eid, pid);
    if join && found.as_ref().is_ok_and(|found| !found.member) {
        found = store.update(|state| {
            let uid = rustix::process::getuid().as_raw();
            let still_there = state.environment(&eid).is_some_and(|it| it.uid == uid);
            if still_there {
                state.activate(&eid, uid, None, &MemberId::Process(pid));
            }
            Ok::<_, StoreError>(if still_there { found } else { Err(ended(&eid)) })
        })?;
    }
    match found {
        Ok(found) => {
            caller.refresh(&ShellEnvironment {
                eid: &found.eid,
                name: found.configuration.name.as_deref(),
                gpus: found.configuration.gpus,
                gpu_memory: found.configuration.gpu_memory,
                devices: &found.devices,
            })?;
            Ok(Resumed::Shown)
        }
        Err(why) => {
            caller.leave()?;
            Ok(Resumed::Left(why))
        }
    }
}

/// The environment, if it is there and the user's; otherwise why the shell cannot be in it.
fn find(state: &State, eid: &str, pid: u32) -> Result<Found, String> {
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let environment = environment.ok_or_else(|| ended(eid))?;
    if environment.uid != rustix::process::getuid().as_raw() {
        return Err(format!(
            "environment {} is another user's",
            eid.escape_debug()
        ));
    }
    Ok(Found {
        eid: eid.to_owned(),
        configuration: Configuration {
            name: environment.name.clone(),
            gpus: environment.gpus,
            gpu_memory: environment.gpu_memory,
        },
        devices: state.attached(eid),
        member: environment.pids.contains(&pid),
    })
}

fn ended(eid: &str) -> String {
    format!("environment {} has ended", eid.escape_debug())
}
