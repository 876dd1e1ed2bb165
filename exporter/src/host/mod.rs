//! One host of a publication, with what several families need derived once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use genv_core::model::{
    Attribution, CollectorStatus, Counters, Device, DeviceIndex, Environment, EnvironmentDevice, HostSnapshot, Process,
    ProcessDevice, Snapshot, UserDeviceUse,
};

use genv_web::SSH;
use genv_web::metrics::{LabelValue, Rows};

use crate::families::Limits;

mod by_device;

pub(crate) use by_device::ByDevice;

/// Environments, and users, of a host that have series of their own. Whoever may write the state may invent
/// any number of either.
const SHOWN: usize = 1000;

/// What tells the series of a process on a device.
pub(crate) const PROCESS_LABELS: &[&str] = &["index", "pid", "eid", "username", "comm"];

/// One host of a publication.
pub struct Host<'a> {
    host: &'a HostSnapshot,
    view: Option<View<'a>>,
}

/// The snapshot of a host, and what is derived from it.
pub(crate) struct View<'a> {
    /// The snapshot itself.
    pub(crate) snapshot: &'a Snapshot,
    /// Environments with series of their own, by eid; absent while the state is not known.
    pub(crate) environments: Option<BTreeMap<&'a str, &'a Environment>>,
    /// Each device that one of them holds or uses, with the labels `eid` and `index`.
    pub(crate) environment_devices: Rows<&'a EnvironmentDevice>,
    /// Processes, as the driver tells them; absent while it does not, or if they are not wanted.
    pub(crate) processes: Option<Processes<'a>>,
    /// Whether it is known whose processes they are.
    pub(crate) owners: bool,
    /// GPUs that are up and may have processes that are not known.
    unknown_gpus: Vec<DeviceIndex>,
    /// Whether the processes of any GPU that is up are known, if one is up.
    countable: bool,
    /// How many have an environment or a process; absent while one of the two is wanted and not known.
    pub(crate) users_number: Option<usize>,
    /// Those with series of their own, by name.
    pub(crate) users: BTreeMap<&'a str, User>,
    /// What each user held and used of a device, with the labels `username` and `index`.
    pub(crate) user_device_use: Rows<&'a UserDeviceUse>,
}

/// The processes of a host.
pub(crate) struct Processes<'a> {
    /// How many there are, by [`Attribution::state`].
    pub(crate) states: States,
    /// How many use a device, by [`Attribution::state`].
    pub(crate) by_device: ByDevice<States>,
    /// How many belong to an environment, by eid.
    pub(crate) by_environment: HashMap<&'a str, usize>,
    /// Those with series of their own.
    pub(crate) largest: Vec<&'a Process>,
    /// Each device that one of them uses, with the labels [`PROCESS_LABELS`].
    pub(crate) devices: Rows<&'a ProcessDevice>,
    /// The others.
    pub(crate) others: Vec<&'a Process>,
}

/// A number of processes for each answer of attribution.
#[derive(Clone, Copy, Default)]
pub(crate) struct States {
    environment: usize,
    outside: usize,
    unknown: usize,
}

impl States {
    fn count(&mut self, attribution: &Attribution) {
        match attribution {
            Attribution::Environment { .. } => self.environment += 1,
            Attribution::Outside { .. } => self.outside += 1,
            Attribution::Unknown { .. } => self.unknown += 1,
        }
    }

    /// The numbers, with the words for the label `state`.
    pub(crate) fn each(self) -> [(&'static str, f64); 3] {
        [("environment", self.environment as f64), ("outside", self.outside as f64), ("unknown", self.unknown as f64)]
    }
}

/// What one user has on a host.
#[derive(Default)]
pub(crate) struct User {
    /// Environments.
    pub(crate) environments: usize,
    /// Devices attached to the user's environments.
    pub(crate) devices: BTreeSet<DeviceIndex>,
    /// Processes that use a device.
    pub(crate) processes: usize,
    /// Memory used on each device that the user holds or uses; absent where a process of the user
    /// could not be measured.
    pub(crate) memory_used_bytes: ByDevice<Option<f64>>,
}

impl<'a> Host<'a> {
    /// Derives what the families need.
    pub(crate) fn new(host: &'a HostSnapshot, limits: Limits) -> Self {
        let view = host.snapshot.as_deref();
        Self { host, view: view.map(|snapshot| View::new(snapshot, limits)) }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'a str {
        &self.host.hostname
    }

    /// Whether it delivers snapshots, and when the last one came.
    pub(crate) fn status(&self) -> &'a HostSnapshot {
        self.host
    }

    /// Its snapshot, if there is one.
    pub(crate) fn view(&self) -> Option<&View<'a>> {
        self.view.as_ref()
    }

    /// Its snapshot, if that tells which environments there are.
    pub(crate) fn known_state(&self) -> Option<&View<'a>> {
        self.view().filter(|view| view.environments.is_some())
    }

    /// Its processes, if it is known which there are.
    pub(crate) fn processes(&self) -> Option<&Processes<'a>> {
        self.view()?.processes.as_ref()
    }

    /// How it is reached, and its collectors by name, if there is a snapshot.
    pub(crate) fn collectors(&self) -> impl Iterator<Item = (&'a str, &'a CollectorStatus)> {
        let snapshot = self.host.snapshot.iter();
        let collectors = snapshot.flat_map(|snapshot| &snapshot.collectors);
        let collectors = collectors.map(|(name, status)| (name.as_str(), status));
        let ssh = self.host.ssh.iter().map(|status| (SSH, status));
        collectors.chain(ssh)
    }

    /// One kind of its counters, if there is a snapshot.
    pub(crate) fn counters<T>(&self, of: impl Fn(&'a Counters) -> &'a [T]) -> &'a [T] {
        let snapshot = self.host.snapshot.as_deref();
        snapshot.map_or(&[], |snapshot| of(&snapshot.counters))
    }

    /// Its devices, if there is a snapshot.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &'a Device> {
        self.host.snapshot.iter().flat_map(|snapshot| &snapshot.devices)
    }
}

impl<'a> View<'a> {
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
        let shown_environments = || environments.iter().flat_map(BTreeMap::values);
        let most = shown_environments().map(|environment| environment.devices.len());
        let mut environment_devices = Rows::with_capacity(&["eid", "index"], most.sum());
        for environment in shown_environments() {
            for device in &environment.devices {
                environment_devices.push(&[&environment.eid, &device.index], device);
            }
        }
        let wanted = |collector| snapshot.collectors.contains_key(collector);
        let owners = snapshot.owners();
        let all = snapshot.processes.iter();
        let all: Vec<_> = all.map(|it| (&**it, owners.of_process(it))).collect();
        let gpus = snapshot.devices.iter().map(|device| device.index);
        let (known_gpus, unknown_gpus): (Vec<_>, Vec<_>) =
            gpus.filter(|index| index.mig.is_none()).partition(|index| snapshot.processes_known(index.gpu));
        let countable = !known_gpus.is_empty() || unknown_gpus.is_empty();
        let processes = (current("gpu") && wanted("processes")).then(|| Processes::new(&all, limits));
        let owners = processes.is_some() && current("processes");
        let users = users(snapshot, state, owners.then_some(&all));
        let state_is_missing = wanted("state") && !state;
        let owners_are_missing = wanted("gpu") && wanted("processes") && !owners;
        let owners_are_missing = owners_are_missing || owners && !countable;
        let users_are_known = (state || owners) && !state_is_missing && !owners_are_missing;
        let uses = &snapshot.counters.user_device_use;
        let mut user_device_use = Rows::with_capacity(&["username", "index"], uses.len());
        for usage in uses {
            user_device_use.push(&[&usage.username, &usage.index], usage);
        }
        Self {
            snapshot,
            environments,
            environment_devices,
            processes,
            owners,
            unknown_gpus,
            countable,
            users_number: users_are_known.then_some(users.len()),
            users: shown(users, |user| user.processes > 0 || !user.devices.is_empty()),
            user_device_use,
        }
    }

    /// Processes to be counted, on the GPUs whose processes are known; absent if there is none of these.
    pub(crate) fn countable_processes(&self) -> Option<&Processes<'a>> {
        self.processes.as_ref().filter(|_| self.countable)
    }

    /// As [`View::countable_processes`], if it is known whose they are.
    pub(crate) fn owned_processes(&self) -> Option<&Processes<'a>> {
        self.countable_processes().filter(|_| self.owners)
    }

    /// Whether all processes on these GPUs are known: a count of those of their holder would else miss some.
    pub(crate) fn tells_all_of(&self, gpus: impl IntoIterator<Item = DeviceIndex>) -> bool {
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

impl<'a> Processes<'a> {
    fn new(all: &[Owned<'a>], limits: Limits) -> Self {
        let mut states = States::default();
        let mut by_device = ByDevice::<States>::default();
        let mut by_environment = HashMap::new();
        for (process, _) in all {
            states.count(&process.attribution);
            for index in devices_of(process) {
                let states = by_device.of(index, States::default);
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
        let most = largest.iter().map(|(process, _)| process.devices.len());
        let mut devices = Rows::with_capacity(PROCESS_LABELS, most.sum());
        for (process, username) in &largest {
            let eid = process.attribution.eid().unwrap_or_default();
            let username = username.unwrap_or_default();
            let comm = process.comm.as_deref().unwrap_or_default();
            for device in &process.devices {
                let labels: [&dyn LabelValue; 5] = [&device.index, &process.pid, &eid, &username, &comm];
                devices.push(&labels, device);
            }
        }
        let processes = |owned: Vec<Owned<'a>>| owned.into_iter().map(|(it, _)| it).collect();
        Self { states, by_device, by_environment, largest: processes(largest), devices, others: processes(others) }
    }
}

/// Everything a process holds on all devices; absent if no device tells.
fn memory_used_bytes(process: &Process) -> Option<u64> {
    let devices = process.devices.iter();
    devices
        .filter_map(|device| device.memory_used_bytes)
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

/// As many as may be shown, those that matter first, then by name.
fn shown<T>(all: BTreeMap<&str, T>, matters: impl Fn(&T) -> bool) -> BTreeMap<&str, T> {
    if all.len() <= SHOWN {
        return all;
    }
    let (first, then): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, one)| matters(one));
    first.into_iter().chain(then).take(SHOWN).collect()
}

/// All who have an environment, if these are known, or a process, if it is known whose they are.
fn users<'a>(snapshot: &'a Snapshot, state: bool, processes: Option<&Vec<Owned<'a>>>) -> BTreeMap<&'a str, User> {
    let mut users = BTreeMap::<_, User>::new();
    for environment in snapshot.environments.iter().filter(|_| state) {
        let user = users.entry(environment.username.as_str()).or_default();
        user.environments += 1;
        user.devices.extend(attached(environment));
    }
    let Some(processes) = processes else {
        return users;
    };
    let told = snapshot.devices.iter().filter(|device| device.processes_measured);
    let told: BTreeSet<_> = told.map(|device| device.index).collect();
    for user in users.values_mut() {
        let held = user.devices.intersection(&told);
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
            let all = told.contains(&device.index);
            let known = user.memory_used_bytes.of(device.index, || all.then_some(0.0));
            *known = known.zip(device.memory_used_bytes).map(|(sum, bytes)| sum + bytes as f64);
        }
    }
    users
}
