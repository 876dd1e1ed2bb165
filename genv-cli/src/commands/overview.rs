//! The overview of this machine's devices for people: one line for each device.

use std::collections::BTreeMap;
use std::io;

use genv_core::gpu::DeviceSample;
use genv_core::model::{DeviceIndex, DeviceMemory, MemoryAmount};
use genv_core::outside::OutsideUse;
use genv_core::proc::own_uid;
use genv_core::state::allocate::{MIG_UNSPLIT_REMEDY, in_mig_mode_unsplit};
use genv_core::state::shape::Times;
use genv_core::state::{DeviceState, State};

use super::free::availability_cell;
use crate::ago::{now_seconds, short_age};
use crate::announce::indices;
use crate::lease;
use crate::output::{
    Cell, DOUBTFUL, ListFlags, OWN, Table, harmless, print_note, stdout, terminal_width, used_of_total,
};
use crate::outside::DeviceUse;
use crate::users::Users;

const COLUMNS: [&str; 9] = ["GPU", "MODEL", "USER", "ENVIRONMENT", "SINCE", "UNTIL", "MEMORY GiB", "LOAD", "OUTSIDE"];

/// The position of the column with the ends of leases.
const UNTIL: usize = 5;

/// The positions of the model, the user and the environment. These columns are shortened if a line is too long.
const SHORTENED: [usize; 3] = [1, 2, 3];

/// An unknown value.
const UNKNOWN: &str = "?";

/// The sources of values, in sentences about unknown values.
const DRIVER: &str = "the driver does not report";
const STATE: &str = "the state does not show";
const PROC: &str = "/proc does not show";

type Row = [Cell; COLUMNS.len()];

/// The facts of the overview.
pub(super) struct Overview<'a> {
    state: &'a State,
    device_use: &'a DeviceUse,
    is_waited_for: bool,
    flags: &'a ListFlags,
    users: Users,
    unknown: UnknownValues,
}

impl<'a> Overview<'a> {
    /// `is_waited_for`: processes wait in the queue for devices.
    pub(super) fn new(state: &'a State, device_use: &'a DeviceUse, is_waited_for: bool, flags: &'a ListFlags) -> Self {
        Self { state, device_use, is_waited_for, flags, users: Users::default(), unknown: UnknownValues::default() }
    }

    /// Prints the lines, and on stderr the reasons for unknown values.
    pub(super) fn print(mut self) -> io::Result<()> {
        let mut table = Table::new(&COLUMNS).header(!self.flags.no_header);
        for device in &self.state.devices {
            table.row(self.gpu(device));
            for part in self.samples(device.index) {
                if part.index.mig.is_some() {
                    table.row(self.mig_device(part));
                }
            }
        }
        table.drop_empty(UNTIL);
        table.fit(&SHORTENED, terminal_width());
        table.write(&mut stdout())?;
        if let Err(reason) = &self.device_use.sample {
            let reason = harmless(&reason.to_string());
            print_note(&format!("the use of the devices is unknown: {reason}"));
        }
        let gpus = self.state.devices.iter().map(|it| it.index);
        let mig_unsplit: Vec<u32> = gpus.filter(|gpu| self.is_mig_unsplit(*gpu)).collect();
        if !mig_unsplit.is_empty() {
            print_note(&format!("{}. {MIG_UNSPLIT_REMEDY}", in_mig_mode_unsplit(&mig_unsplit)));
        }
        self.unknown.print();
        Ok(())
    }

    fn gpu(&mut self, device: &DeviceState) -> Row {
        let index = DeviceIndex::gpu(device.index);
        let mut samples = self.samples(device.index);
        let sample = samples.find(|it| it.index == index && !it.lost);
        let model = sample.and_then(|it| it.name.as_deref());
        let memory = sample.and_then(|it| it.measurements.memory);
        let load = sample.and_then(|it| it.measurements.utilization_ratio);
        // Without any answer of the driver the reason is printed instead.
        if self.device_use.sample.is_ok() {
            for value in missing(sample, self.processes(device.index).is_some()) {
                self.unknown.add(DRIVER, value, index);
            }
        }
        let [user, environment, since] = match &device.attachments[..] {
            [] => self.not_held(device.index),
            _ => self.held(device),
        };
        [
            Cell::own(index.to_string()),
            Cell::foreign(model.map_or(UNKNOWN, without_vendor)),
            user,
            environment,
            since,
            lease::table_cell(self.lease_end(device)),
            memory_cell(memory, device.total_memory),
            Cell::own(load.map_or_else(|| UNKNOWN.to_owned(), |it| format!("{:.0} %", it * 100.0))).right(),
            self.outside(device.index).right(),
        ]
    }

    /// The line of a MIG device. It cannot be attached, and the driver does not report its load.
    fn mig_device(&mut self, sample: &DeviceSample) -> Row {
        let memory = sample.measurements.memory;
        let profile = sample.profile.as_deref();
        if memory.is_none() {
            self.unknown.add(DRIVER, "the memory in use", sample.index);
        }
        if profile.is_none() {
            self.unknown.add(DRIVER, "the profile", sample.index);
        }
        let empty = Cell::default;
        [
            Cell::own(sample.index.to_string()),
            Cell::foreign(&format!("MIG {}", profile.unwrap_or(UNKNOWN))),
            empty(),
            empty(),
            empty(),
            empty(),
            memory_cell(memory, None),
            empty(),
            empty(),
        ]
    }

    /// The users, the environments, and the time of the first attachment of a device that environments hold.
    fn held(&mut self, device: &DeviceState) -> [Cell; 3] {
        let index = DeviceIndex::gpu(device.index);
        let (mut users, mut names, mut is_own) = (Vec::new(), Vec::new(), false);
        for attachment in &device.attachments {
            let eid = &attachment.eid;
            let environment = self.state.environments.iter().find(|it| it.eid == *eid);
            if environment.is_none() {
                self.unknown.add(STATE, "all users", index);
            }
            is_own |= environment.is_some_and(|it| it.uid == own_uid());
            users.push(environment.map_or_else(|| UNKNOWN.to_owned(), |it| self.users.name(it.uid)));
            let name = environment.and_then(|it| it.name.as_ref());
            names.push(name.unwrap_or(eid).clone());
        }
        let starts = device.attachments.iter();
        let starts = starts.map(|it| it.attached_timestamp_seconds);
        let since = self.since(index, starts, STATE, "all times of attachment");
        let style = |cell: Cell| if is_own { cell.style(OWN) } else { cell };
        [style(listed(users)), style(listed(names)), since]
    }

    /// The end of the last lease, if all holders have one.
    fn lease_end(&self, device: &DeviceState) -> Option<f64> {
        let attachments = device.attachments.iter();
        let ends: Option<Vec<f64>> = attachments.map(|it| self.state.lease_end(&it.eid)).collect();
        ends?.into_iter().max_by(f64::total_cmp)
    }

    /// The users, the state, and the start of the first process of a device that no environment holds.
    fn not_held(&mut self, gpu: u32) -> [Cell; 3] {
        let uses = self.uses(gpu);
        let processes = self.processes(gpu);
        if uses.is_empty() {
            let state = match processes {
                _ if self.is_mig_unsplit(gpu) => Cell::own("MIG, not split").style(DOUBTFUL),
                // An unknown process may use the device.
                None => Cell::own("not held"),
                Some(_) => availability_cell(false, self.is_waited_for, processes),
            };
            return [Cell::default(), state, Cell::default()];
        }
        let users = uses.iter().map(|it| self.users.name(it.uid)).collect();
        let starts = uses.iter().map(|it| it.started_timestamp_seconds);
        let index = DeviceIndex::gpu(gpu);
        let since = self.since(index, starts, PROC, "the start of all processes");
        let state = availability_cell(true, self.is_waited_for, processes);
        [listed(users), state, since]
    }

    /// The earliest of these times. `source` and `value` name an unknown time.
    fn since(
        &mut self,
        index: DeviceIndex,
        times: impl IntoIterator<Item = Option<f64>>,
        source: &'static str,
        value: &'static str,
    ) -> Cell {
        let times: Option<Vec<f64>> = times.into_iter().collect();
        let first = times.and_then(|times| times.into_iter().min_by(f64::total_cmp));
        let Some(first) = first else {
            self.unknown.add(source, value, index);
            return Cell::own(UNKNOWN);
        };
        Cell::own(match self.flags.timestamp {
            true => Times::here().text(Some(first)),
            false => short_age(first, now_seconds()),
        })
    }

    /// The number of processes outside of environments that use a device.
    fn outside(&self, gpu: u32) -> Cell {
        let is_complete = self.device_use.knows_outside(gpu);
        match (self.uses(gpu).len(), is_complete) {
            (0, true) => Cell::own("0"),
            (0, false) => Cell::own(UNKNOWN),
            (count, true) => Cell::own(count.to_string()).style(DOUBTFUL),
            (count, false) => Cell::own(format!("{count}+")).style(DOUBTFUL),
        }
    }

    fn uses(&self, gpu: u32) -> &'a [OutsideUse] {
        self.device_use.outside.get(&gpu).map_or(&[], |uses| uses)
    }

    /// Whether a GPU is in MIG mode and has no MIG devices.
    fn is_mig_unsplit(&self, gpu: u32) -> bool {
        self.samples(gpu).any(|it| it.mig_unsplit)
    }

    /// The number of processes on a GPU, if all of them are known.
    fn processes(&self, gpu: u32) -> Option<usize> {
        self.device_use.contexts.get(&gpu).map(|pids| pids.len())
    }

    /// The driver's answers about a GPU and its MIG devices.
    fn samples(&self, gpu: u32) -> impl Iterator<Item = &'a DeviceSample> + use<'a> {
        let sample = self.device_use.sample.as_ref();
        let samples = sample.map_or(&[][..], |sample| &sample.devices);
        samples.iter().filter(move |it| it.index.gpu == gpu)
    }
}

/// The unknown values, with their devices.
#[derive(Default)]
struct UnknownValues(BTreeMap<(&'static str, &'static str), Vec<DeviceIndex>>);

impl UnknownValues {
    fn add(&mut self, source: &'static str, value: &'static str, index: DeviceIndex) {
        let devices = self.0.entry((source, value)).or_default();
        if devices.last() != Some(&index) {
            devices.push(index);
        }
    }

    /// Prints the unknown values, one line for values of the same devices.
    fn print(&self) {
        let mut values = BTreeMap::<_, Vec<&str>>::new();
        for ((source, value), devices) in &self.0 {
            values.entry((source, devices)).or_default().push(value);
        }
        for ((source, devices), values) in values {
            let values = values.join(" and ");
            print_note(&format!("{source} {values} of {}", indices(devices)));
        }
    }
}

/// The values that the driver does not report of a GPU.
fn missing(sample: Option<&DeviceSample>, are_processes_known: bool) -> Vec<&'static str> {
    let Some(sample) = sample else {
        return vec!["any value"];
    };
    let values = [
        (sample.name.is_some(), "the model"),
        (sample.measurements.memory.is_some(), "the memory in use"),
        (sample.measurements.utilization_ratio.is_some(), "the load"),
        (are_processes_known, "all processes"),
    ];
    let missing = values.into_iter().filter(|(is_known, _)| !is_known);
    missing.map(|(_, value)| value).collect()
}

/// All models are NVIDIA's.
fn without_vendor(model: &str) -> &str {
    model.strip_prefix("NVIDIA ").unwrap_or(model)
}

/// The different names, separated by commas.
fn listed(names: Vec<String>) -> Cell {
    let mut different: Vec<String> = Vec::new();
    for name in names {
        if !different.contains(&name) {
            different.push(name);
        }
    }
    Cell::foreign(&different.join(", "))
}

/// The memory of a device, whose total the state may have too.
fn memory_cell(memory: Option<DeviceMemory>, total: Option<MemoryAmount>) -> Cell {
    let total = memory.map(|it| it.total_bytes).or(total.map(MemoryAmount::bytes));
    Cell::own(used_of_total(memory.map(|it| it.used_bytes), total)).right()
}
