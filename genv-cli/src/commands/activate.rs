//! `genv activate`

use std::ffi::OsString;

use clap::Args;
use genv_core::model::MemoryAmount;
use genv_core::proc::own_uid;
use genv_core::state::allocate::{AttachRequest, Selection};
use genv_core::state::{Activation, Configuration, EditableState, MemberId, State, StoreError};

use crate::failure::EXIT_CODES;
use crate::machine::{Machine, Survey, tell};
use crate::own_environment::{self, Shown, check_lost, check_member, check_owner};
use crate::queue::{Asking, WaitFlag, obtain};
use crate::shell::Caller;
use crate::{completion, local_config, values};

const EXAMPLE: &str = "Example: an environment with two GPUs, as soon as they can be had
  genv activate --gpus 2 --wait

In a terminal beside it, to work in the same environment
  genv activate --id 12496";

/// Start an environment in this shell, or join one.
///
/// It is configured by a .genv folder in the working directory, above it or in the home directory, and
/// attached to as many devices as are configured. If they cannot be had nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Activate {
    /// Environment to join, or id of a new one. Without it: the shell's pid.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,

    #[command(flatten)]
    wanted: Wanted,

    /// Leave the prompt as it is.
    #[arg(long)]
    no_prompt: bool,

    /// Do not attach devices.
    #[arg(long)]
    no_attach: bool,
}

/// How an environment shall be.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// Name it.
    #[arg(long, value_name = "NAME", value_parser = values::name, allow_negative_numbers = true)]
    name: Option<String>,

    /// Configure how many devices it has.
    #[arg(long, value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    gpus: Option<u32>,

    /// Configure how much memory of each device it has, such as 4g, and share them. Without it: whole devices.
    #[arg(long, value_name = "MEMORY", value_parser = values::gpu_memory, allow_negative_numbers = true)]
    gpu_memory: Option<MemoryAmount>,

    /// Do not read a .genv folder.
    #[arg(long)]
    no_load: bool,

    /// Take devices of others too, if there are not enough.
    #[arg(short, long)]
    over_subscribe: bool,

    #[command(flatten)]
    wait: WaitFlag,
}

/// An environment to be entered.
pub(crate) struct Entry<'a> {
    pub(crate) eid: &'a str,
    pub(crate) member: u32,
    /// The shell, if it is one that enters.
    pub(crate) caller: Option<&'a Caller>,
    /// What a `.genv` configures.
    pub(crate) local: Configuration,
    pub(crate) attach: bool,
}

impl Activate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut machine = Machine::here()?;
        let caller = Caller::from_environment()?;
        let state = machine.state().unwrap_or_default();
        if let Some(eid) = own_environment::claimed()
            && state.environments.iter().any(|it| it.eid == eid)
        {
            // Whoever asks for what they have, as an editor's terminal does, has it.
            if self.eid.as_ref() == Some(&eid) {
                tell(&format!(
                    "environment {} is active already",
                    eid.escape_debug()
                ));
                return Ok(());
            }
            anyhow::bail!(
                "cannot activate: environment {} is active in this shell. 'genv deactivate' leaves it, 'genv status' tells of it",
                eid.escape_debug()
            );
        }
        check_member(caller.pid())?;
        let eid = self.eid.unwrap_or_else(|| free_id(&state, caller.pid()));
        let entry = Entry {
            eid: &eid,
            member: caller.pid(),
            caller: Some(&caller),
            local: self.wanted.local()?,
            attach: !self.no_attach,
        };
        let shown = self.wanted.enter(&mut machine, &entry)?;
        Ok(caller.enter(&shown.for_shell(), !self.no_prompt)?)
    }
}

/// A pid, unless it is the id of somebody else's environment: pids are used again.
pub(crate) fn free_id(state: &State, pid: u32) -> String {
    let uid = own_uid();
    let is_taken = |eid: &String| {
        let mut environments = state.environments.iter();
        environments.any(|it| it.eid == *eid && it.uid != uid)
    };
    let others = (2_u32..).map(|number| format!("{pid}-{number}"));
    let mut candidates = std::iter::once(pid.to_string()).chain(others);
    candidates
        .find(|eid| !is_taken(eid))
        .unwrap_or_else(|| pid.to_string())
}

impl Wanted {
    /// What the nearest `.genv` configures; nothing without one.
    pub(crate) fn local(&self) -> anyhow::Result<Configuration> {
        let folder = local_config::find().filter(|_| !self.no_load);
        let local = folder.map(|folder| local_config::load(&folder)).transpose();
        let local =
            local.map_err(|error| anyhow::anyhow!("{error}, or go without it by --no-load"))?;
        Ok(local.unwrap_or_default())
    }

    /// Makes the environment, or joins it, and attaches it: all of it or nothing.
    pub(crate) fn enter(&self, machine: &mut Machine, entry: &Entry<'_>) -> anyhow::Result<Shown> {
        let username = username();
        let change = |state: &mut EditableState, survey: &Survey| {
            self.change(state, survey, entry, username.as_deref())
        };
        // GPUs are asked only by those who want some.
        let may_attach = entry.attach
            && (self.gpus.or(entry.local.gpus).is_some() || {
                let state = machine.state().unwrap_or_default();
                state.environments.iter().any(|it| it.eid == entry.eid)
            });
        if !may_attach {
            return machine.update(|state| {
                let shown = change(state, &Survey::default())?;
                entry.caller.map_or(Ok(()), Caller::check)?;
                Ok(shown)
            });
        }
        let asking = Asking {
            eid: entry.eid,
            caller: entry.caller,
            over_subscribe: self.over_subscribe,
            wait: self.wait,
        };
        obtain(machine, asking, change)
    }

    fn change(
        &self,
        state: &mut EditableState,
        survey: &Survey,
        entry: &Entry<'_>,
        username: Option<&str>,
    ) -> anyhow::Result<Shown> {
        let eid = entry.eid;
        match state.environment(eid) {
            Some(environment) => check_owner(environment, "activate")?,
            None => check_lost(state, eid, "activate")?,
        }
        let member = MemberId::Process(entry.member);
        let activation = state.activate(eid, own_uid(), username, &member);
        // Those who are in it already go on as they are, whatever is in the folder of one who joins.
        let known = match activation {
            Activation::Created => entry.local.clone(),
            Activation::Joined => state.configuration(eid)?,
        };
        let configuration = Configuration {
            name: self.name.clone().or(known.name),
            gpus: self.gpus.or(known.gpus),
            gpu_memory: self.gpu_memory.or(known.gpu_memory),
        };
        let gpus = configuration.gpus;
        state.configure(eid, configuration)?;
        let untouched = state.attached(eid).is_empty() || self.gpus.is_some();
        if let Some(gpus) = gpus.filter(|_| entry.attach && untouched) {
            let request = AttachRequest {
                selection: Selection::Count(gpus),
                over_subscribe: self.over_subscribe,
                usage: survey.usage.clone(),
            };
            state.attach(eid, &request)?;
        }
        Ok(Shown::changed(state, eid))
    }
}

/// Takes back that a member entered.
pub(crate) fn leave(machine: &mut Machine, entry: &Entry<'_>) {
    let left = machine.update(|state| {
        state.leave(entry.eid, &MemberId::Process(entry.member));
        Ok::<_, StoreError>(())
    });
    if let Err(error) = left {
        tell(&error.to_string());
    }
}

/// The caller's name; may ask the network.
fn username() -> Option<String> {
    let user = uzers::get_user_by_uid(own_uid())?;
    OsString::from(user.name()).into_string().ok()
}
