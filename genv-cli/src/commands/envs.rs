//! `genv envs`

use std::io;

use clap::{Args, Subcommand, ValueEnum};
use genv_core::state::shape::{EnvironmentsDocument, Times};
use genv_core::state::{ConfigurationChange, EnvironmentState, Facts, Founder, MemberId, Permission, Request, State};
use serde_json::{Value, json};

use super::query::{self, print_fields};
use crate::ago::{ago, now_seconds};
use crate::completion;
use crate::lease;
use crate::machine::Machine;
use crate::output::{Cell, Format, JsonFlag, ListFlags, Table, csv_line, joined, print, print_csv, print_json, stdout};
use crate::own_environment::check_member;
use crate::users::Users;
use crate::values;

const EXAMPLE: &str = "Example: print the id and the name of each environment
  genv envs query --query eid config.name";

/// List the environments of this machine, or change any environment.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Envs {
    #[command(flatten)]
    list: ListFlags,

    /// Keep ended members of environments.
    #[arg(long)]
    no_cleanup: bool,

    /// First end all environments of all users.
    #[arg(long)]
    reset: bool,

    #[command(subcommand)]
    command: Option<EnvsCommand>,
}

#[derive(Debug, Subcommand)]
enum EnvsCommand {
    /// Add a process or a Jupyter kernel to an environment. A missing environment is created.
    Activate {
        /// Id of the environment.
        #[arg(long, value_name = "EID", value_parser = values::eid)]
        eid: String,
        /// Uid of the user of a new environment.
        #[arg(long, value_name = "UID", value_parser = values::uid, allow_negative_numbers = true)]
        uid: u32,
        /// Name of the user.
        #[arg(long, value_name = "NAME", value_parser = values::username)]
        username: Option<String>,
        #[command(flatten)]
        member: MemberFlags,
    },
    /// Change the configuration of an environment.
    Config {
        /// Id of the environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        #[command(subcommand)]
        field: Field,
    },
    /// Remove a process or a Jupyter kernel from its environments.
    Deactivate {
        #[command(flatten)]
        member: MemberFlags,
    },
    /// Print the environments of a process or a Jupyter kernel.
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
    /// Print fields of one or all environments, one line for each environment.
    Query {
        /// Id of the environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: Option<String>,
        /// Fields to print.
        #[arg(long, alias = "queries", value_name = "FIELD", required = true, num_args = 1.., overrides_with = "query")]
        query: Vec<Query>,
        #[command(flatten)]
        output: JsonFlag,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct MemberFlags {
    /// Pid of the process.
    #[arg(long, value_name = "PID", value_parser = values::pid, allow_negative_numbers = true)]
    pid: Option<u32>,
    /// Id of the Jupyter kernel.
    #[arg(long, value_name = "ID", value_parser = values::kernel_id)]
    kernel_id: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Field {
    /// Change the name.
    #[command(group = clap::ArgGroup::new("value").required(true))]
    Name {
        /// New name.
        #[arg(long, value_name = "NAME", group = "value", value_parser = values::name)]
        name: Option<String>,
        /// Remove the value.
        #[arg(long, group = "value")]
        clear: bool,
    },
    /// Change the number of devices.
    #[command(group = clap::ArgGroup::new("value").required(true))]
    Gpus {
        /// New number.
        #[arg(long, value_name = "COUNT", group = "value", value_parser = values::gpus, allow_negative_numbers = true)]
        count: Option<u32>,
        /// Remove the value.
        #[arg(long, group = "value")]
        clear: bool,
    },
    /// Change the claimed memory of each device.
    #[command(group = clap::ArgGroup::new("value").required(true))]
    GpuMemory {
        /// New amount, such as 4g.
        #[arg(long, value_name = "AMOUNT", group = "value", value_parser = values::gpu_memory)]
        gpu_memory: Option<genv_core::model::MemoryAmount>,
        /// Remove the value.
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
            other => {
                self.list.check_unused("envs")?;
                other
            }
        };
        let mut machine = Machine::here()?.cleaning(!self.no_cleanup);
        if self.reset {
            machine.change(&Request::ResetEnvironments, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()))?;
        }
        command.run(&mut machine)
    }
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
                let request = Request::Join { eid, member, founder: Some(Founder { uid, username }) };
                machine.change(&request, &Facts::default(), |_, _, _| may_be_member)?;
            }
            Self::Config { eid, field } => {
                let request = Request::Configure { eid, permission: Permission::OwnerOrRoot, change: field.change() };
                machine.change(&request, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()))?;
            }
            Self::Deactivate { member } => {
                let request = Request::Leave { eid: None, member: member.id(), as_shell: false };
                machine.change(&request, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()))?;
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
                let selected = environments.filter(|it| eid.as_ref().is_none_or(|eid| *eid == it.eid));
                print_fields(selected, &query, output.json)?;
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
    fn change(self) -> ConfigurationChange {
        let mut change = ConfigurationChange::default();
        match self {
            Self::Name { name, .. } => change.name = Some(name),
            Self::Gpus { count, .. } => change.gpus = Some(count),
            Self::GpuMemory { gpu_memory, .. } => change.gpu_memory = Some(gpu_memory),
        }
        change
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
            csv_line([&it.eid, &user, name, &created(it), &pids(it)])
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
            lease::table_cell(state.lease_end(&it.eid)),
            Cell::own(joined(attached.map_or(&[][..], |it| it), ",")),
            Cell::own(members(it)),
        ]);
    }
    table.drop_empty(4);
    table.write(&mut stdout())
}

/// The user in the record, for programs: `root(0)`.
fn recorded_user(environment: &EnvironmentState) -> String {
    match &environment.username {
        Some(name) => format!("{name}({})", environment.uid),
        None => environment.uid.to_string(),
    }
}

/// The processes, as genv 1.x separates them.
fn pids(environment: &EnvironmentState) -> String {
    joined(&environment.pids().collect::<Vec<_>>(), " ")
}

/// The processes, and then the kernels.
fn members(environment: &EnvironmentState) -> String {
    let kernels = environment.kernel_ids.iter();
    let kernels = kernels.map(|id| format!("kernel {}", crate::output::harmless(id)));
    Some(pids(environment)).filter(|it| !it.is_empty()).into_iter().chain(kernels).collect::<Vec<_>>().join(" ")
}

impl query::QueryField for Query {
    type Item = EnvironmentState;

    fn text(self, item: &EnvironmentState, times: &Times) -> String {
        match self {
            Self::Eid => item.eid.clone(),
            Self::Creation => times.text(item.created_timestamp_seconds),
            Self::Uid => item.uid.to_string(),
            Self::Username => item.username.clone().unwrap_or_default(),
            Self::Name => item.name.clone().unwrap_or_default(),
            Self::Gpus => item.gpus.map(|gpus| gpus.to_string()).unwrap_or_default(),
            Self::GpuMemory => {
                let amount = item.gpu_memory.map(|amount| amount.to_string());
                amount.unwrap_or_default()
            }
            Self::Pids => pids(item),
            Self::KernelIds => item.kernel_ids.join(" "),
        }
    }

    fn json(self, item: &EnvironmentState, times: &Times) -> Value {
        match self {
            Self::Eid | Self::Creation => self.text(item, times).into(),
            Self::Uid => item.uid.into(),
            Self::Username => json!(item.username),
            Self::Name => json!(item.name),
            Self::Gpus => json!(item.gpus),
            Self::GpuMemory => json!(item.gpu_memory.map(|amount| amount.to_string())),
            Self::Pids => json!(item.pids().collect::<Vec<_>>()),
            Self::KernelIds => json!(item.kernel_ids),
        }
    }
}
