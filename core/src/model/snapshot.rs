//! One host at one moment, and the hosts that are published together.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use super::{Counters, Device, DeviceIndex, Environment, Process, QueuedProcess, Withheld, withheld};

/// Version of the snapshot's JSON form.
pub const SNAPSHOT_VERSION: u32 = 1;

/// The facts of one host at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// [`SNAPSHOT_VERSION`] of the writer.
    pub version: u32,
    /// Name of the host.
    pub hostname: String,
    /// When the snapshot was made, Unix time by the host's clock.
    pub timestamp_seconds: f64,
    /// Seconds between snapshots.
    pub interval_seconds: f64,
    /// Whether genv is installed: its state directory exists, or `genv` is on PATH.
    pub installed: bool,
    /// Whether its devices are simulated, by a scenario or a number of devices, rather than read from a driver.
    #[serde(default)]
    pub simulated: bool,
    /// Whether the pids are those of the machine's pid namespace, so that no process is hidden in another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sees_all_processes: bool,
    /// `nvmlSystemGetDriverVersion`.
    #[serde(default)]
    pub driver_version: Option<String>,
    /// The health of each collector, by name: `gpu`, `processes`, `state`.
    pub collectors: BTreeMap<String, CollectorStatus>,
    /// Every device that was seen, in the order of the indices.
    pub devices: Vec<Device>,
    /// Environments, by eid.
    pub environments: Vec<Arc<Environment>>,
    /// Processes that use a device, by pid.
    pub processes: Vec<Arc<Process>>,
    /// The processes that wait for devices, in order of arrival.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<QueuedProcess>,
    /// The number of refused requests for devices that could have waited, since the state directory was created; the
    /// length of a file that every user may write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_requests: Option<u64>,
    /// Accumulated since the collection began.
    pub counters: Counters,
}

/// The snapshot of a host without facts.
impl Default for Snapshot {
    fn default() -> Self {
        Self {
            version: SNAPSHOT_VERSION,
            hostname: String::new(),
            timestamp_seconds: 0.0,
            interval_seconds: 0.0,
            installed: false,
            simulated: false,
            sees_all_processes: false,
            driver_version: None,
            collectors: BTreeMap::new(),
            devices: Vec::new(),
            environments: Vec::new(),
            processes: Vec::new(),
            queue: Vec::new(),
            refused_requests: None,
            counters: Counters::default(),
        }
    }
}

impl Snapshot {
    /// An environment by its id.
    pub fn environment(&self, eid: &str) -> Option<&Environment> {
        let environments = &self.environments;
        let position = environments.binary_search_by(|it| it.eid.as_str().cmp(eid));
        position.ok().map(|position| &*environments[position])
    }

    /// Whether all processes on a whole GPU are known, those on its MIG devices included: only then is a GPU without a
    /// process free, and an environment without one idle.
    pub fn processes_known(&self, gpu: u32) -> bool {
        let whole = DeviceIndex::gpu(gpu);
        let mut of_gpu = self.devices.iter().filter(|it| it.index.whole() == whole);
        let Some(device) = of_gpu.clone().find(|it| it.index == whole) else {
            return false;
        };
        // A MIG device that is not up is gone: the GPU was split in another way.
        device.up
            && if device.mig_parent {
                of_gpu.all(|it| it.index == whole || !it.up || it.processes_measured)
            } else {
                device.processes_measured
            }
    }

    /// Whether the use of a whole GPU is measured: all its processes are known, and explain the readings of the GPU
    /// itself.
    pub fn use_measured(&self, gpu: u32) -> bool {
        let mut devices = self.devices.iter();
        self.processes_known(gpu) && !devices.any(|it| it.index.gpu == gpu && it.use_unexplained)
    }

    /// The name of the user for whom a process runs: the user of its environment, which may differ from the user of a
    /// process in a container; without an environment the user of the process, if known.
    pub fn user_of<'a>(&'a self, process: &'a Process) -> Option<&'a str> {
        let owner = |eid| self.environment(eid).map(|it| it.username.as_str());
        user(process, owner)
    }

    /// The users of all environments, for fast look-ups.
    pub fn owners(&self) -> Owners<'_> {
        let environments = self.environments.iter();
        Owners(environments.map(|it| (it.eid.as_str(), it.username.as_str())).collect())
    }
}

/// The users of a snapshot's environments.
#[derive(Debug)]
pub struct Owners<'a>(HashMap<&'a str, &'a str>);

impl<'a> Owners<'a> {
    /// The user of an environment, if the environment exists.
    pub fn of_environment(&self, eid: &str) -> Option<&'a str> {
        self.0.get(eid).copied()
    }

    /// As [`Snapshot::user_of`].
    pub fn of_process(&self, process: &'a Process) -> Option<&'a str> {
        user(process, |eid| self.of_environment(eid))
    }
}

fn user<'a>(process: &'a Process, owner: impl FnOnce(&'a str) -> Option<&'a str>) -> Option<&'a str> {
    match process.attribution.eid() {
        Some(eid) => owner(eid),
        None => process.username.as_deref(),
    }
}

/// Health of one collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CollectorStatus {
    /// Whether the last attempt succeeded.
    pub success: bool,
    /// Whether the snapshot has values of the collector: not before its first values, and not after they became too
    /// old. Environments also need the living processes.
    #[serde(default)]
    pub current: bool,
    /// How long the last finished attempt took; absent before the first.
    #[serde(default)]
    pub duration_seconds: Option<f64>,
    /// When its last values were read, Unix time; absent if none were read.
    #[serde(default)]
    pub timestamp_seconds: Option<f64>,
    /// The failure, the damage, or the remedy, and the withheld values; absent without a fault.
    #[serde(default)]
    pub error: Option<String>,
    /// The error without the withheld values; absent where no value is withheld: then `error` has the whole fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The values that the last attempt did not give, or that are not believed, although the attempt succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<Withheld>,
}

impl CollectorStatus {
    /// When the last values were requested, Unix time. The values show every event before that time.
    pub fn asked_seconds(&self) -> Option<f64> {
        Some(self.timestamp_seconds? - self.duration_seconds.unwrap_or_default())
    }

    /// The error without the withheld values.
    pub fn fault(&self) -> Option<&str> {
        let error = self.error.as_deref().filter(|_| self.withheld.is_empty());
        self.fault.as_deref().or(error)
    }

    /// Names these values, after the fault in the error.
    pub(crate) fn withhold(&mut self, withheld: Vec<Withheld>) {
        if withheld.is_empty() {
            return;
        }
        let named = withheld::text(&withheld);
        self.fault = self.error.take();
        self.error = Some(match &self.fault {
            Some(fault) => format!("{fault}; {named}"),
            None => named,
        });
        self.withheld = withheld;
    }
}

/// One host of a publication.
#[derive(Clone, Debug)]
pub struct HostSnapshot {
    /// Name of the host; the `hostname` label of all its series.
    pub hostname: String,
    /// Whether the host delivers snapshots.
    pub up: bool,
    /// When the snapshot was received, Unix time by this machine's clock.
    pub received_timestamp_seconds: Option<f64>,
    /// The latest snapshot; absent if there never was one, or it became too old.
    pub snapshot: Option<Arc<Snapshot>>,
    /// The health of its SSH session; absent for a host without one.
    pub ssh: Option<CollectorStatus>,
}

/// One publication of a stream: all hosts, also those that do not answer.
#[derive(Clone, Debug, Default)]
pub struct Publication {
    /// Counts publications from 1; 0 is the empty one before the first.
    pub sequence: u64,
    /// Hosts in configured order; names are distinct.
    pub hosts: Vec<HostSnapshot>,
}
