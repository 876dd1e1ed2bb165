//! One host of a publication, with what several families need derived once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use genv_core::model::{
    Attribution, CollectorStatus, Counters, Device, DeviceIndex, Environment, HostSnapshot,
    Process, Snapshot,
};

use genv_web::SSH;

use crate::families::Limits;

/// Environments, and users, of a host that have series of their own. Whoever may write the state may invent
/// any number of either.
const SHOWN: usize = 1000;

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
    /// Processes, as the driver tells them; absent while it does not, or if they are not wanted.
    pub(crate) processes: Option<Processes<'a>>,
    /// Whether it is known whose processes they are.
    pub(crate) owners: bool,
    /// How many have an environment or a process; absent while one of the two is wanted and not known.
    pub(crate) users_number: Option<usize>,
    /// Those with series of their own, by name.
    pub(crate) users: BTreeMap<&'a str, User>,
}

/// The processes of a host.
pub(crate) struct Processes<'a> {
    /// How many there are, by [`Attribution::state`].
    pub(crate) states: States,
    /// How many use a device, by [`Attribution::state`].
    pub(crate) by_device: BTreeMap<DeviceIndex, States>,
    /// How many belong to an environment, by eid.
    pub(crate) by_environment: HashMap<&'a str, usize>,
    /// Those with series of their own.
    pub(crate) largest: Vec<&'a Process>,
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
        [
            ("environment", self.environment as f64),
            ("outside", self.outside as f64),
            ("unknown", self.unknown as f64),
        ]
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
    pub(crate) memory_used_bytes: BTreeMap<DeviceIndex, Option<f64>>,
}

impl<'a> Host<'a> {
    /// Derives what the families need.
    pub(crate) fn new(host: &'a HostSnapshot, limits: Limits) -> Self {
        let view = host.snapshot.as_deref();
        Self {
            host,
            view: view.map(|snapshot| View::new(snapshot, limits)),
        }
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
        self.host
            .snapshot
            .iter()
            .flat_map(|snapshot| &snapshot.devices)
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
            shown(by_eid.collect(), |environment| {
                !environment.devices.is_empty()
            })
        });
        let wanted = |collector| snapshot.collectors.contains_key(collector);
        let processes = (current("gpu") && wanted("processes"))
            .then(|| Processes::new(&snapshot.processes, limits));
        let owners = processes.is_some() && current("processes");
        let users = users(snapshot, state, owners);
        let state_is_missing = wanted("state") && !state;
        let owners_are_missing = wanted("gpu") && wanted("processes") && !owners;
        let complete = (state || owners) && !state_is_missing && !owners_are_missing;
        Self {
            snapshot,
            environments,
            processes,
            owners,
            users_number: complete.then_some(users.len()),
            users: shown(users, |user| user.processes > 0 || !user.devices.is_empty()),
        }
    }

    /// Processes, if it is known whose they are.
    pub(crate) fn owned_processes(&self) -> Option<&Processes<'a>> {
        self.processes.as_ref().filter(|_| self.owners)
    }
}

/// The GPUs to which an environment is attached.
pub(crate) fn attached(environment: &Environment) -> impl Iterator<Item = DeviceIndex> {
    let devices = environment.devices.iter();
    devices
        .filter(|device| device.attached)
        .map(|device| device.index)
}

impl<'a> Processes<'a> {
    fn new(all: &'a [Arc<Process>], limits: Limits) -> Self {
        let mut states = States::default();
        let mut by_device = BTreeMap::<_, States>::new();
        let mut by_environment = HashMap::new();
        for process in all {
            states.count(&process.attribution);
            for index in devices_of(process) {
                by_device
                    .entry(index)
                    .or_default()
                    .count(&process.attribution);
            }
            if let Some(eid) = process.attribution.eid() {
                *by_environment.entry(eid).or_default() += 1;
            }
        }
        let mut largest: Vec<_> = all.iter().map(Arc::as_ref).collect();
        let mut others = Vec::new();
        let limit = limits.processes.unwrap_or(0);
        if limits.processes.is_none() {
            largest.clear();
        } else if largest.len() > limit {
            // By pid among equals, so that the choice is the same at every publication.
            largest.sort_by_cached_key(|process| {
                (std::cmp::Reverse(memory_used_bytes(process)), process.pid)
            });
            others = largest.split_off(limit);
            largest.sort_by_key(|process| process.pid);
        }
        Self {
            states,
            by_device,
            by_environment,
            largest,
            others,
        }
    }
}

/// Everything a process holds on all devices; absent if no device tells.
fn memory_used_bytes(process: &Process) -> Option<u64> {
    let devices = process.devices.iter();
    devices
        .filter_map(|device| device.memory_used_bytes)
        .fold(None, |sum, bytes| {
            Some(sum.unwrap_or(0_u64).saturating_add(bytes))
        })
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

fn users(snapshot: &Snapshot, state: bool, owners: bool) -> BTreeMap<&str, User> {
    let mut users = BTreeMap::<_, User>::new();
    for environment in snapshot.environments.iter().filter(|_| state) {
        let user = users.entry(environment.username.as_str()).or_default();
        user.environments += 1;
        user.devices.extend(attached(environment));
    }
    if !owners {
        return users;
    }
    let told = snapshot
        .devices
        .iter()
        .filter(|device| device.processes_measured);
    let told: BTreeSet<_> = told.map(|device| device.index).collect();
    for user in users.values_mut() {
        let held = user.devices.intersection(&told);
        user.memory_used_bytes = held.map(|index| (*index, Some(0.0))).collect();
    }
    for process in &snapshot.processes {
        let Some(username) = snapshot.user_of(process) else {
            continue;
        };
        let user = users.entry(username).or_default();
        user.processes += 1;
        for device in &process.devices {
            let known = user
                .memory_used_bytes
                .entry(device.index)
                .or_insert(Some(0.0));
            *known = known
                .zip(device.memory_used_bytes)
                .map(|(sum, bytes)| sum + bytes as f64);
        }
    }
    users
}
