//! Updates a shell that is in an environment: after its start below another shell, at a command, or before a prompt.

use std::path::Path;
use std::{env, process};

use genv_core::model::ConfirmedChange;
use genv_core::proc::own_uid;
use genv_core::state::{Facts, MemberId, Refusal, Request, Requester, State, StateStore, StoreError, read_confirmed};

use super::device_changes::DeviceChanges;
use super::reminder::Reminders;
use super::variables::{Occasion, reminders, shown_devices, users_devices};
use super::{Caller, CallerError};
use crate::own_environment::{EnvironmentView, check_member};

/// The result for the environment in a shell's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// The shell shows the present environment. The texts, only for a prompt, are about changed devices and the end of the
    /// lease.
    Shown(Vec<String>),
    /// The shell has left an environment that it cannot be in. The text is the reason.
    Left(String),
    /// Nothing to do: the shell is in no environment, or in a container and cannot join its environment.
    Nothing,
}

/// The purpose of a call of [`resume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResumePurpose {
    /// Join the environment, for a shell that was started within it, and show it.
    Join,
    /// Show the present environment.
    Refresh,
    /// Show the present environment before a prompt: the user's own `CUDA_VISIBLE_DEVICES` stays.
    Prompt,
}

/// The error of an unchanged shell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResumeError {
    #[error(transparent)]
    State(#[from] genv_core::state::StateError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Caller(#[from] CallerError),
}

/// Updates the shell to the present state of its environment. If it has ended or belongs to another user, the shell leaves.
pub(crate) fn resume(caller: Caller, store: &mut StateStore, purpose: ResumePurpose) -> Result<Resumed, ResumeError> {
    let Some(eid) = env::var_os("GENV_ENVIRONMENT_ID") else {
        return Ok(Resumed::Nothing);
    };
    if env::var_os("GENV_CONTAINER").is_some() {
        return Ok(Resumed::Nothing);
    }
    let eid = eid.to_string_lossy().into_owned();
    let pid = caller.pid();
    let since = caller.seen();
    if purpose == ResumePurpose::Prompt {
        // Otherwise an unreadable file would cause a call before each prompt.
        caller.mark_seen();
    }
    // Most shells are members already, and need no lock.
    let state = store.read()?;
    let mut found = find(&state, &eid, pid);
    store.note_news();
    if purpose == ResumePurpose::Join && found.as_ref().is_ok_and(|(_, member)| !member) {
        if let Err(why) = check_member(pid) {
            caller.leave()?;
            return Ok(Resumed::Left(why.to_string()));
        }
        let request = Request::Join { eid: eid.clone(), member: MemberId::Process(pid), founder: None };
        let requester = Requester { uid: own_uid(), pid: process::id() };
        let joined = store.change(&request, &requester, &Facts::default(), |_, after, _| {
            Ok((EnvironmentView::changed(after, &eid), true))
        });
        found = match joined {
            Err(ResumeError::Refused(_)) => Err(ended(&eid)),
            joined => Ok(joined?),
        };
    }
    match found {
        Ok((shown, _)) if purpose == ResumePurpose::Prompt => {
            let variable = |name: &str| env::var_os(name);
            let changes = DeviceChanges {
                state: &state,
                eid: &eid,
                seen: since,
                before: shown_devices(variable),
                users: users_devices(variable),
                now: &shown.devices,
            };
            let due = shown.lease_end.map(Reminders::due);
            let reminder = due.and_then(|due| due.line(reminders(variable), &eid));
            let lines = changes.line().into_iter().chain(reminder).collect();
            caller.show(&shown.for_shell(), Occasion::Prompt)?;
            Ok(Resumed::Shown(lines))
        }
        Ok((shown, _)) => {
            caller.refresh(&shown.for_shell())?;
            Ok(Resumed::Shown(Vec::new()))
        }
        Err(_) if purpose == ResumePurpose::Prompt && !has_ended(store.path(), &eid) => {
            Ok(Resumed::Shown(vec![disputed(&eid)]))
        }
        Err(why) => {
            caller.leave()?;
            Ok(Resumed::Left(why))
        }
    }
}

/// The user's environment, and whether this process is one of its shells.
///
/// # Errors
/// The shell cannot be in the environment; the text is the reason.
fn find(state: &State, eid: &str, pid: u32) -> Result<(EnvironmentView, bool), String> {
    let environment = state.environments.iter().find(|it| it.eid == eid);
    let environment = environment.ok_or_else(|| ended(eid))?;
    if environment.uid != own_uid() {
        return Err(format!("environment {} belongs to another user", eid.escape_debug()));
    }
    let member = environment.shells().any(|it| it == pid);
    Ok((EnvironmentView::now(state, environment), member))
}

/// Whether a command of this user or of root ended an environment, and did not create another one with its id afterwards.
/// Without this confirmation any user may have removed or changed the record.
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
        "the state does not have your environment {} any more, and no command of yours or of root ended it: this shell \
                 keeps its variables. 'genv envs' lists the environments, 'genv deactivate' leaves this one",
        eid.escape_debug()
    )
}

fn ended(eid: &str) -> String {
    format!("environment {} has ended", eid.escape_debug())
}
