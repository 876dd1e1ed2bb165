//! The plain data of a snapshot. No I/O.
//!
//! The JSON form of [`Snapshot`] is a contract (`docs/snapshot.schema.json`): within one [`SNAPSHOT_VERSION`], fields
//! may be added, and are never renamed or removed. Readers ignore unknown fields.

mod changes;
mod confirmed;
mod counters;
mod device;
mod environment;
mod exact;
mod memory;
mod occupants;
mod packed;
mod process;
mod queue;
#[cfg(test)]
mod schema;
mod snapshot;
mod time;
mod withheld;

pub use changes::{Changes, SentChanges};
pub use confirmed::{Confirmed, ConfirmedChange, Joined};
pub(crate) use confirmed::{initial_pid_namespace, is_initial_pid_namespace};
pub use counters::{
    Counters, DeviceDistrusted, DeviceEnergy, DeviceSeconds, DeviceXid, NOBODY, UserDeviceUse, UserXid,
};
pub use device::{Attachment, Device, DeviceIndex, DeviceMeasurements, DeviceMemory, EccErrors, ParseDeviceIndexError};
pub use environment::{Environment, EnvironmentDevice, Member};
pub use memory::{LEAST_REQUESTED_BYTES, MemoryAmount, MemoryAmountError};
pub use occupants::Occupants;
pub use packed::{PackedNumber, PackedOption};
pub use process::{Attribution, Process, ProcessDevice, ProcessType};
pub use queue::QueuedProcess;
pub use snapshot::{CollectorStatus, HostSnapshot, Owners, Publication, SNAPSHOT_VERSION, Snapshot};
pub(crate) use time::{format_local_time, parse_local_time};
pub use time::{local_time_zone, machine_time_zone, now_seconds, system_time_zone};
pub use withheld::Withheld;
