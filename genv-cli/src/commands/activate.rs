//! `genv activate`

use std::path::PathBuf;

use clap::Args;
use genv_core::model::MemoryAmount;
use genv_core::proc::{find_username, in_initial_pid_namespace, own_pid_namespace, own_uid};
use genv_core::state::allocate::{AttachRequest, Selection};
use genv_core::state::{Activation, Configuration, EditableState, MemberId, State, StoreError};

use crate::announce::{Activated, HeldDevice, QuietFlag};
use crate::failure::EXIT_CODES;
use crate::machine::{Machine, Survey, tell};
use crate::own_environment::{self, Shown, check_lost, check_member, check_owner};
use crate::queue::{Asking, ForceFlag, WaitFlag, obtain};
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
    #[command(flatten)]
    wanted: Wanted,

    /// Environment to join, or id of a new one. Without it: the shell's pid, in a container with the number of its pid namespace.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,

    /// Do not attach devices.
    #[arg(long)]
    no_attach: bool,

    /// Leave the prompt as it is.
    #[arg(long)]
    no_prompt: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

/// How an environment shall be.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// Configure how many devices it has.
    #[arg(long, value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    gpus: Option<u32>,

    /// Configure how much memory of each device it has, such as 4g, and share them. Without it: whole devices.
    #[arg(long, value_name = "MEMORY", value_parser = values::gpu_memory, allow_negative_numbers = true)]
    gpu_memory: Option<MemoryAmount>,

    /// Name it.
    #[arg(long, value_name = "NAME", value_parser = values::name, allow_negative_numbers = true)]
    name: Option<String>,

    #[command(flatten)]
    wait: WaitFlag,

    /// Take devices of others too, if there are not enough.
    #[arg(short, long)]
    over_subscribe: bool,

    #[command(flatten)]
    force: ForceFlag,

    /// Do not read a .genv folder.
    #[arg(long)]
    no_load: bool,
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

/// The nearest `.genv` and its values.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) folder: Option<PathBuf>,
    pub(crate) configuration: Configuration,
}

/// An entered environment.
pub(crate) struct Entered {
    pub(crate) shown: Shown,
    activation: Activation,
    devices: Vec<HeldDevice>,
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
        let local = self.wanted.local()?;
        let entry = Entry {
            eid: &eid,
            member: caller.pid(),
            caller: Some(&caller),
            local: local.configuration,
            attach: !self.no_attach,
        };
        let entered = self.wanted.enter(&mut machine, &entry)?;
        let is_new = entered.activation == Activation::Created;
        let loaded = local.folder.as_deref().filter(|_| is_new);
        let announcer = self.quiet.announcer(&caller);
        announcer.announce(&Activated {
            eid: &eid,
            activation: entered.activation,
            devices: &entered.devices,
            configuration: &entered.shown.configuration,
            loaded: loaded.map(|folder| (folder, self.wanted.used_of(&entry.local))),
        });
        Ok(caller.enter(&entered.shown.for_shell(), !self.no_prompt)?)
    }
}

/// A pid as the id of a new environment. If another user's environment has this id (the kernel reuses pids), another
/// id. In a container the id ends with the number of its pid namespace, since other namespaces have the same pids
/// (`lsns --type pid` lists them).
pub(crate) fn free_id(state: &State, pid: u32) -> String {
    let uid = own_uid();
    let is_taken = |eid: &String| {
        let mut environments = state.environments.iter();
        environments.any(|it| it.eid == *eid && it.uid != uid)
    };
    let first = if in_initial_pid_namespace() {
        pid.to_string()
    } else {
        format!("{pid}-{}", own_pid_namespace())
    };
    let others = (2_u32..).map(|number| format!("{first}-{number}"));
    let mut candidates = std::iter::once(first.clone()).chain(others);
    candidates
        .find(|eid| !is_taken(eid))
        .unwrap_or_else(|| first.clone())
}

impl Wanted {
    /// The name for the environment.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What the nearest `.genv` configures; nothing without one.
    pub(crate) fn local(&self) -> anyhow::Result<Local> {
        let Some(folder) = local_config::find().filter(|_| !self.no_load) else {
            return Ok(Local::default());
        };
        let configuration = local_config::load(&folder)
            .map_err(|error| anyhow::anyhow!("{error}, or go without it by --no-load"))?;
        Ok(Local {
            folder: Some(folder),
            configuration,
        })
    }

    /// The effective values of a `.genv`: flags take precedence.
    fn used_of(&self, local: &Configuration) -> Configuration {
        let local = local.clone();
        Configuration {
            name: local.name.filter(|_| self.name.is_none()),
            gpus: local.gpus.filter(|_| self.gpus.is_none()),
            gpu_memory: local.gpu_memory.filter(|_| self.gpu_memory.is_none()),
        }
    }

    /// Makes the environment, or joins it, and attaches it: all of it or nothing.
    pub(crate) fn enter(
        &self,
        machine: &mut Machine,
        entry: &Entry<'_>,
    ) -> anyhow::Result<Entered> {
        // This call asks the name service: it must come before the lock of the state.
        let username = find_username(own_uid());
        let change = |state: &mut EditableState, survey: &Survey| {
            self.change(state, survey, entry, username.as_deref())
        };
        // The GPUs are needed only for an attachment.
        let may_attach = entry.attach
            && (self.gpus.or(entry.local.gpus).is_some() || {
                let state = machine.state().unwrap_or_default();
                state.environments.iter().any(|it| it.eid == entry.eid)
            });
        if !may_attach {
            return machine.update(|state| {
                let entered = change(state, &Survey::default())?;
                entry.caller.map_or(Ok(()), Caller::check)?;
                Ok(entered)
            });
        }
        let asking = Asking {
            eid: entry.eid,
            caller: entry.caller,
            over_subscribe: self.over_subscribe,
            force: self.force,
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
    ) -> anyhow::Result<Entered> {
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
        Ok(Entered {
            shown: Shown::changed(state, eid),
            activation,
            devices: HeldDevice::all(state, eid, &survey.models),
        })
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
