//! What makes one snapshot into the next. Most of what a host has stays as it is from one to the other.

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

/// How a snapshot differs from the one before it, from which what stays is borrowed until it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changes<'a> {
    /// All of the new snapshot but its lists, which are empty here; the queue is short, and whole.
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

/// A list, one piece after the other.
type Pieces<'a, T> = Vec<Piece<'a, T>>;

/// A part of a list. In JSON an array of two numbers, or an object.
///
/// One that came is boxed: a line of nothing but runs must not take much more memory than it is long.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Piece<'a, T> {
    /// Items of the list before: the position of the first, and how many.
    Run(usize, usize),
    /// An item that is new or changed, on its way.
    Leaving(&'a T),
    /// The same where it arrived.
    Arrived(Box<T>),
}

/// Changes that cannot be of the snapshot that they are applied to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangesError {
    /// A run ends after the list.
    #[error("{count} {list} from number {first} on, of {length}")]
    Beyond {
        /// Which list.
        list: &'static str,
        /// Position of the first item.
        first: usize,
        /// How many.
        count: usize,
        /// How many there are.
        length: usize,
    },
    /// Runs have an item of the list before more than once, which could make a list of any length.
    #[error("more than all {length} {list} of the snapshot before")]
    Repeated {
        /// Which list.
        list: &'static str,
        /// How many there are.
        length: usize,
    },
}

impl<'a> Changes<'a> {
    /// What makes `before` into `now`.
    #[must_use]
    pub fn between(before: &'a Snapshot, now: &'a Snapshot) -> Self {
        let Snapshot {
            version,
            hostname,
            timestamp_seconds,
            interval_seconds,
            installed,
            simulated,
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

    /// The snapshot that these changes make of the one before. Of that only the lists matter.
    ///
    /// # Errors
    /// They are not changes of this one.
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

/// The pieces that `now` is made of. `identity` finds an item that is not where it is expected.
fn pieces<'a, T: PartialEq, I: Eq + Hash>(
    before: &'a [T],
    now: &'a [T],
    identity: impl Fn(&'a T) -> I,
) -> Pieces<'a, T> {
    let mut pieces = Vec::new();
    let mut taken = vec![false; before.len()];
    let mut places = None;
    let mut expected = 0;
    for item in now {
        let id = identity(item);
        let place = match before.get(expected) {
            Some(it) if identity(it) == id => Some(expected),
            _ => {
                let all = || before.iter().map(&identity).zip(0..);
                let places: &mut HashMap<I, usize> = places.get_or_insert_with(|| all().collect());
                places.get(&id).copied()
            }
        };
        if let Some(place) = place {
            expected = place + 1;
        }
        match place.filter(|place| before[*place] == *item && !taken[*place]) {
            Some(place) => {
                taken[place] = true;
                match pieces.last_mut() {
                    Some(Piece::Run(first, count)) if *first + *count == place => *count += 1,
                    _ => pieces.push(Piece::Run(place, 1)),
                }
            }
            None => pieces.push(Piece::Leaving(item)),
        }
    }
    pieces
}

/// The list that pieces make.
fn list<T: Clone>(name: &'static str, pieces: Pieces<'_, T>, before: &[T]) -> Result<Vec<T>, ChangesError> {
    let length = before.len();
    let mut list = Vec::with_capacity(length);
    let mut left = length;
    for piece in pieces {
        match piece {
            Piece::Leaving(item) => list.push(item.clone()),
            Piece::Arrived(item) => list.push(*item),
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

/// Tells a run from an item by how it begins, where an untagged enum would keep all of it first.
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
        T::deserialize(MapAccessDeserializer::new(item)).map(|item| Piece::Arrived(Box::new(item)))
    }
}

#[cfg(test)]
mod tests;
