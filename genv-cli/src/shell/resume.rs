//! A shell that is in an environment already when it starts, because its parent was, or that asks how it is now.

use std::env;

use genv_core::state::{MemberId, State, StateStore, StoreError};

use super::{Caller, CallerError};
use crate::own_environment::{Shown, check_member};

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
    store.note_news();
    if join && found.as_ref().is_ok_and(|(_, member)| !member) {
        if let Err(why) = check_member(pid) {
            caller.leave()?;
            return Ok(Resumed::Left(why.to_string()));
        }
        found = store.update(|state| {
            let uid = genv_core::proc::own_uid();
            let still_there = state.environment(&eid).is_some_and(|it| it.uid == uid);
            if !still_there {
                return Ok::<_, StoreError>(Err(ended(&eid)));
            }
            state.activate(&eid, uid, None, &MemberId::Process(pid));
            Ok(Ok((Shown::changed(state, &eid), true)))
        })?;
    }
    match found {
        Ok((shown, _)) => {
            caller.refresh(&shown.for_shell())?;
            Ok(Resumed::Shown)
        }
        Err(why) => {
            caller.leave()?;
            Ok(Resumed::Left(why))
        }
    }
}

/// The environment and whether this process is one of its shells, if it is there and the user's; otherwise why the shell cannot
/// be in it.
fn find(state: &State, eid: &str, pid: u32) -> Result<(Shown, bool), String> {
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let environment = environment.ok_or_else(|| ended(eid))?;
    if environment.uid != genv_core::proc::own_uid() {
        return Err(format!(
            "environment {} is another user's",
            eid.escape_debug()
        ));
    }
    let member = state.shells(environment).any(|it| it == pid);
    Ok((Shown::now(state, environment), member))
}

fn ended(eid: &str) -> String {
    format!("environment {} has ended", eid.escape_debug())
}
