//! Counters that the collection accumulates; they live as long as the collecting program.

use serde::{Deserialize, Serialize};

use super::DeviceIndex;

/// The username for use without a known user.
pub const NOBODY: &str = "(none)";

/// All accumulated counters of one host. A counter appears in one snapshot as 0 before it rises.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Counters {
    /// Energy by device.
    pub device_energy: Vec<DeviceEnergy>,
    /// XID errors by device and code.
    pub device_xid_errors: Vec<DeviceXid>,
    /// Values that were out of their bounds, by device and reading.
    pub device_distrusted_readings: Vec<DeviceDistrusted>,
    /// Use by user and device.
    pub user_device_use: Vec<UserDeviceUse>,
    /// XID errors charged to the users who held the device.
    pub user_xid_errors: Vec<UserXid>,
}

/// Energy that one device used since the collection began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceEnergy {
    /// Whole GPU.
    pub index: DeviceIndex,
    /// Joules; equals the sum over users, `(none)` included.
    pub energy_joules: f64,
}

/// XID errors of one code on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceXid {
    /// Whole GPU.
    pub index: DeviceIndex,
    /// NVIDIA's XID code.
    pub xid: u64,
    /// The number of them.
    pub errors: u64,
    /// When the last one happened, Unix time; absent while the counter is at 0.
    #[serde(default)]
    pub last_timestamp_seconds: Option<f64>,
}

/// Impossible values of one kind that the driver reported for a device. The snapshot does not have these values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceDistrusted {
    /// The device.
    pub index: DeviceIndex,
    /// Kind of the values: see [`crate::gpu::bounds::Distrusted::reading`].
    pub reading: String,
    /// The number of them.
    pub readings: u64,
}

/// XID errors of one code that hit one user on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UserXid {
    /// The user who held the device.
    pub username: String,
    /// Whole GPU.
    pub index: DeviceIndex,
    /// NVIDIA's XID code.
    pub xid: u64,
    /// The number of them.
    pub errors: u64,
}

/// One user's hold and use of one device since the collection began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UserDeviceUse {
    /// The user; [`NOBODY`] has energy alone.
    pub username: String,
    /// Whole GPU.
    pub index: DeviceIndex,
    /// Time by kind of use; absent for [`NOBODY`].
    #[serde(default)]
    pub device_seconds: Option<DeviceSeconds>,
    /// Utilization of the user's processes × seconds; all users of a device together at most 1 per second. Absent for
    /// [`NOBODY`], and if the driver never reported the utilization of a process.
    #[serde(default)]
    pub utilized_device_seconds: Option<f64>,
    /// Joules caused by the user; absent if the driver never reported energy or power.
    #[serde(default)]
    pub energy_joules: Option<f64>,
}

/// Share × seconds by kind of use; `outside` has no share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DeviceSeconds {
    /// The user's processes on the device reached the busy threshold.
    pub busy: f64,
    /// The user's processes did not reach the busy threshold, or there were none.
    pub idle: f64,
    /// The driver did not report the use.
    pub unmeasured: f64,
    /// A process of the user used the device without an environment.
    pub outside: f64,
}
