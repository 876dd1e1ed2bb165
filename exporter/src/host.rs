//! One host of a publication, with what several families need derived once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use genv_core::model::{
    Attribution, Device, DeviceIndex, Environment, HostSnapshot, Process, Snapshot,
};

use crate::families::Limits;

/// One host of a publication.
pub struct Host<'a> {
    host: &'a HostSnapshot,
    view: Option<View<'a>>,
}

/// The snapshot of a host, and what is derived from it.
pub(crate) struct View<'a> {
    /// The snapshot itself.
    pub(crate) snapshot: &'a Snapshot,
    /// Environments by eid; absent while the state is not known.
    pub(crate) environments: Option<BTreeMap<&'a str, &'a Environment>>,
    /// Processes with series of their own, and the others; absent while processes are not known.
    pub(crate) processes: Option<Processes<'a>>,
    /// Everybody who has an environment or a process, by name.
    pub(crate) users: BTreeMap<&'a str, User>,
}

/// The processes of a host.
pub(crate) struct Processes<'a> {
    /// How many there are, by [`Attribution::state`].
    pub(crate) states: States,
    /// How many use a device, by [`Attribution::state`].
    pub(crate) by_device: HashMap<DeviceIndex, States>,
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
        // What a collector tells is known only if the snapshot carries values that it read.
        let known = |collector: &str| {
            let status = snapshot.collectors.get(collector);
            status.is_some_and(|status| status.timestamp_seconds.is_some())
        };
        let environments = known("state").then(|| {
            let environments = snapshot.environments.iter();
            environments
                .map(|environment| (environment.eid.as_str(), environment))
                .collect()
        });
        let processes = (known("gpu") && known("processes"))
            .then(|| Processes::new(&snapshot.processes, limits));
        let users = users(snapshot, environments.as_ref(), processes.is_some());
        Self {
            snapshot,
            environments,
            processes,
            users,
        }
    }
}

impl<'a> Processes<'a> {
    fn new(all: &'a [Process], limits: Limits) -> Self {
        let mut states = States::default();
        let mut by_device = HashMap::<_, States>::new();
        let mut by_environment = HashMap::new();
        for process in all {
            states.count(&process.attribution);
            for index in distinct_devices(process) {
                by_device
                    .entry(index)
                    .or_default()
                    .count(&process.attribution);
            }
            if let Some(eid) = process.attribution.eid() {
                *by_environment.entry(eid).or_default() += 1;
            }
        }
        let mut largest: Vec<_> = all.iter().collect();
        let mut others = Vec::new();
        if largest.len() > limits.processes {
            // By pid among equals, so that the choice is the same at every publication.
            largest.sort_by_cached_key(|process| {
                (std::cmp::Reverse(memory_used_bytes(process)), process.pid)
            });
            others = largest.split_off(limits.processes);
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

fn distinct_devices(process: &Process) -> BTreeSet<DeviceIndex> {
    process.devices.iter().map(|device| device.index).collect()
}

fn users<'a>(
    snapshot: &'a Snapshot,
    environments: Option<&BTreeMap<&'a str, &'a Environment>>,
    processes: bool,
) -> BTreeMap<&'a str, User> {
    let mut users = BTreeMap::<_, User>::new();
    if let Some(environments) = environments {
        for environment in environments.values() {
            let user = users.entry(environment.username.as_str()).or_default();
            user.environments += 1;
        }
        for device in &snapshot.devices {
            for attachment in &device.attachments {
                if let Some(environment) = environments.get(attachment.eid.as_str()) {
                    let user = users.entry(environment.username.as_str()).or_default();
                    user.devices.insert(device.index);
                    if processes && device.processes_measured {
                        user.memory_used_bytes.insert(device.index, Some(0.0));
                    }
                }
            }
        }
    }
    for process in snapshot.processes.iter().filter(|_| processes) {
        let Some(username) = process.username.as_deref() else {
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
