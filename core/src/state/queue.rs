//! The queue for devices: its processes and their requests.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::allocate::{AttachRequest, DeviceKind, Selection};
use crate::model::MemoryAmount;
use crate::proc::username;
use crate::text::harmless;

/// The number of places of one user in the queue.
pub(super) const MOST_OF_ONE_USER: usize = 8;

/// A process that waits for devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its pid.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its request; absent if its file has none, as with earlier versions of this program.
    pub request: Option<RequestedDevices>,
    /// The last change of its file, Unix time in seconds: when it began to wait.
    pub since_timestamp_seconds: Option<i64>,
}

/// The devices that a process waits for, as its user states them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestedDevices {
    /// The number of devices in all; absent if particular devices are requested.
    pub gpus: Option<u32>,
    /// The index of the only particular device that is requested.
    pub index: Option<u32>,
    /// The indices of all particular devices that are requested.
    pub indices: BTreeSet<u32>,
    /// The requested types, see [`DeviceKind::types`](super::allocate::DeviceKind::types).
    pub gpu_types: Vec<String>,
    /// The least total memory of each device, bytes.
    pub gpu_memory_at_least_bytes: Option<u64>,
    /// The memory of each device, bytes; absent if all of it is requested.
    pub gpu_memory_bytes: Option<u64>,
}

impl RequestedDevices {
    pub(super) fn new(request: &AttachRequest, memory: Option<MemoryAmount>) -> Self {
        let (gpus, indices) = match &request.selection {
            Selection::Count(gpus) => (Some(*gpus), BTreeSet::new()),
            Selection::Indices(indices) => (None, indices.clone()),
        };
        Self {
            gpus,
            index: indices.first().copied().filter(|_| indices.len() == 1),
            indices,
            gpu_types: request.kind.types.clone(),
            gpu_memory_at_least_bytes: request.kind.memory_at_least.map(MemoryAmount::bytes),
            gpu_memory_bytes: memory.map(MemoryAmount::bytes),
        }
    }

    /// The indices of all particular devices that are requested. Earlier versions write one index alone.
    pub fn named(&self) -> impl Iterator<Item = u32> {
        let index = self.index.filter(|it| !self.indices.contains(it));
        self.indices.iter().copied().chain(index)
    }

    /// The devices that a requested number is about.
    pub fn kind(&self) -> DeviceKind {
        DeviceKind {
            types: self.gpu_types.clone(),
            memory_at_least: self.gpu_memory_at_least_bytes.map(MemoryAmount::from_bytes),
        }
    }
}

/// The waiting processes as the beginning of a sentence.
pub fn waiting_phrase(waiting: &[Waiting]) -> String {
    let who = first_and_others(waiting).unwrap_or_else(|| "another process".to_owned());
    let wait = if waiting.len() < 2 { "waits" } else { "wait" };
    format!("{who} {wait}")
}

/// The first of the waiting processes with user and pid, and the number of others.
pub fn first_and_others(waiting: &[Waiting]) -> Option<String> {
    let first = waiting.first()?;
    let first = format!("{} (process {})", harmless(&username(first.uid)), first.pid);
    Some(match waiting.len() {
        1 => first,
        2 => format!("{first} and 1 other"),
        all => format!("{first} and {} others", all - 1),
    })
}
