//! genv's state: environments and their devices, read and changed.

pub mod allocate;
mod change;
mod commit;
mod confirmed;
mod corrupt;
mod data;
mod device_locks;
mod directory;
mod expected;
mod failure;
mod fates;
mod file;
mod genv1;
mod host;
mod import;
mod inventory;
mod jobs;
mod kernels;
mod leases;
mod linger;
mod liveness;
#[cfg(test)]
mod order;
mod own_file;
mod queue;
mod record;
mod refused;
pub mod shape;
pub(crate) mod standing;
mod state_lock;
mod store;
mod strangers;
mod surplus;
mod usage;
mod waiting;
mod watched;
mod written;

pub use change::{
    Attached, ConfigurationChange, EditableState, Enter, Facts, Founder, Left, Permission, Policy, Refusal, Reply,
    Request, Requester, SeenAttachment, Wish, apply,
};
pub use confirmed::read_confirmed;
pub use data::{
    Activation, AttachmentState, Configuration, DeviceState, EnvironmentState, LONGEST_LEASE, MemberId, MemberState,
    ProcessId, Started,
};
pub use device_locks::{DeviceLocks, lock_devices};
pub use directory::{DEFAULT_DIRECTORY, StateDirectory, directory_path};
pub use expected::Expectation;
pub use failure::StoreError;
pub use fates::Contexts;
pub use host::{State, StateError, StateSource};
pub use inventory::Inventory;
pub use jobs::FindEnvironments;
pub(crate) use linger::{Belonging, belonging};
pub use linger::{linger_seconds, lingers};
pub use queue::{RequestedDevices, Waiting, first_and_others, waiting_phrase};
pub use store::{DEFAULT_PATIENCE, StateStore};
pub use usage::{Usage, UsageProcess, read_usage};
pub use watched::{is_on_network, watched_files};

pub use crate::files::{LockError, LockHolder};
