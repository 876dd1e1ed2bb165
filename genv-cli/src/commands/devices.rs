//! `genv devices`

use std::collections::HashMap;
use std::io;

use clap::{Args, Subcommand, ValueEnum};
use genv_core::state::allocate::{AttachRequest, DeviceKind, Selection};
use genv_core::state::shape::{DevicesDocument, Times};
use genv_core::state::{AttachmentState, DeviceState, EditableState, EnvironmentState, Inventory, State, StoreError};
use serde_json::{Value, json};

use super::envs::misplaced;
use super::free::name_waiting;
use super::overview::Overview;
use super::query::{Field, answer};
use crate::ago::{ago, now_seconds};
use crate::completion;
use crate::lease;
use crate::machine::{INVENTORY_PATIENCE, Machine, Survey};
use crate::output::{Cell, Format, JsonFlag, ListFlags, Table, csv_line, print, print_csv, print_json, stdout};
use crate::own_environment::check_outside;
use crate::queue::{Asking, ForceFlag, WaitFlag, obtain};
use crate::users::Users;
use crate::values;

const EXAMPLE: &str = "Example: indices of the devices of an environment
  genv devices find --eid 12496";

/// List the devices of this machine with their holders, or attach and detach them for an environment.
///
/// A terminal shows the model, the holder, the memory in use, the load and the processes outside of environments of
/// each device; the driver has 100 ms for its answer. In a pipe, and with --format tui, the list has the holders only.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Devices {
    #[command(flatten)]
    list: ListFlags,

    /// Leave members of environments that ended where they are.
    #[arg(long)]
    no_cleanup: bool,

    /// Detach everybody from all devices, before anything else.
    #[arg(long)]
    reset: bool,

    #[command(subcommand)]
    command: Option<DevicesCommand>,
}

#[derive(Debug, Subcommand)]
enum DevicesCommand {
    /// Attach an environment to devices, and print all that it has then.
    Attach {
        /// Environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        /// How many in all. Without: as many as it is configured with.
        #[arg(long, value_name = "COUNT", value_parser = values::gpus, allow_negative_numbers = true, conflicts_with = "index")]
        count: Option<u32>,
        /// Which one, beside those that it has.
        #[arg(long, value_name = "INDEX", value_parser = values::index, allow_negative_numbers = true, add = completion::devices())]
        index: Option<u32>,
        /// Take devices that others hold if there are not enough.
        #[arg(short = 'o', long, visible_alias = "over-subscribe")]
        allow_over_subscription: bool,
        #[command(flatten)]
        force: ForceFlag,
        #[command(flatten)]
        wait: WaitFlag,
    },
    /// Detach an environment from its devices or from one, and print those that it has then.
    Detach {
        /// Environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        /// Which one.
        #[arg(long, value_name = "INDEX", value_parser = values::index, allow_negative_numbers = true, add = completion::devices())]
        index: Option<u32>,
        /// Print nothing.
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print the indices of the devices that an environment is attached to.
    Find {
        /// Environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        #[command(flatten)]
        output: JsonFlag,
    },
    /// List the devices with their holders.
    Ps {
        #[command(flatten)]
        list: ListFlags,
    },
    /// Print fields of all devices, a line for each device.
    Query {
        /// What to print.
        #[arg(long, alias = "queries", value_name = "FIELD", required = true, num_args = 1.., overrides_with = "query")]
        query: Vec<Query>,
        #[command(flatten)]
        output: JsonFlag,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Query {
    Index,
    Eids,
    TotalMemory,
    Attachments,
}

impl Devices {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let list = ListFlags::default();
        let command = match self.command.unwrap_or(DevicesCommand::Ps { list }) {
            DevicesCommand::Ps { list } => DevicesCommand::Ps { list: list.or(&self.list) },
            other if self.list.is_default() => other,
            _ => return Err(misplaced("devices").into()),
        };
        let mut machine = Machine::here()?.cleaning(!self.no_cleanup);
        if self.reset {
            let inventory = Inventory::of(&machine.sample(INVENTORY_PATIENCE)?);
            machine.update(|state| {
                let attachments = state.devices().iter().flat_map(|it| &it.attachments);
                for attachment in attachments {
                    check_outside(state, &attachment.eid, "detach")?;
                }
                state.reset_devices(&inventory);
                Ok::<_, anyhow::Error>(())
            })?;
        }
        command.run(&mut machine)
    }
}

impl DevicesCommand {
    fn run(self, machine: &mut Machine) -> anyhow::Result<()> {
        match self {
            Self::Attach { eid, count, index, allow_over_subscription, force, wait } => {
                let one = index.map(|it| Selection::Indices([it].into()));
                let asking = Asking {
                    eid: &eid,
                    kind: &DeviceKind::default(),
                    caller: None,
                    over_subscribe: allow_over_subscription,
                    force,
                    wait,
                };
                let asked = count.map(Selection::Count).or(one);
                print_indices(&attach(machine, asking, asked.as_ref())?)?;
            }
            Self::Detach { eid, index, quiet } => {
                let left = machine.update(|state| {
                    check_outside(state, &eid, "detach")?;
                    state.detach(&eid, index)?;
                    Ok::<_, anyhow::Error>(state.attached(&eid))
                })?;
                if !quiet {
                    print_indices(&left)?;
                }
            }
            Self::Find { eid, output } => {
                let found = machine.state()?.attached(&eid);
                if output.json {
                    print_json(&found)?;
                } else {
                    print_indices(&found)?;
                }
            }
            Self::Ps { list } => {
                let state = known(machine)?;
                let waiting = machine.waiting(&state);
                if list.is_for_people() {
                    let device_use = machine.device_use(&state);
                    let is_waited_for = !waiting.is_empty();
                    Overview::new(&state, &device_use, is_waited_for, &list).print()?;
                } else {
                    list_devices(&state, &list)?;
                }
                name_waiting(&waiting);
            }
            Self::Query { query, output } => {
                answer(known(machine)?.devices.iter(), &query, output.json)?;
            }
        }
        Ok(())
    }
}

/// The state with the machine's devices. GPUs are asked only if nobody has written down yet which they are.
///
/// # Errors
/// The state cannot be read, or nobody knows the devices.
pub(super) fn known(machine: &mut Machine) -> anyhow::Result<State> {
    let mut state = machine.state()?;
    if state.devices.is_empty() {
        let inventory = Inventory::of(&machine.sample(INVENTORY_PATIENCE)?);
        state.devices = inventory.devices();
        // Who may not write it down asks again next time.
        let _ = machine.update(|state| {
            state.merge_inventory(&inventory);
            Ok::<_, StoreError>(())
        });
    }
    Ok(state)
}

/// Attaches an environment to what is asked for, or else to as many devices as it is configured with; without that
/// either it keeps what it has. Returns the indices of all its devices.
fn attach(machine: &mut Machine, asking: Asking<'_>, asked: Option<&Selection>) -> anyhow::Result<Vec<u32>> {
    let eid = asking.eid;
    obtain(machine, asking, |state: &mut EditableState, survey: &Survey| {
        check_outside(state, eid, "attach")?;
        let configured = state.configuration(eid)?.gpus.map(Selection::Count);
        let Some(selection) = asked.cloned().or(configured) else {
            return Ok(state.attached(eid));
        };
        let request = AttachRequest {
            over_subscribe: asking.over_subscribe,
            usage: survey.usage.clone(),
            ..AttachRequest::new(selection)
        };
        Ok(state.attach(eid, &request)?)
    })
}

/// Indices with commas.
pub(super) fn indices(indices: &[u32]) -> String {
    let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
    indices.join(",")
}

fn print_indices(found: &[u32]) -> io::Result<()> {
    print(format!("{}\n", indices(found)).as_bytes())
}

fn list_devices(state: &State, flags: &ListFlags) -> io::Result<()> {
    let times = Times::here();
    if flags.json {
        return print_json(&DevicesDocument::new(&state.devices, &times));
    }
    let time = |it: &AttachmentState| match it.attached_timestamp_seconds {
        Some(attached) if !flags.timestamp => ago(attached, now_seconds()),
        attached => times.text(attached),
    };
    let environments = state.environments.iter();
    let environments: HashMap<&str, &EnvironmentState> = environments.map(|it| (it.eid.as_str(), it)).collect();
    let environment = |eid: &str| environments.get(eid).copied();
    let name = |eid: &str| environment(eid).and_then(|it| it.name.as_deref());
    // A device that nobody holds has a line all the same.
    let rows = || {
        let devices = state.devices.iter();
        devices.flat_map(|device| {
            let none = device.attachments.is_empty().then_some(None);
            let attachments = device.attachments.iter().map(Some);
            none.into_iter().chain(attachments).map(move |it| (device, it))
        })
    };
    if flags.format == Some(Format::Csv) {
        let lines = rows().map(|(device, attachment)| {
            let index = device.index.to_string();
            attachment.map_or_else(
                || csv_line([&index, "", "", ""]),
                |it| {
                    let name = name(&it.eid).unwrap_or_default();
                    csv_line([&index, &it.eid, name, &time(it)])
                },
            )
        });
        return print_csv("ID,ENV ID,ENV NAME,ATTACHED", !flags.no_header, lines);
    }
    let header = &["ID", "ENV ID", "ENV NAME", "ATTACHED", "UNTIL", "USER", "MEMORY"];
    let mut table = Table::new(header).header(!flags.no_header);
    let mut users = Users::default();
    for (device, attachment) in rows() {
        let index = Cell::own(device.index.to_string());
        let total = device.total_memory.map(|total| total.to_string());
        let total = total.unwrap_or_default();
        let Some(attachment) = attachment else {
            let empty = Cell::default;
            let total = Cell::own(total);
            table.row([index, empty(), empty(), empty(), empty(), empty(), total]);
            continue;
        };
        let eid = &attachment.eid;
        let user = environment(eid).map(|it| users.cell(it.uid));
        let claimed = attachment.gpu_memory;
        table.row([
            index,
            Cell::foreign(eid),
            Cell::foreign(name(eid).unwrap_or_default()),
            Cell::own(time(attachment)),
            lease::cell(state.lease_end(eid)),
            user.unwrap_or_default(),
            Cell::own(claimed.map_or_else(|| total.clone(), |it| format!("{it} of {total}"))),
        ]);
    }
    table.drop_empty(4);
    table.write(&mut stdout())
}

impl Field for Query {
    type Of = DeviceState;

    fn text(self, of: &DeviceState, times: &Times) -> String {
        let each = |text: &dyn Fn(&AttachmentState) -> String| {
            let attachments = of.attachments.iter().map(text);
            attachments.collect::<Vec<_>>().join(" ")
        };
        match self {
            Self::Index => of.index.to_string(),
            Self::Eids => each(&|it| it.eid.clone()),
            Self::TotalMemory => of.total_memory.map(|it| it.to_string()).unwrap_or_default(),
            Self::Attachments => each(&|it| {
                let amount = it.gpu_memory.map(|it| it.to_string()).unwrap_or_default();
                let time = times.text(it.attached_timestamp_seconds).replace(' ', "_");
                format!("{}+{amount}+{time}", it.eid)
            }),
        }
    }

    fn json(self, of: &DeviceState, times: &Times) -> Value {
        let attachments = of.attachments.iter();
        match self {
            Self::Index => of.index.into(),
            Self::Eids => attachments.map(|it| it.eid.as_str()).collect(),
            Self::TotalMemory => json!(of.total_memory.map(|it| it.to_string())),
            Self::Attachments => attachments
                .map(|it| {
                    json!({
                        "eid": it.eid,
                        "gpu_memory": it.gpu_memory.map(|it| it.to_string()),
                        "time": times.text(it.attached_timestamp_seconds),
                    })
                })
                .collect(),
        }
    }
}
