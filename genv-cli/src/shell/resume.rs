//! A shell that is in an environment already when it starts, because its parent was, or that asks how it is now.

use std::env;
use std::path::Path;

use genv_core::model::ConfirmedChange;
use genv_core::proc::own_uid;
use genv_core::state::{MemberId, State, StateStore, StoreError, read_confirmed};

use super::news::News;
use super::reminder::Reminders;
use super::variables::{Occasion, reminders, shown_devices, users_devices};
use super::{Caller, CallerError};
use crate::own_environment::{Shown, check_member};

/// What became of the environment that a shell's variables name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// The shell shows the present environment. The texts, for a prompt only, name the changes of its devices and the end of
    /// its lease.
    Shown(Vec<String>),
    /// The shell showed an environment that it cannot be in, and shows none now. The text gives the reason.
    Left(String),
    /// Nothing to do: the shell is in no environment, or in a container whose environment it cannot join.
    Nothing,
}

/// The request of a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Become a member of the environment, as every shell that was started within one, and show the environment.
    Join,
    /// Show the environment as it is now.
    Refresh,
    /// The same for a prompt: the user's own `CUDA_VISIBLE_DEVICES` stays.
    Prompt,
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
pub(crate) fn resume(caller: Caller, store: &mut StateStore, wish: Wish) -> Result<Resumed, ResumeError> {
    let Some(eid) = env::var_os("GENV_ENVIRONMENT_ID") else {
        return Ok(Resumed::Nothing);
    };
    if env::var_os("GENV_CONTAINER").is_some() {
        return Ok(Resumed::Nothing);
    }
    let eid = eid.to_string_lossy().into_owned();
    let pid = caller.pid();
    let since = caller.seen();
    if wish == Wish::Prompt {
        // An unreadable file must not cause a new attempt before each prompt.
        caller.mark_seen();
    }
    // Most shells have joined or have nothing to join: neither needs the lock.
    let state = store.read()?;
    let mut found = find(&state, &eid, pid);
    store.note_news();
    if wish == Wish::Join && found.as_ref().is_ok_and(|(_, member)| !member) {
        if let Err(why) = check_member(pid) {
            caller.leave()?;
            return Ok(Resumed::Left(why.to_string()));
        }
        found = store.update(|state| {
            let uid = own_uid();
            let still_there = state.environment(&eid).is_some_and(|it| it.uid == uid);
            if !still_there {
                return Ok::<_, StoreError>(Err(ended(&eid)));
            }
            state.activate(&eid, uid, None, &MemberId::Process(pid));
            Ok(Ok((Shown::changed(state, &eid), true)))
        })?;
    }
    match found {
        Ok((shown, _)) if wish == Wish::Prompt => {
            let variable = |name: &str| env::var_os(name);
            let news = News {
                state: &state,
                eid: &eid,
                seen: since,
                before: shown_devices(variable),
                users: users_devices(variable),
                now: &shown.devices,
            };
            let due = shown.lease_end.map(Reminders::due);
            let reminder = due.and_then(|due| due.line(reminders(variable), &eid));
            let lines = news.line().into_iter().chain(reminder).collect();
            caller.show(&shown.for_shell(), Occasion::Prompt)?;
            Ok(Resumed::Shown(lines))
        }
        Ok((shown, _)) => {
            caller.refresh(&shown.for_shell())?;
            Ok(Resumed::Shown(Vec::new()))
        }
        Err(_) if wish == Wish::Prompt && !has_ended(store.path(), &eid) => Ok(Resumed::Shown(vec![disputed(&eid)])),
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
    if environment.uid != own_uid() {
        return Err(format!("environment {} is another user's", eid.escape_debug()));
    }
    let member = state.shells(environment).any(|it| it == pid);
    Ok((Shown::now(state, environment), member))
}

/// Whether a command of this user or of root ended an environment, and none made another one with its id. Without such
/// a confirmation any user may have removed or changed the record.
fn has_ended(directory: &Path, eid: &str) -> bool {
    let confirmed = [own_uid(), 0].map(|uid| read_confirmed(directory, uid));
    let latest = |is_it: fn(&ConfirmedChange) -> bool| {
        let changes = confirmed.iter().flatten().filter(|it| it.eid == eid);
        let changes = changes.filter(|it| is_it(&it.change));
        changes.map(|it| it.at_seconds).reduce(f64::max)
    };
    let ended = latest(|it| matches!(it, ConfirmedChange::Ended));
    ended > latest(|it| matches!(it, ConfirmedChange::Joined { .. }))
}

fn disputed(eid: &str) -> String {
    format!(
        "the state files do not have environment {} of yours any more, and no command of yours or of root ended it: this shell \
         keeps its variables. 'genv envs' shows which environments there are, 'genv deactivate' leaves this one",
        eid.escape_debug()
    )
}

fn ended(eid: &str) -> String {
    format!("environment {} has ended", eid.escape_debug())
}
