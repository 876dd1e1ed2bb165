//! The queue for devices.

use serde::{Deserialize, Serialize};

/// A process that waits for devices (`genv activate --wait`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QueuedProcess {
    /// Its pid, in the pid namespace of the writer.
    pub pid: u32,
    /// Its user; absent if the writer does not send uids.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Its user in the user database, else `uid:1234`.
    pub username: String,
    /// The number of devices that it waits for, as its user states it; absent if it waits for particular devices, or
    /// if the request is not known.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// When it began to wait, Unix time; the last change of its file.
    #[serde(default)]
    pub since_timestamp_seconds: Option<f64>,
}
