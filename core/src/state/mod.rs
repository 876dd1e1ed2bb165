//! genv's state files: environments and their devices, read and changed.

pub mod allocate;
mod attachments;
mod change;
mod commit;
mod confirmed;
mod corrupt;
mod data;
mod device_entry;
mod device_locks;
mod directory;
mod document;
mod entries;
mod expected;
mod fates;
mod file;
mod inventory;
mod jobs;
mod kernels;
mod known;
mod leases;
mod left_out;
mod linger;
pub(crate) mod liveness;
mod members;
#[cfg(test)]
mod order;
mod own_file;
mod queue;
mod refused;
mod restore;
mod salvage;
pub mod shape;
mod state_lock;
mod store;
mod strangers;
mod surplus;
mod usage;
mod value;
mod waiting;
mod watched;

use allocate::DeviceUsage;
pub use change::{
    Attached, ConfigurationChange, EditableState, Enter, Facts, Founder, Left, Permission, Policy, Refusal, Reply,
    Request, Requester, SeenAttachment, Wish, apply,
};
pub use confirmed::read_confirmed;
pub use data::{
    Activation, AttachmentState, Configuration, DeviceState, EnvironmentState, LONGEST_LEASE, MemberId, MemberState,
    ProcessId, Started,
};
use data::{all_attached, attached};
pub use device_locks::{DeviceLocks, lock_devices};
pub use directory::{DEFAULT_DIRECTORY, StateDirectory, directory_path};
pub use expected::Expectation;
pub use fates::Contexts;
pub use inventory::Inventory;
pub use jobs::FindEnvironments;
pub use left_out::LeftOut;
pub(crate) use linger::{Belonging, belonging};
pub use linger::{linger_seconds, lingers};
pub use members::OtherRecords;
pub use queue::{RequestedDevices, Waiting, first_and_others, waiting_phrase};
pub use store::{DEFAULT_PATIENCE, StateStore, StoreError};
pub use usage::{Usage, UsageProcess, read_usage};
pub use watched::{is_on_network, watched_files};

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use crate::files::{LockError, LockHolder};
use crate::proc::ProcessTable;

const ENVIRONMENTS_FILE: &str = "envs.json";
const DEVICES_FILE: &str = "devices.json";
const MEMBERS_FILE: &str = "genv-members.json";

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
    /// When `envs.json` was last written, Unix time: a process that started later cannot be the member of a bare pid in
    /// the file.
    pub written_timestamp_seconds: Option<f64>,
    /// Environments, by eid; eids are distinct.
    pub environments: Vec<EnvironmentState>,
    /// Devices, by index.
    pub devices: Vec<DeviceState>,
    /// What the files have besides environments and devices.
    pub recorded: OtherRecords,
    /// The processes that wait for devices, in order of arrival. Only a reader of the directory sees the queue.
    pub queue: Vec<Waiting>,
    /// The number of refused requests for devices that could have waited, from a file that every user may write.
    pub refused_requests: u64,
    /// The ends of leases by environment, Unix time; each by a file that only the environment's user may write.
    pub leases: HashMap<String, f64>,
    /// Users (uid) of environments, by eid, whose listed Jupyter kernels were not found. A kernel may still run, if its
    /// user sets `JUPYTER_RUNTIME_DIR` to another folder than the searched one.
    pub kernels_not_found: BTreeMap<String, u32>,
    /// Whether the file is damaged and only its whole entries are here: other environments may exist.
    pub incomplete: bool,
    /// Names in damaged records that were left out of a whole file.
    pub left_out: Arc<LeftOut>,
    /// Entries that were damaged, and left out or taken in part, one sentence each.
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

    /// The last time at which a command saw a process of an environment with a context on its devices, Unix time.
    pub(crate) fn context_seconds(&self, environment: &EnvironmentState) -> Option<f64> {
        let known = self.recorded.known.get(&environment.eid);
        let known = known.filter(|known| known.is_of(environment))?;
        known.context_seconds
    }

    /// Restores environments that genv 1.x cleared and whose devices are free, for programs that only read: they decide
    /// by the processes whether an environment continues ([`linger`]).
    pub(crate) fn list_cleared(&mut self, table: &ProcessTable, now_seconds: f64) {
        for (environment, devices) in known::cleared(self, table) {
            if !devices.is_empty() {
                known::put_back(self, environment, &devices, now_seconds);
            }
        }
    }
}
