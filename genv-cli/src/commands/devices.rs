//! `genv devices`

use std::collections::HashMap;
use std::io;

use clap::{Args, Subcommand, ValueEnum};
use genv_core::state::allocate::DeviceKind;
use genv_core::state::shape::{DevicesDocument, Times};
use genv_core::state::{
    AttachmentState, DeviceState, EnvironmentState, Facts, Inventory, Permission, Request, State, Wish,
};
use serde_json::{Value, json};

use super::free::print_queue_note;
use super::overview::Overview;
use super::query::{QueryField, print_fields};
use crate::ago::{ago, now_seconds};
use crate::announce::indices;
use crate::completion;
use crate::driver_timeout::needed_patience;
use crate::lease;
use crate::machine::Machine;
use crate::output::{
    Cell, Format, JsonFlag, ListFlags, Table, csv_line, joined, print, print_csv, print_json, print_note, stdout,
};
use crate::queue::{DeviceRequest, ForceFlag, WaitFlag, obtain};
use crate::users::Users;
use crate::values;

const EXAMPLE: &str = "Example: print the indices of an environment's devices
  genv devices find --eid 12496";

/// List the devices of this machine with their holders, or change the devices of an environment.
///
/// A terminal shows for each device the model, the holder, the memory in use, the load, and the number of processes outside of
/// environments. genv waits at most 30 s for the driver. In a pipe, and with --format tui, the list has only the holders.
#[derive(Debug, Default, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Devices {
    #[command(flatten)]
    list: ListFlags,

    /// Keep ended members of environments.
    #[arg(long)]
    no_cleanup: bool,

    /// First detach all devices from all environments.
    #[arg(long)]
    reset: bool,

    #[command(subcommand)]
    command: Option<DevicesCommand>,
}

#[derive(Debug, Subcommand)]
enum DevicesCommand {
    /// Attach devices to an environment, and print the indices of all its devices.
    Attach {
        /// Id of the environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        /// Devices to hold in total. Default: the configured number.
        #[arg(long, value_name = "COUNT", value_parser = values::gpus, allow_negative_numbers = true, conflicts_with = "index")]
        count: Option<u32>,
        /// Index of a device to attach in addition.
        #[arg(long, value_name = "INDEX", value_parser = values::index, allow_negative_numbers = true, add = completion::devices())]
        index: Option<u32>,
        /// Share devices that other environments hold, if too few are free.
        #[arg(short = 'o', long, visible_alias = "over-subscribe")]
        allow_over_subscription: bool,
        #[command(flatten)]
        force: ForceFlag,
        #[command(flatten)]
        wait: WaitFlag,
    },
    /// Detach one or all devices from an environment, and print the indices of the remaining devices.
    Detach {
        /// Id of the environment.
        #[arg(long, value_name = "EID", add = completion::environments())]
        eid: String,
        /// Index of the device. Default: all devices.
        #[arg(long, value_name = "INDEX", value_parser = values::index, allow_negative_numbers = true, add = completion::devices())]
        index: Option<u32>,
        /// Print nothing.
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print the indices of an environment's devices.
    Find {
        /// Id of the environment.
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
    /// Print fields of all devices, one line for each device.
    Query {
        /// Fields to print.
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
            other => {
                self.list.check_unused("devices")?;
                other
            }
        };
        let mut machine = Machine::here()?.cleaning(!self.no_cleanup);
        if self.reset {
            let request = Request::ResetDevices(Inventory::of(&machine.sample(needed_patience())?));
            machine.change(&request, &Facts::default(), |_, _, _| Ok::<_, anyhow::Error>(()))?;
        }
        command.run(&mut machine)
    }
}

impl DevicesCommand {
    fn run(self, machine: &mut Machine) -> anyhow::Result<()> {
        match self {
            Self::Attach { eid, count, index, allow_over_subscription, force, wait } => {
                let kind = DeviceKind::default();
                let wish = Wish {
                    indices: index.into_iter().collect(),
                    count,
                    over_subscribe: allow_over_subscription,
                    ..wait.wish(force)
                };
                let attach = Request::Attach { eid: eid.clone(), permission: Permission::OwnerOrRoot, wish };
                let request =
                    DeviceRequest { request: &attach, eid: &eid, kind: &kind, caller: None, wait, asks_driver: true };
                print_indices(&obtain(machine, request, |granted| granted.after.attached(&eid))?)?;
            }
            Self::Detach { eid, index, quiet } => {
                let (eid, indices) = (&eid, index.into_iter().collect());
                let request = Request::Detach { eid: eid.clone(), permission: Permission::OwnerOrRoot, indices };
                let left = machine
                    .change(&request, &Facts::default(), |_, after, _| Ok::<_, anyhow::Error>(after.attached(eid)))?;
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
                let state = machine.state_with_devices()?;
                let waiting = machine.waiting(&state);
                if list.is_for_people() {
                    let device_use = machine.device_use(&state);
                    let is_waited_for = !waiting.is_empty();
                    Overview::new(&state, &device_use, is_waited_for, &list).print()?;
                } else {
                    list_devices(&state, &list)?;
                }
                print_queue_note(&waiting);
            }
            Self::Query { query, output } => {
                print_fields(machine.state_with_devices()?.devices.iter(), &query, output.json)?;
            }
        }
        Ok(())
    }
}

fn print_indices(found: &[u32]) -> io::Result<()> {
    print(format!("{}\n", joined(found, ",")).as_bytes())
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
    // A device without a holder has a line too.
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
        let total = device.total_memory.map_or_else(|| "?".to_owned(), |total| total.to_string());
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
            lease::table_cell(state.lease_end(eid)),
            user.unwrap_or_default(),
            Cell::own(claimed.map_or_else(|| total.clone(), |it| format!("{it} of {total}"))),
        ]);
    }
    table.drop_empty(4);
    table.write(&mut stdout())?;
    let untold = state.devices.iter().filter(|it| it.total_memory.is_none());
    let untold: Vec<u32> = untold.map(|it| it.index).collect();
    if !untold.is_empty() {
        print_note(&format!("the driver has not told the memory of {}", indices(&untold)));
    }
    Ok(())
}

impl QueryField for Query {
    type Item = DeviceState;

    fn text(self, item: &DeviceState, times: &Times) -> String {
        let each = |text: &dyn Fn(&AttachmentState) -> String| {
            let attachments = item.attachments.iter().map(text);
            attachments.collect::<Vec<_>>().join(" ")
        };
        match self {
            Self::Index => item.index.to_string(),
            Self::Eids => each(&|it| it.eid.clone()),
            Self::TotalMemory => item.total_memory.map(|it| it.to_string()).unwrap_or_default(),
            Self::Attachments => each(&|it| {
                let amount = it.gpu_memory.map(|it| it.to_string()).unwrap_or_default();
                let time = times.text(it.attached_timestamp_seconds).replace(' ', "_");
                format!("{}+{amount}+{time}", it.eid)
            }),
        }
    }

    fn json(self, item: &DeviceState, times: &Times) -> Value {
        let attachments = item.attachments.iter();
        match self {
            Self::Index => item.index.into(),
            Self::Eids => attachments.map(|it| it.eid.as_str()).collect(),
            Self::TotalMemory => json!(item.total_memory.map(|it| it.to_string())),
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
