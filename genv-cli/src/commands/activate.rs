//! `genv activate`

use std::collections::BTreeSet;

use clap::Args;
use genv_core::model::MemoryAmount;
use genv_core::proc::{find_username, in_initial_pid_namespace, own_pid_namespace, own_uid};
use genv_core::state::allocate::DeviceKind;
use genv_core::state::{Activation, Configuration, Enter, Reply, Request, State, Wish};

use crate::announce::{Activated, AttachedDevice, QuietFlag};
use crate::choice::KindFlags;
use crate::failure::EXIT_CODES;
use crate::lease::LeaseFlag;
use crate::local_config::{LocalConfig, Source};
use crate::machine::Machine;
use crate::output::print_note;
use crate::own_environment::{self, EnvironmentView, check_member};
use crate::queue::{DeviceRequest, ForceFlag, WaitFlag, obtain};
use crate::shell::{self, Caller};
use crate::{completion, local_config, values};

const EXAMPLE: &str = "Example: wait for two A100, and announce their use for a working day
  genv activate --gpus 2 --gpu-type a100 --wait --for 8h

Join this environment in another terminal
  genv activate --id 12496";

/// Start an environment in this shell, or join one.
///
/// The configuration comes from a .genv folder, a genv.toml or the table [tool.genv] of a pyproject.toml, in the working directory, above it
/// or in the home directory. genv attaches the configured number of devices, of one model if possible. If the devices are not available, nothing changes.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLE}\n\n{EXIT_CODES}"))]
pub(crate) struct Activate {
    #[command(flatten)]
    environment: EnvironmentFlags,

    /// Environment to join, or id for a new one. Default: the shell's pid, with the number of the pid namespace in a container.
    #[arg(long, visible_alias = "id", value_name = "EID", value_parser = values::eid, allow_negative_numbers = true, add = completion::environments())]
    eid: Option<String>,

    /// Do not attach devices.
    #[arg(long, conflicts_with_all = ["index", "gpu_type", "gpu_memory_at_least"])]
    no_attach: bool,

    /// Do not show the environment in the prompt.
    #[arg(long)]
    no_prompt: bool,

    #[command(flatten)]
    quiet: QuietFlag,
}

/// Flags for the configuration and the devices of an environment.
#[derive(Debug, Args)]
pub(crate) struct EnvironmentFlags {
    /// Configure and attach this number of devices.
    #[arg(long, value_name = "N", value_parser = values::gpus, allow_negative_numbers = true)]
    gpus: Option<u32>,

    /// Attach the devices with these indices, such as 2,3, and configure their number.
    #[arg(long, value_name = "INDEX", value_delimiter = ',', value_parser = values::index, allow_negative_numbers = true, add = completion::devices(), conflicts_with_all = ["gpus", "gpu_type", "gpu_memory_at_least"])]
    index: Vec<u32>,

    #[command(flatten)]
    kind: KindFlags,

    /// Claim this memory of each device, such as 4g, and share the devices. Default: whole devices.
    #[arg(long, value_name = "MEMORY", value_parser = values::gpu_memory, allow_negative_numbers = true)]
    gpu_memory: Option<MemoryAmount>,

    /// Name the environment.
    #[arg(long, value_name = "NAME", value_parser = values::name, allow_negative_numbers = true)]
    name: Option<String>,

    #[command(flatten)]
    lease: LeaseFlag,

    #[command(flatten)]
    pub(crate) wait: WaitFlag,

    /// Share devices that other environments hold, if too few are free.
    #[arg(short, long)]
    over_subscribe: bool,

    #[command(flatten)]
    force: ForceFlag,

    /// Do not read a .genv folder, genv.toml or pyproject.toml.
    #[arg(long)]
    no_load: bool,
}

pub(crate) struct EnterRequest<'a> {
    pub(crate) eid: &'a str,
    pub(crate) member: u32,
    /// The shell that enters; absent for a command.
    pub(crate) caller: Option<&'a Caller>,
    /// The values of a `.genv` folder or a configuration file.
    pub(crate) local: LocalConfig,
    pub(crate) attach: bool,
}

/// The nearest `.genv` folder or configuration file, with its values.
#[derive(Default)]
pub(crate) struct LoadedConfig {
    pub(crate) source: Option<Source>,
    pub(crate) config: LocalConfig,
}

pub(crate) struct EnteredEnvironment {
    pub(crate) shown: EnvironmentView,
    activation: Activation,
    pub(crate) devices: Vec<AttachedDevice>,
}

impl Activate {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if shell::is_envrc() {
            anyhow::bail!(
                "cannot activate in .envrc: direnv runs it in a shell of its own, and the environment would end with that shell. \
                 Run 'genv activate' in your shell. There 'mkdir -p .genv && genv config --save' keeps the configuration for the folder"
            );
        }
        let mut machine = Machine::here()?;
        let caller = Caller::from_environment()?;
        let state = machine.state().unwrap_or_default();
        if let Some(eid) = own_environment::claimed_eid()
            && state.environments.iter().any(|it| it.eid == eid)
        {
            // An editor can run the command in each terminal, also where the environment is active.
            if self.eid.as_ref() == Some(&eid) {
                anyhow::ensure!(
                    !self.environment.changes(),
                    "cannot activate: environment {} is active in this shell. 'genv attach', 'genv config' and 'genv extend' change it",
                    eid.escape_debug()
                );
                print_note(&format!("environment {} is active already", eid.escape_debug()));
                return Ok(());
            }
            anyhow::bail!(
                "cannot activate: environment {} is active in this shell. 'genv deactivate' leaves it, 'genv status' shows it",
                eid.escape_debug()
            );
        }
        check_member(caller.pid())?;
        let eid = self.eid.unwrap_or_else(|| free_id(&state, caller.pid()));
        let local = self.environment.local()?;
        let entry = EnterRequest {
            eid: &eid,
            member: caller.pid(),
            caller: Some(&caller),
            local: local.config,
            attach: !self.no_attach,
        };
        let entered = self.environment.enter(&mut machine, &entry)?;
        let is_new = entered.activation == Activation::Created;
        let loaded = local.source.as_ref().filter(|_| is_new);
        if caller.is_subshell() {
            print_note(
                "this is a subshell, as in a pipe or with '&': the environment ends with it, and your shell is in no environment",
            );
        }
        let announcer = self.quiet.announcer(&caller);
        announcer.announce(&Activated {
            eid: &eid,
            activation: entered.activation,
            devices: &entered.devices,
            configuration: &entered.shown.configuration,
            lease_end: entered.shown.lease_end.filter(|_| is_new || self.environment.lease.duration.is_some()),
            loaded: loaded.map(|source| (source.path(), self.environment.effective(&entry.local))),
        });
        Ok(caller.enter(&entered.shown.for_shell(), !self.no_prompt)?)
    }
}

/// An unused id for a new environment: a pid. A number is added if another user's environment has this id, since the kernel
/// reuses pids. In a container the id ends with the number of the pid namespace (`lsns --type pid`), since other namespaces
/// have the same pids.
pub(crate) fn free_id(state: &State, pid: u32) -> String {
    let uid = own_uid();
    let is_taken = |eid: &String| {
        let mut environments = state.environments.iter();
        environments.any(|it| it.eid == *eid && it.uid != uid)
    };
    let first = if in_initial_pid_namespace() { pid.to_string() } else { format!("{pid}-{}", own_pid_namespace()) };
    let others = (2_u32..).map(|number| format!("{first}-{number}"));
    let mut candidates = std::iter::once(first.clone()).chain(others);
    candidates.find(|eid| !is_taken(eid)).unwrap_or_else(|| first.clone())
}

impl EnvironmentFlags {
    /// Whether a flag changes the environment.
    fn changes(&self) -> bool {
        self.number().is_some()
            || !self.kind.kind().is_any()
            || self.gpu_memory.is_some()
            || self.name.is_some()
            || self.lease.duration.is_some()
    }

    /// The name for the environment.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The nearest `.genv` folder or configuration file; the default without one.
    pub(crate) fn local(&self) -> anyhow::Result<LoadedConfig> {
        if self.no_load {
            return Ok(LoadedConfig::default());
        }
        let search = local_config::find();
        if let Some(skipped) = search.skipped() {
            print_note(&format!("{skipped}. '--no-load' suppresses this note"));
        }
        let Some(source) = search.source else {
            return Ok(LoadedConfig::default());
        };
        let config = source.load().map_err(|error| anyhow::anyhow!("{error}, or ignore it with --no-load"))?;
        Ok(LoadedConfig { source: Some(source), config })
    }

    /// The effective values of a configuration: a flag takes precedence over the value of the same name.
    fn effective(&self, local: &LocalConfig) -> LocalConfig {
        let LocalConfig { configuration, kind, lease } = local.clone();
        let own = self.kind.kind();
        // Indices select the devices whatever their kind is.
        let kind = if self.index.is_empty() { kind } else { DeviceKind::default() };
        LocalConfig {
            configuration: Configuration {
                name: configuration.name.filter(|_| self.name.is_none()),
                gpus: configuration.gpus.filter(|_| self.number().is_none()),
                gpu_memory: configuration.gpu_memory.filter(|_| self.gpu_memory.is_none()),
            },
            kind: DeviceKind {
                types: if own.types.is_empty() { kind.types } else { Vec::new() },
                memory_at_least: kind.memory_at_least.filter(|_| own.memory_at_least.is_none()),
            },
            lease: lease.filter(|_| self.lease.duration.is_none()),
        }
    }

    /// The kind of the devices of a new environment.
    fn new_kind(&self, local: &LocalConfig) -> DeviceKind {
        let (mut own, local) = (self.kind.kind(), self.effective(local).kind);
        own.types.extend(local.types);
        own.memory_at_least = own.memory_at_least.or(local.memory_at_least);
        own
    }

    /// The kind of the accepted_kind devices. The configuration of the working directory does not count for an existing environment.
    fn accepted_kind(&self, machine: &mut Machine, entry: &EnterRequest<'_>) -> DeviceKind {
        let is_there = |machine: &mut Machine| {
            let state = machine.state().unwrap_or_default();
            state.environments.iter().any(|it| it.eid == entry.eid)
        };
        if entry.local.kind.is_any() || is_there(machine) {
            return self.kind.kind();
        }
        self.new_kind(&entry.local)
    }

    /// The number of devices in the flags.
    fn number(&self) -> Option<u32> {
        let indices: BTreeSet<&u32> = self.index.iter().collect();
        match indices.len() {
            0 => self.gpus,
            number => u32::try_from(number).ok(),
        }
    }

    /// Creates or joins the environment, and attaches its devices. After an error nothing has changed.
    pub(crate) fn enter(&self, machine: &mut Machine, entry: &EnterRequest<'_>) -> anyhow::Result<EnteredEnvironment> {
        // The name service may be slow: this call must precede the lock of the state.
        let username = find_username(own_uid());
        let kind = self.accepted_kind(machine, entry);
        // The GPUs are read only for an attachment.
        let may_attach = entry.attach
            && (self.number().or(entry.local.configuration.gpus).is_some() || !kind.is_any() || {
                let state = machine.state().unwrap_or_default();
                state.environments.iter().any(|it| it.eid == entry.eid)
            });
        let enter = Request::Enter(Box::new(Enter {
            eid: entry.eid.to_owned(),
            member: entry.member,
            username,
            name: self.name.clone(),
            gpu_memory: self.gpu_memory,
            lease: self.lease.duration,
            local: entry.local.configuration.clone(),
            local_lease: entry.local.lease,
            kind_if_new: self.new_kind(&entry.local),
            attach: entry.attach,
            wish: Wish {
                indices: self.index.iter().copied().collect(),
                count: self.gpus,
                kind: self.kind.kind(),
                over_subscribe: self.over_subscribe,
                ..self.wait.wish(self.force)
            },
        }));
        let request = DeviceRequest {
            request: &enter,
            eid: entry.eid,
            kind: &kind,
            caller: entry.caller,
            wait: self.wait,
            asks_driver: may_attach,
        };
        obtain(machine, request, |granted| EnteredEnvironment {
            shown: EnvironmentView::changed(granted.after, entry.eid),
            activation: match granted.reply {
                Reply::Entered(activation, _) => *activation,
                _ => Activation::Joined,
            },
            devices: AttachedDevice::all(granted.after, entry.eid, granted.models),
        })
    }
}
