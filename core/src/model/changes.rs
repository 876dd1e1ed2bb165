//! The difference between two consecutive snapshots. Most facts of a host are equal in both.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Counters, Device, DeviceDistrusted, DeviceEnergy, DeviceXid, Environment, Process, Snapshot, UserDeviceUse, UserXid,
};

/// The difference of a snapshot from the one before. Changed items are borrowed from the new snapshot until they are
/// written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changes<'a> {
    /// The new snapshot with empty lists. Only the queue is whole, since it is short.
    rest: Box<Snapshot>,
    devices: Pieces<'a, Device>,
    environments: Pieces<'a, Arc<Environment>>,
    processes: Pieces<'a, Arc<Process>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    device_energy: Pieces<'a, DeviceEnergy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    device_xid_errors: Pieces<'a, DeviceXid>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    device_distrusted_readings: Pieces<'a, DeviceDistrusted>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    user_device_use: Pieces<'a, UserDeviceUse>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    user_xid_errors: Pieces<'a, UserXid>,
}

/// The pieces of a list, in order.
type Pieces<'a, T> = Vec<Piece<'a, T>>;

/// A part of a list. In JSON an array of two numbers, or an object.
///
/// A received item is boxed: a line with many runs must not take much more memory than its length.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Piece<'a, T> {
    /// Items of the list before: the position of the first one, and their number.
    Run(usize, usize),
    /// A new or changed item, to be sent.
    Sent(&'a T),
    /// A new or changed item, as received.
    Received(Box<T>),
}

/// Changes that do not belong to the snapshot before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangesError {
    /// A run ends after the list.
    #[error("{count} {list} from number {first} on, of {length}")]
    Beyond {
        /// The list.
        list: &'static str,
        /// Position of the first item.
        first: usize,
        /// The number of items of the run.
        count: usize,
        /// The length of the list before.
        length: usize,
    },
    /// Runs repeat items of the list before. Repetition could make a list of any length.
    #[error("more than all {length} {list} of the snapshot before")]
    Repeated {
        /// The list.
        list: &'static str,
        /// The length of the list before.
        length: usize,
    },
}

impl<'a> Changes<'a> {
    /// The changes from `before` to `now`.
    pub fn between(before: &'a Snapshot, now: &'a Snapshot) -> Self {
        let Snapshot {
            version,
            hostname,
            timestamp_seconds,
            interval_seconds,
            installed,
            simulated,
            sees_all_processes,
            driver_version,
            collectors,
            devices,
            environments,
            processes,
            queue,
            refused_requests,
            counters:
                Counters { device_energy, device_xid_errors, device_distrusted_readings, user_device_use, user_xid_errors },
        } = now;
        let counted = &before.counters;
        Self {
            rest: Box::new(Snapshot {
                version: *version,
                hostname: hostname.clone(),
                timestamp_seconds: *timestamp_seconds,
                interval_seconds: *interval_seconds,
                installed: *installed,
                simulated: *simulated,
                sees_all_processes: *sees_all_processes,
                driver_version: driver_version.clone(),
                collectors: collectors.clone(),
                queue: queue.clone(),
                refused_requests: *refused_requests,
                ..Snapshot::default()
            }),
            devices: pieces(&before.devices, devices, |it| it.index),
            environments: pieces(&before.environments, environments, |it| it.eid.as_str()),
            processes: pieces(&before.processes, processes, |it| (it.pid, it.start_time_ticks)),
            device_energy: pieces(&counted.device_energy, device_energy, |it| it.index),
            device_xid_errors: pieces(&counted.device_xid_errors, device_xid_errors, |it| (it.index, it.xid)),
            device_distrusted_readings: pieces(&counted.device_distrusted_readings, device_distrusted_readings, |it| {
                (it.index, it.reading.as_str())
            }),
            user_device_use: pieces(&counted.user_device_use, user_device_use, |it| (it.username.as_str(), it.index)),
            user_xid_errors: pieces(&counted.user_xid_errors, user_xid_errors, |it| {
                (it.username.as_str(), it.index, it.xid)
            }),
        }
    }

    /// Applies the changes to the snapshot before. Only the lists of `before` are read.
    ///
    /// # Errors
    /// The changes do not belong to `before`.
    pub fn apply(self, before: &Snapshot) -> Result<Snapshot, ChangesError> {
        let counted = &before.counters;
        Ok(Snapshot {
            devices: list("devices", self.devices, &before.devices)?,
            environments: list("environments", self.environments, &before.environments)?,
            processes: list("processes", self.processes, &before.processes)?,
            counters: Counters {
                device_energy: list("energies", self.device_energy, &counted.device_energy)?,
                device_xid_errors: list("XID errors", self.device_xid_errors, &counted.device_xid_errors)?,
                device_distrusted_readings: list(
                    "distrusted readings",
                    self.device_distrusted_readings,
                    &counted.device_distrusted_readings,
                )?,
                user_device_use: list("uses", self.user_device_use, &counted.user_device_use)?,
                user_xid_errors: list("XID errors of users", self.user_xid_errors, &counted.user_xid_errors)?,
            },
            ..*self.rest
        })
    }
}

/// The pieces of `now`. `identity` finds an item that is not at the expected position.
fn pieces<'a, T: PartialEq, I: Eq + Hash>(
    before: &'a [T],
    now: &'a [T],
    identity: impl Fn(&'a T) -> I,
) -> Pieces<'a, T> {
    let mut pieces = Vec::new();
    let mut taken = vec![false; before.len()];
    let mut positions = None;
    let mut expected = 0;
    for item in now {
        let id = identity(item);
        let position = match before.get(expected) {
            Some(it) if identity(it) == id => Some(expected),
            _ => {
                let all = || before.iter().map(&identity).zip(0..);
                let positions: &mut HashMap<I, usize> = positions.get_or_insert_with(|| all().collect());
                positions.get(&id).copied()
            }
        };
        if let Some(position) = position {
            expected = position + 1;
        }
        match position.filter(|position| before[*position] == *item && !taken[*position]) {
            Some(position) => {
                taken[position] = true;
                match pieces.last_mut() {
                    Some(Piece::Run(first, count)) if *first + *count == position => *count += 1,
                    _ => pieces.push(Piece::Run(position, 1)),
                }
            }
            None => pieces.push(Piece::Sent(item)),
        }
    }
    pieces
}

/// The list of these pieces.
fn list<T: Clone>(name: &'static str, pieces: Pieces<'_, T>, before: &[T]) -> Result<Vec<T>, ChangesError> {
    let length = before.len();
    let mut list = Vec::with_capacity(length);
    let mut left = length;
    for piece in pieces {
        match piece {
            Piece::Sent(item) => list.push(item.clone()),
            Piece::Received(item) => list.push(*item),
            Piece::Run(first, count) => {
                let end = first.checked_add(count);
                let run = end.and_then(|end| before.get(first..end));
                let run = run.ok_or(ChangesError::Beyond { list: name, first, count, length })?;
                left = left.checked_sub(count).ok_or(ChangesError::Repeated { list: name, length })?;
                list.extend_from_slice(run);
            }
        }
    }
    Ok(list)
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Piece<'_, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PieceVisitor(PhantomData))
    }
}

/// Distinguishes a run from an item by the first token. An untagged enum would first buffer the whole value.
struct PieceVisitor<'a, T>(PhantomData<Piece<'a, T>>);

impl<'de, 'a, T: Deserialize<'de>> Visitor<'de> for PieceVisitor<'a, T> {
    type Value = Piece<'a, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a run [first, count] or an item")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, run: A) -> Result<Self::Value, A::Error> {
        let (first, count) = Deserialize::deserialize(SeqAccessDeserializer::new(run))?;
        Ok(Piece::Run(first, count))
    }

    fn visit_map<A: MapAccess<'de>>(self, item: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(item)).map(|item| Piece::Received(Box::new(item)))
    }
}

#[cfg(test)]
mod tests;
