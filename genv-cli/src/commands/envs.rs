//! `genv envs`

use std::io;

use clap::{Args, Subcommand, ValueEnum};
use genv_core::state::shape::{EnvironmentsDocument, Times};
use genv_core::state::{Configuration, EnvironmentState, MemberId, State};
use serde_json::{Value, json};

use super::query::{self, answer};
use crate::ago::{ago, now_seconds};
use crate::completion;
use crate::failure::Failure;
use crate::lease;
use crate::machine::Machine;
use crate::output::{Cell, Format, JsonFlag, ListFlags, Table, csv_line, print, print_csv, print_json, stdout};
use crate::own_environment::{check_may_change, check_member, check_outside};
use crate::users::Users;
use crate::values;

const EXAMPLE: &str = "Example: names of all environments, a line each
  genv envs query --query eid config.name";

/// List the environments of this machine, or change one from outside.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Envs {
    #[command(flatten)]
    list: ListFlags,

    /// Leave members that ended where they are.
    #[arg(long)]
    no_cleanup: bool,

    /// End all environments, of everybody, before anything else.
    #[arg(long)]
    reset: bool,

    #[command(subcommand)]
    command: Option<EnvsCommand>,
}

#[derive(Debug, Subcommand)]
enum EnvsCommand {
    /// Add a process or a Jupyter kernel to an environment, which is made if it is not there.
    Activate {
        /// Environment.
        #[arg(long, value_name = "EID", value_parser = values::eid)]
        eid: String,
        /// User of a new environment.
        #[arg(long, value_name = "UID", value_parser = values::uid, allow_negative_numbers = true)]
        uid: u32,
        /// That user's name.
        #[arg(long, value_name = "NAME", value_parser = values::username)]
        username: Option<String>,
        #[command(flatten)]
        member: MemberFlags,
    },
    /// Configure an environment.
    Config {
        /// Environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        #[command(subcommand)]
        field: Field,
    },
    /// Remove a process or a Jupyter kernel from the environments that it is in.
    Deactivate {
        #[command(flatten)]
        member: MemberFlags,
    },
    /// Print the environments that a process or a Jupyter kernel is in.
    Find {
        #[command(flatten)]
        member: MemberFlags,
        #[command(flatten)]
        output: JsonFlag,
    },
    /// List the environments.
    Ps {
        #[command(flatten)]
        list: ListFlags,
    },
    /// Print fields of all environments or of one, a line for each environment.
    Query {
        /// Environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: Option<String>,
        /// What to print.
        #[arg(long, alias = "queries", value_name = "FIELD", required = true, num_args = 1.., overrides_with = "query")]
        query: Vec<Query>,
        #[command(flatten)]
        output: JsonFlag,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct MemberFlags {
    /// Process.
    #[arg(long, value_name = "PID", value_parser = values::pid, allow_negative_numbers = true)]
    pid: Option<u32>,
    /// Jupyter kernel.
    #[arg(long, value_name = "ID", value_parser = values::kernel_id)]
    kernel_id: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Field {
    /// Its name.
    #[command(group = clap::ArgGroup::new("value").required(true))]
    Name {
        /// New name.
        #[arg(long, value_name = "NAME", group = "value", value_parser = values::name)]
        name: Option<String>,
        /// Remove it.
        #[arg(long, group = "value")]
        clear: bool,
    },
    /// How many devices it is attached to.
    #[command(group = clap::ArgGroup::new("value").required(true))]
    Gpus {
        /// New number.
        #[arg(long, value_name = "COUNT", group = "value", value_parser = values::gpus, allow_negative_numbers = true)]
        count: Option<u32>,
        /// Remove it.
        #[arg(long, group = "value")]
        clear: bool,
    },
    /// How much memory of each device it claims.
    #[command(group = clap::ArgGroup::new("value").required(true))]
    GpuMemory {
        /// New amount, such as 4g.
        #[arg(long, value_name = "AMOUNT", group = "value", value_parser = values::gpu_memory)]
        gpu_memory: Option<genv_core::model::MemoryAmount>,
        /// Remove it.
        #[arg(long, group = "value")]
        clear: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Query {
    Eid,
    Creation,
    Uid,
    Username,
    #[value(name = "config.name")]
    Name,
    #[value(name = "config.gpus")]
    Gpus,
    #[value(name = "config.gpu_memory")]
    GpuMemory,
    Pids,
    #[value(name = "kernel_ids")]
    KernelIds,
}

impl Envs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let list = ListFlags::default();
        let command = match self.command.unwrap_or(EnvsCommand::Ps { list }) {
            EnvsCommand::Ps { list } => EnvsCommand::Ps { list: list.or(&self.list) },
            other if self.list.is_default() => other,
            _ => return Err(misplaced("envs").into()),
        };
        let mut machine = Machine::here()?.cleaning(!self.no_cleanup);
        if self.reset {
            machine.update(|state| {
                let known = state.environments().iter().map(|it| it.eid.as_str());
                for eid in known.chain(state.lost().map(|(eid, _)| eid)) {
                    check_outside(state, eid, "end")?;
                }
                state.reset_environments();
                Ok::<_, anyhow::Error>(())
            })?;
        }
        command.run(&mut machine)
    }
}

/// Flags of a list given with what prints none.
pub(super) fn misplaced(command: &str) -> Failure {
    Failure::Usage(format!(
        "cannot print a list here: --format, --json, --no-header and --timestamp before a command go with \
         'genv {command}' and 'genv {command} ps'. Give them after the command, if it knows them"
    ))
}

impl EnvsCommand {
    fn run(self, machine: &mut Machine) -> anyhow::Result<()> {
        match self {
            Self::Activate { eid, uid, username, member } => {
                let member = member.id();
                let may_be_member = match member {
                    MemberId::Process(pid) => check_member(pid),
                    MemberId::Kernel(_) => Ok(()),
                };
                machine.update(|state| {
                    check_outside(state, &eid, "join")?;
                    if state.environment(&eid).is_none() {
                        check_may_change(uid, "activate an environment")?;
                    }
                    may_be_member?;
                    state.activate(&eid, uid, username.as_deref(), &member);
                    Ok::<_, anyhow::Error>(())
                })?;
            }
            Self::Config { eid, field } => machine.update(|state| {
                check_outside(state, &eid, "configure")?;
                let mut configuration = state.configuration(&eid)?;
                field.set(&mut configuration);
                Ok::<_, anyhow::Error>(state.configure(&eid, configuration)?)
            })?,
            Self::Deactivate { member } => {
                let member = member.id();
                machine.update(|state| {
                    let environments = state.environments().iter();
                    for environment in environments.filter(|it| it.has(&member)) {
                        check_outside(state, &environment.eid, "leave")?;
                    }
                    state.deactivate(&member);
                    Ok::<_, anyhow::Error>(())
                })?;
            }
            Self::Find { member, output } => {
                let state = machine.state()?;
                let found = found(&state, &member.id());
                if output.json {
                    print_json(&found)?;
                } else {
                    let lines = found.iter().map(|eid| csv_line([eid]));
                    print(lines.collect::<String>().as_bytes())?;
                }
            }
            Self::Ps { list } => list_environments(&machine.state()?, &list)?,
            Self::Query { eid, query, output } => {
                let state = machine.state()?;
                let environments = state.environments.iter();
                let asked = environments.filter(|it| eid.as_ref().is_none_or(|eid| *eid == it.eid));
                answer(asked, &query, output.json)?;
            }
        }
        Ok(())
    }
}

impl MemberFlags {
    fn id(self) -> MemberId {
        match (self.pid, self.kernel_id) {
            (Some(pid), _) => MemberId::Process(pid),
            (None, id) => MemberId::Kernel(id.unwrap_or_default()),
        }
    }
}

impl Field {
    fn set(self, configuration: &mut Configuration) {
        match self {
            Self::Name { name, .. } => configuration.name = name,
            Self::Gpus { count, .. } => configuration.gpus = count,
            Self::GpuMemory { gpu_memory, .. } => configuration.gpu_memory = gpu_memory,
        }
    }
}

fn found<'a>(state: &'a State, member: &MemberId) -> Vec<&'a str> {
    let environments = state.environments.iter();
    let environments = environments.filter(|it| it.has(member));
    environments.map(|it| it.eid.as_str()).collect()
}

fn list_environments(state: &State, flags: &ListFlags) -> io::Result<()> {
    let times = Times::here();
    if flags.json {
        let document = EnvironmentsDocument::new(&state.environments, &times);
        return print_json(&document.with_leases(&state.leases));
    }
    let created = |it: &EnvironmentState| match it.created_timestamp_seconds {
        Some(created) if !flags.timestamp => ago(created, now_seconds()),
        created => times.text(created),
    };
    if flags.format == Some(Format::Csv) {
        let lines = state.environments.iter().map(|it| {
            let name = it.name.as_deref().unwrap_or_default();
            let user = recorded_user(it);
            csv_line([&it.eid, &user, name, &created(it), &joined(&it.pids)])
        });
        return print_csv("ID,USER,NAME,CREATED,PID(S)", !flags.no_header, lines);
    }
    let header = &["ID", "USER", "NAME", "CREATED", "UNTIL", "DEVICES", "PID(S)"];
    let mut table = Table::new(header).header(!flags.no_header);
    let attached = state.all_attached();
    let mut users = Users::default();
    for it in &state.environments {
        let attached = attached.get(it.eid.as_str());
        table.row([
            Cell::foreign(&it.eid),
            users.cell(it.uid),
            Cell::foreign(it.name.as_deref().unwrap_or_default()),
            Cell::own(created(it)),
            lease::cell(state.lease_end(&it.eid)),
            Cell::own(super::devices::indices(attached.map_or(&[], |it| it))),
            Cell::own(members(it)),
        ]);
    }
    table.drop_empty(4);
    table.write(&mut stdout())
}

/// The user as the state files claim it, for programs: `root(0)`.
fn recorded_user(environment: &EnvironmentState) -> String {
    match &environment.username {
        Some(name) => format!("{name}({})", environment.uid),
        None => environment.uid.to_string(),
    }
}

fn joined(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(" ")
}

/// Processes, and kernels after them.
fn members(environment: &EnvironmentState) -> String {
    let kernels = environment.kernel_ids.iter();
    let kernels = kernels.map(|id| format!("kernel {}", crate::output::harmless(id)));
    let processes = environment.pids.iter().map(u32::to_string);
    processes.chain(kernels).collect::<Vec<_>>().join(" ")
}

impl query::Field for Query {
    type Of = EnvironmentState;

    fn text(self, of: &EnvironmentState, times: &Times) -> String {
        match self {
            Self::Eid => of.eid.clone(),
            Self::Creation => times.text(of.created_timestamp_seconds),
            Self::Uid => of.uid.to_string(),
            Self::Username => of.username.clone().unwrap_or_default(),
            Self::Name => of.name.clone().unwrap_or_default(),
            Self::Gpus => of.gpus.map(|gpus| gpus.to_string()).unwrap_or_default(),
            Self::GpuMemory => {
                let amount = of.gpu_memory.map(|amount| amount.to_string());
                amount.unwrap_or_default()
            }
            Self::Pids => joined(&of.pids),
            Self::KernelIds => of.kernel_ids.join(" "),
        }
    }

    fn json(self, of: &EnvironmentState, times: &Times) -> Value {
        match self {
            Self::Eid | Self::Creation => self.text(of, times).into(),
            Self::Uid => of.uid.into(),
            Self::Username => json!(of.username),
            Self::Name => json!(of.name),
            Self::Gpus => json!(of.gpus),
            Self::GpuMemory => json!(of.gpu_memory.map(|amount| amount.to_string())),
            Self::Pids => json!(of.pids),
            Self::KernelIds => json!(of.kernel_ids),
        }
    }
}
