//! Use of devices that no environment of the user holds. Such use keeps a device from being assigned.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{ProcessType, local_time_zone};
use crate::text::{gibibytes, harmless, moment};

/// A process with a compute context on a GPU, in no environment that holds the GPU. Processes of root do not count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutsideUse {
    /// The GPU.
    pub gpu: u32,
    /// The process.
    pub pid: u32,
    /// The start of the process in clock ticks since boot.
    pub start_time_ticks: u64,
    /// The user of the process; for a subordinate uid, the owner of that uid.
    pub uid: u32,
    /// The user's name, else `uid:1234`.
    pub username: String,
    /// Memory of the GPU that the process holds; absent where the driver does not report it.
    pub memory_used_bytes: Option<u64>,
    /// The start of the process, Unix time; absent in the enforcer's published file.
    #[serde(skip)]
    pub started_timestamp_seconds: Option<f64>,
}

/// Whether a process of this type has a compute context. A graphics context alone does not disturb computation.
pub const fn computes(process_type: ProcessType) -> bool {
    matches!(process_type, ProcessType::Compute | ProcessType::ComputeAndGraphics)
}

/// `process 4711 of bob (2.0 GiB, since 2026-11-23 10:02)`
impl fmt::Display for OutsideUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {} (", self.pid, harmless(&self.username))?;
        match self.memory_used_bytes {
            Some(bytes) => f.write_str(&memory(bytes))?,
            None => f.write_str("memory not known")?,
        }
        if let Some(started) = self.started_timestamp_seconds {
            write!(f, ", since {}", moment(started, &local_time_zone()))?;
        }
        f.write_str(")")
    }
}

/// An amount of memory in a readable unit.
pub fn memory(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1 << 30 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} GiB", gibibytes(bytes)),
    }
}
