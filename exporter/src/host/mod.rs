//! One host of a publication, with the derived values that several families need.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use genv_core::model::{
    Attribution, CollectorStatus, Counters, Device, DeviceIndex, Environment, HostSnapshot, Process, Snapshot,
};

use genv_web::SSH;
use genv_web::metrics::LabelRows;

use crate::families::Limits;

mod by_device;

pub(crate) use by_device::ByDevice;

/// The limit of environments, and of users, with series of their own. Every user may write the state, and invent any
/// number of both.
const SERIES_LIMIT: usize = 1000;

/// One host of a publication.
pub struct PublishedHost<'a> {
    host: &'a HostSnapshot,
    view: Option<HostView<'a>>,
}

/// The snapshot of a host, and the values that are derived from it.
pub(crate) struct HostView<'a> {
    /// The snapshot itself.
    pub(crate) snapshot: &'a Snapshot,
    /// Environments with series of their own, by eid; absent while the state is not known.
    pub(crate) environments: Option<BTreeMap<&'a str, &'a Environment>>,
    /// Processes, as the driver lists them; absent while it does not, or if they are not collected.
    pub(crate) processes: Option<HostProcesses<'a>>,
    /// Whether the users of the processes are known.
    pub(crate) owners: bool,
    /// GPUs that are up and may have unknown processes.
    unknown_gpus: Vec<DeviceIndex>,
    /// Whether the processes of at least one GPU that is up are known, or none is up.
    countable: bool,
    /// Number of users with an environment or a process; absent while one of these is collected and not known.
    pub(crate) users_number: Option<usize>,
    /// Users with series of their own, by name.
    pub(crate) users: BTreeMap<&'a str, UserSummary>,
}

pub(crate) struct HostProcesses<'a> {
    /// Their number by [`Attribution::state`].
    pub(crate) states: ProcessCounts,
    /// Their number on each device by [`Attribution::state`].
    pub(crate) by_device: ByDevice<ProcessCounts>,
    /// Their number in each environment by eid.
    pub(crate) by_environment: HashMap<&'a str, usize>,
    /// Processes with series of their own, with the labels `pid`, `eid`, `username` and `comm`.
    pub(crate) largest: LabelRows<&'a Process>,
    /// Processes without series of their own.
    pub(crate) others: Vec<&'a Process>,
}

/// Numbers of processes by the state of their attribution.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProcessCounts {
    environment: usize,
    outside: usize,
    unknown: usize,
}

impl ProcessCounts {
    fn count(&mut self, attribution: &Attribution) {
        match attribution {
            Attribution::Environment { .. } => self.environment += 1,
            Attribution::Outside { .. } => self.outside += 1,
            Attribution::Unknown { .. } => self.unknown += 1,
        }
    }

    /// The numbers with their values of the label `state`.
    pub(crate) fn each(self) -> [(&'static str, f64); 3] {
        [("environment", self.environment as f64), ("outside", self.outside as f64), ("unknown", self.unknown as f64)]
    }
}

/// The environments, devices and processes of one user on a host.
#[derive(Default)]
pub(crate) struct UserSummary {
    pub(crate) environments: usize,
    /// Devices attached to the user's environments.
    pub(crate) devices: BTreeSet<DeviceIndex>,
    /// Processes that use a device.
    pub(crate) processes: usize,
    /// Memory used on each device that the user holds or uses; absent where a process of the user
    /// could not be measured.
    pub(crate) memory_used_bytes: ByDevice<Option<f64>>,
}

impl<'a> PublishedHost<'a> {
    /// Derives the values that the families need.
    pub(crate) fn new(host: &'a HostSnapshot, limits: Limits) -> Self {
        let view = host.snapshot.as_deref();
        Self { host, view: view.map(|snapshot| HostView::new(snapshot, limits)) }
    }

    /// The hostname.
    pub(crate) fn name(&self) -> &'a str {
        &self.host.hostname
    }

    /// Whether the host delivers snapshots, and when the last one came.
    pub(crate) fn status(&self) -> &'a HostSnapshot {
        self.host
    }

    /// The snapshot, if there is one.
    pub(crate) fn view(&self) -> Option<&HostView<'a>> {
        self.view.as_ref()
    }

    /// The snapshot, if its environments are known.
    pub(crate) fn known_state(&self) -> Option<&HostView<'a>> {
        self.view().filter(|view| view.environments.is_some())
    }

    /// The processes, if they are known.
    pub(crate) fn processes(&self) -> Option<&HostProcesses<'a>> {
        self.view()?.processes.as_ref()
    }

    /// The collectors by name if there is a snapshot, and the SSH session.
    pub(crate) fn collectors(&self) -> impl Iterator<Item = (&'a str, &'a CollectorStatus)> {
        let snapshot = self.host.snapshot.iter();
        let collectors = snapshot.flat_map(|snapshot| &snapshot.collectors);
        let collectors = collectors.map(|(name, status)| (name.as_str(), status));
        let ssh = self.host.ssh.iter().map(|status| (SSH, status));
        collectors.chain(ssh)
    }

    /// One kind of counters, if there is a snapshot.
    pub(crate) fn counters<T>(&self, of: impl Fn(&'a Counters) -> &'a [T]) -> &'a [T] {
        let snapshot = self.host.snapshot.as_deref();
        snapshot.map_or(&[], |snapshot| of(&snapshot.counters))
    }

    /// The devices, if there is a snapshot.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &'a Device> {
        self.host.snapshot.iter().flat_map(|snapshot| &snapshot.devices)
    }
}

impl<'a> HostView<'a> {
    fn new(snapshot: &'a Snapshot, limits: Limits) -> Self {
        let current = |collector: &str| {
            let status = snapshot.collectors.get(collector);
            status.is_some_and(|status| status.current)
        };
        let state = current("state");
        let environments = state.then(|| {
            let environments = snapshot.environments.iter();
            let by_eid = environments.map(|environment| (environment.eid.as_str(), &**environment));
            shown(by_eid.collect(), |environment| !environment.devices.is_empty())
        });
        let collected = |collector| snapshot.collectors.contains_key(collector);
        let owners = snapshot.owners();
        let all = snapshot.processes.iter();
        let all: Vec<_> = all.map(|it| (&**it, owners.of_process(it))).collect();
        let gpus = snapshot.devices.iter().map(|device| device.index);
        let (known_gpus, unknown_gpus): (Vec<_>, Vec<_>) =
            gpus.filter(|index| index.mig.is_none()).partition(|index| snapshot.processes_known(index.gpu));
        let countable = !known_gpus.is_empty() || unknown_gpus.is_empty();
        let processes = (current("gpu") && collected("processes")).then(|| HostProcesses::new(&all, limits));
        let owners = processes.is_some() && current("processes");
        let users = users(snapshot, state, owners.then_some(&all));
        let state_is_missing = collected("state") && !state;
        let owners_are_missing = collected("gpu") && collected("processes") && !owners;
        let owners_are_missing = owners_are_missing || owners && !countable;
        let users_are_known = (state || owners) && !state_is_missing && !owners_are_missing;
        Self {
            snapshot,
            environments,
            processes,
            owners,
            unknown_gpus,
            countable,
            users_number: users_are_known.then_some(users.len()),
            users: shown(users, |user| user.processes > 0 || !user.devices.is_empty()),
        }
    }

    /// The processes on the GPUs whose processes are known; absent if there is no such GPU.
    pub(crate) fn countable_processes(&self) -> Option<&HostProcesses<'a>> {
        self.processes.as_ref().filter(|_| self.countable)
    }

    /// As [`HostView::countable_processes`], if their users are known.
    pub(crate) fn owned_processes(&self) -> Option<&HostProcesses<'a>> {
        self.countable_processes().filter(|_| self.owners)
    }

    /// Whether all processes on these GPUs are known, so that a count of their holder's processes is complete.
    pub(crate) fn knows_all_processes_on(&self, gpus: impl IntoIterator<Item = DeviceIndex>) -> bool {
        let mut gpus = gpus.into_iter();
        !gpus.any(|index| self.unknown_gpus.contains(&index))
    }
}

/// The GPUs to which an environment is attached.
pub(crate) fn attached(environment: &Environment) -> impl Iterator<Item = DeviceIndex> {
    let devices = environment.devices.iter();
    devices.filter(|device| device.attached).map(|device| device.index)
}

/// A process, and the name of the user for whom it runs if that is known.
type Owned<'a> = (&'a Process, Option<&'a str>);

impl<'a> HostProcesses<'a> {
    fn new(all: &[Owned<'a>], limits: Limits) -> Self {
        let mut states = ProcessCounts::default();
        let mut by_device = ByDevice::<ProcessCounts>::default();
        let mut by_environment = HashMap::new();
        for (process, _) in all {
            states.count(&process.attribution);
            for index in devices_of(process) {
                let states = by_device.of(index, ProcessCounts::default);
                states.count(&process.attribution);
            }
            if let Some(eid) = process.attribution.eid() {
                *by_environment.entry(eid).or_default() += 1;
            }
        }
        let mut largest = all.to_vec();
        let mut others = Vec::new();
        let limit = limits.processes.unwrap_or(0);
        if limits.processes.is_none() {
            largest.clear();
        } else if largest.len() > limit {
            // By pid among equals, so that the choice is the same at every publication.
            largest.sort_by_cached_key(|(process, _)| (std::cmp::Reverse(memory_used_bytes(process)), process.pid));
            others = largest.split_off(limit);
            largest.sort_by_key(|(process, _)| process.pid);
        }
        let mut rows = LabelRows::with_capacity(&["pid", "eid", "username", "comm"], largest.len());
        for (process, username) in largest {
            let eid = process.attribution.eid().unwrap_or_default();
            let username = username.unwrap_or_default();
            let comm = process.comm.as_deref().unwrap_or_default();
            rows.push(&[&process.pid, &eid, &username, &comm], process);
        }
        let others = others.into_iter().map(|(process, _)| process).collect();
        Self { states, by_device, by_environment, largest: rows, others }
    }
}

/// Memory of a process on all devices; absent if it is unknown on all of them.
fn memory_used_bytes(process: &Process) -> Option<u64> {
    let devices = process.devices.iter();
    devices
        .filter_map(|device| device.memory_used_bytes.get())
        .fold(None, |sum, bytes| Some(sum.unwrap_or(0_u64).saturating_add(bytes)))
}

/// The devices that a process uses, each once.
fn devices_of(process: &Process) -> impl Iterator<Item = DeviceIndex> {
    let devices = process.devices.iter().map(|device| device.index);
    devices.enumerate().filter_map(|(at, index)| {
        let before = &process.devices[..at];
        (!before.iter().any(|device| device.index == index)).then_some(index)
    })
}

/// At most [`SERIES_LIMIT`] entries: preferred ones first, then by name.
fn shown<T>(all: BTreeMap<&str, T>, is_preferred: impl Fn(&T) -> bool) -> BTreeMap<&str, T> {
    if all.len() <= SERIES_LIMIT {
        return all;
    }
    let (first, then): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, one)| is_preferred(one));
    first.into_iter().chain(then).take(SERIES_LIMIT).collect()
}

/// All users with an environment (if the state is known) or a process (if the users of processes are known).
fn users<'a>(
    snapshot: &'a Snapshot,
    state: bool,
    processes: Option<&Vec<Owned<'a>>>,
) -> BTreeMap<&'a str, UserSummary> {
    let mut users = BTreeMap::<_, UserSummary>::new();
    for environment in snapshot.environments.iter().filter(|_| state) {
        let user = users.entry(environment.username.as_str()).or_default();
        user.environments += 1;
        user.devices.extend(attached(environment));
    }
    let Some(processes) = processes else {
        return users;
    };
    let measured = snapshot.devices.iter().filter(|device| device.processes_measured);
    let measured: BTreeSet<_> = measured.map(|device| device.index).collect();
    for user in users.values_mut() {
        let held = user.devices.intersection(&measured);
        for index in held {
            user.memory_used_bytes.of(*index, || Some(0.0));
        }
    }
    for (process, username) in processes {
        let Some(username) = username else {
            continue;
        };
        let user = users.entry(username).or_default();
        user.processes += 1;
        for device in &process.devices {
            let new = || measured.contains(&device.index).then_some(0.0);
            let known = user.memory_used_bytes.of(device.index, new);
            *known = known.zip(device.memory_used_bytes.get()).map(|(sum, bytes)| sum + bytes as f64);
        }
    }
    users
}
