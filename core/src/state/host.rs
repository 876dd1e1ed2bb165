//! The state of a host as programs read it.

use std::collections::{BTreeMap, HashMap};

use super::allocate::DeviceUsage;
use super::data::{DeviceState, EnvironmentState, ProcessId, all_attached, attached};
use super::expected::Expectation;
use super::queue::Waiting;

/// The state.
pub(super) const STATE_FILE: &str = "state.json";
/// A copy of the state, which counts while the file is damaged or removed.
pub(super) const COPY_FILE: &str = "state-copy.json";
/// Both, in the order of writing.
pub(super) const FILES: [&str; 2] = [STATE_FILE, COPY_FILE];

/// A source of the state of a host: a state directory, or a simulation.
pub trait StateSource: Send {
    /// Reads the state once.
    ///
    /// # Errors
    /// The state could not be read now; the caller keeps the last good state and reports the error.
    fn read(&mut self) -> Result<State, StateError>;
}

/// Why the state could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StateError {
    /// The failure, the cause, and the remedy.
    pub message: String,
}

/// All environments and attachments of a host. A state directory that does not exist is an empty state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Whether genv is installed: the state directory exists, or `genv` is on PATH.
    pub installed: bool,
    /// When the state was last written, Unix time: a process that started later cannot be the member of a bare pid in
    /// the file.
    pub written_timestamp_seconds: Option<f64>,
    /// Environments, by eid; eids are distinct.
    pub environments: Vec<EnvironmentState>,
    /// Devices, by index.
    pub devices: Vec<DeviceState>,
    /// Whether the devices are simulated, if that is known.
    pub simulated: Option<bool>,
    /// The processes of the queue as the file lists them, in order of arrival, without proof that they wait.
    pub queued: Vec<ProcessId>,
    /// The processes that wait for devices, in order of arrival. Only a reader of the directory sees the queue.
    pub queue: Vec<Waiting>,
    /// The number of refused requests for devices that could have waited, from a file that every user may write.
    pub refused_requests: u64,
    /// The ends of leases by environment, Unix time; each by a file that only the environment's user may write.
    pub leases: HashMap<String, f64>,
    /// Users (uid) of environments, by eid, whose listed Jupyter kernels were not found. A kernel may still run, if its
    /// user sets `JUPYTER_RUNTIME_DIR` to another folder than the searched one.
    pub kernels_not_found: BTreeMap<String, u32>,
    /// Whether other environments may exist: the file is damaged and this is its copy, or an entry was left out.
    pub incomplete: bool,
    /// Entries that were left out or taken in part, one sentence each.
    pub warnings: Vec<String>,
}

impl State {
    /// Indices of the devices that an environment is attached to.
    pub fn attached(&self, eid: &str) -> Vec<u32> {
        attached(&self.devices, eid)
    }

    /// As [`State::attached`], for all environments with devices.
    pub fn all_attached(&self) -> HashMap<&str, Vec<u32>> {
        all_attached(&self.devices)
    }

    /// The end of an environment's lease, Unix time.
    pub fn lease_end(&self, eid: &str) -> Option<f64> {
        self.leases.get(eid).copied()
    }

    /// The expected times at which devices become free. Without models, they are not known for a request of a type.
    pub const fn expectation<'a>(&'a self, usage: &'a DeviceUsage, now_seconds: f64) -> Expectation<'a> {
        Expectation { devices: self.devices.as_slice(), leases: &self.leases, usage, now_seconds }
    }
}
