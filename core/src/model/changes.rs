//! The difference between two consecutive snapshots, as JSON. Most facts of a host are equal in both.
//!
//! Of a struct it has the fields that differ. Of a list it has pieces: `[first, count]` for items of the list before,
//! `[position, {…}]` for an item of that list with the difference of its fields, and new items.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap as _, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{
    Counters, Device, DeviceDistrusted, DeviceEnergy, DeviceIndex, DeviceMeasurements, DeviceXid, Environment,
    EnvironmentDevice, Process, ProcessDevice, Snapshot, UserDeviceUse, UserXid,
};

/// The difference of a snapshot from the one before, to be written as JSON.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Changes<'a>(Difference<'a, Snapshot>);

impl<'a> Changes<'a> {
    /// The changes from `before` to `now`.
    pub const fn between(before: &'a Snapshot, now: &'a Snapshot) -> Self {
        Self(Difference { before, now })
    }
}

/// [`Changes`] as another host sent them, in no more memory than their JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SentChanges(Box<RawValue>);

impl SentChanges {
    /// The snapshot that the changes make of the one before.
    ///
    /// # Errors
    /// They are no changes, or do not belong to `before`.
    pub fn apply(&self, before: &Snapshot) -> serde_json::Result<Snapshot> {
        Snapshot::read(before, &mut serde_json::Deserializer::from_str(self.0.get()))
    }
}

impl PartialEq for SentChanges {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// A value that is written as its difference from another one.
trait Differ: Sized {
    /// Writes the difference from `before`.
    fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error>;

    /// The value that has the read difference from `before`.
    fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Self, D::Error>;
}

/// An item of a list.
trait Item: Differ + Clone + PartialEq + Serialize + DeserializeOwned {
    /// What tells it from all other items of a correct list.
    type Id<'a>: Eq + Hash
    where
        Self: 'a;

    fn id(&self) -> Self::Id<'_>;
}

#[derive(Debug)]
struct Difference<'a, T> {
    before: &'a T,
    now: &'a T,
}

impl<T: Differ> Serialize for Difference<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.now.write(self.before, serializer)
    }
}

/// Reads a difference from this value.
struct From<'a, T>(&'a T);

impl<'de, T: Differ> DeserializeSeed<'de> for From<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::read(self.0, deserializer)
    }
}

/// The fields of a struct: first those that are written whole, then those that are written as a difference.
macro_rules! fields {
    ($type:ty { $($whole:ident),*; $($part:ident),* }) => {
        impl Differ for $type {
            fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self { $($whole,)* $($part,)* } = self;
                let mut fields = serializer.serialize_map(None)?;
                $(if *$whole != before.$whole {
                    fields.serialize_entry(stringify!($whole), $whole)?;
                })*
                $(if *$part != before.$part {
                    fields.serialize_entry(stringify!($part), &Difference { before: &before.$part, now: $part })?;
                })*
                fields.end()
            }

            fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Self, D::Error> {
                struct Fields<'a>(&'a $type);

                impl<'de> Visitor<'de> for Fields<'_> {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("changed fields of ", stringify!($type)))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<$type, A::Error> {
                        let before = self.0;
                        $(let mut $whole = None;)*
                        $(let mut $part = None;)*
                        while let Some(field) = fields.next_key::<&str>()? {
                            match field {
                                $(stringify!($whole) => {
                                    once(&mut $whole, stringify!($whole), fields.next_value()?)?;
                                })*
                                $(stringify!($part) => {
                                    once(&mut $part, stringify!($part), fields.next_value_seed(From(&before.$part))?)?;
                                })*
                                _ => {
                                    fields.next_value::<IgnoredAny>()?;
                                }
                            }
                        }
                        Ok(Self::Value {
                            $($whole: $whole.unwrap_or_else(|| before.$whole.clone()),)*
                            $($part: $part.unwrap_or_else(|| before.$part.clone()),)*
                        })
                    }
                }

                deserializer.deserialize_map(Fields(before))
            }
        }
    };
}

/// Sets a field that was not set before.
fn once<T, E: serde::de::Error>(field: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(name)),
    }
}

fields!(Snapshot {
    version, hostname, timestamp_seconds, interval_seconds, installed, simulated, sees_all_processes, driver_version,
    collectors, queue, refused_requests;
    devices, environments, processes, counters
});
fields!(Device {
    index, uuid, up, name, minor, profile, gpu_instance, mig_parent, mig_unsplit, processes_measured, use_unexplained,
    contradictory, measurement_stuck, attachments;
    measurements
});
fields!(DeviceMeasurements {
    utilization_ratio, memory_controller_busy_ratio, encoder_utilization_ratio, decoder_utilization_ratio, memory,
    temperature_celsius, temperature_limits_celsius, power_watts, power_limit_watts, energy_joules, clocks_hertz,
    fan_speed_ratios, throttled, ecc_errors, pcie_replays;
});
fields!(Environment {
    eid, uid, username, name, created_timestamp_seconds, lease_end_timestamp_seconds, gpus, gpu_memory_bytes,
    oldest_member_started_timestamp_seconds, foreign_members, members, kernel_ids, confirmed;
    devices
});
fields!(EnvironmentDevice {
    index, attached, memory_used_bytes, memory_capacity_bytes, utilization_ratio, last_active_timestamp_seconds;
});
fields!(Process {
    pid, start_time_ticks, uid, username, comm, container_id, attribution;
    devices
});
fields!(ProcessDevice { index, process_type, memory_used_bytes, utilization_ratio; });
fields!(Counters {
    ;
    device_energy, device_xid_errors, device_distrusted_readings, user_device_use, user_xid_errors
});
fields!(DeviceEnergy { index, energy_joules; });
fields!(DeviceXid { index, xid, errors, last_timestamp_seconds; });
fields!(DeviceDistrusted { index, reading, readings; });
fields!(UserDeviceUse { username, index, device_seconds, utilized_device_seconds, energy_joules; });
fields!(UserXid { username, index, xid, errors; });

macro_rules! item {
    ($type:ty, |$item:ident| -> $id:ty { $value:expr }) => {
        impl Item for $type {
            type Id<'a> = $id;

            fn id(&self) -> Self::Id<'_> {
                let $item = self;
                $value
            }
        }
    };
}

item!(Device, |it| -> DeviceIndex { it.index });
item!(Environment, |it| -> &'a str { it.eid.as_str() });
item!(EnvironmentDevice, |it| -> DeviceIndex { it.index });
item!(Process, |it| -> (u32, Option<u64>) { (it.pid, it.start_time_ticks) });
item!(ProcessDevice, |it| -> DeviceIndex { it.index });
item!(DeviceEnergy, |it| -> DeviceIndex { it.index });
item!(DeviceXid, |it| -> (DeviceIndex, u64) { (it.index, it.xid) });
item!(DeviceDistrusted, |it| -> (DeviceIndex, &'a str) { (it.index, it.reading.as_str()) });
item!(UserDeviceUse, |it| -> (&'a str, DeviceIndex) { (it.username.as_str(), it.index) });
item!(UserXid, |it| -> (&'a str, DeviceIndex, u64) { (it.username.as_str(), it.index, it.xid) });

impl<T: Differ> Differ for Arc<T> {
    fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error> {
        T::write(self, before, serializer)
    }

    fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Self, D::Error> {
        T::read(before, deserializer).map(Self::new)
    }
}

impl<T: Item> Item for Arc<T> {
    type Id<'a>
        = T::Id<'a>
    where
        T: 'a;

    fn id(&self) -> T::Id<'_> {
        T::id(self)
    }
}

fn write_run<S: SerializeSeq>(pieces: &mut S, run: &Range<usize>) -> Result<(), S::Error> {
    if run.is_empty() { Ok(()) } else { pieces.serialize_element(&(run.start, run.len())) }
}

impl<T: Item> Differ for Vec<T> {
    fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pieces = serializer.serialize_seq(None)?;
        let mut taken = vec![false; before.len()];
        let mut positions = None;
        let mut expected = 0;
        // Unchanged items that are not written yet.
        let mut run = 0..0;
        for item in self {
            let id = item.id();
            let position = match before.get(expected) {
                Some(it) if it.id() == id => Some(expected),
                _ => {
                    let all = || before.iter().map(T::id).zip(0..);
                    let positions: &mut HashMap<T::Id<'_>, usize> = positions.get_or_insert_with(|| all().collect());
                    positions.get(&id).copied()
                }
            };
            let position = position.filter(|at| !std::mem::replace(&mut taken[*at], true));
            if let Some(at) = position {
                expected = at + 1;
            }
            let unchanged = position.filter(|at| before[*at] == *item);
            if unchanged == Some(run.end) {
                run.end += 1;
                continue;
            }
            write_run(&mut pieces, &run)?;
            run = match (position, unchanged) {
                (_, Some(at)) => at..at + 1,
                (Some(at), None) => {
                    pieces.serialize_element(&(at, Difference { before: &before[at], now: item }))?;
                    expected..expected
                }
                (None, None) => {
                    pieces.serialize_element(item)?;
                    expected..expected
                }
            };
        }
        write_run(&mut pieces, &run)?;
        pieces.end()
    }

    fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Self, D::Error> {
        let length = before.len();
        let list = List { before, taken: vec![false; length], items: Self::with_capacity(length) };
        deserializer.deserialize_seq(list)
    }
}

/// A list that is read, as far as it has items.
struct List<'a, T> {
    before: &'a [T],
    /// The items of the list before that it has. None is taken twice, which could make a list of any size.
    taken: Vec<bool>,
    items: Vec<T>,
}

impl<'a, T> List<'a, T> {
    fn take(&mut self, first: usize, count: usize) -> Result<&'a [T], String> {
        let run = first..first.saturating_add(count);
        let (Some(items), Some(taken)) = (self.before.get(run.clone()), self.taken.get_mut(run)) else {
            return Err(format!("{count} items from number {first} on, of {}", self.before.len()));
        };
        if taken.contains(&true) {
            return Err(format!("{count} items from number {first} on, not all of them for the first time"));
        }
        taken.fill(true);
        Ok(items)
    }
}

impl<'de, T: Item> Visitor<'de> for List<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pieces of a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut pieces: A) -> Result<Vec<T>, A::Error> {
        while pieces.next_element_seed(Piece(&mut self))?.is_some() {}
        Ok(self.items)
    }
}

/// Reads the next piece of a list.
struct Piece<'l, 'a, T>(&'l mut List<'a, T>);

impl<'de, T: Item> DeserializeSeed<'de> for Piece<'_, '_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Item> Visitor<'de> for Piece<'_, '_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a run [first, count], a changed item [position, {…}] or a new item")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut piece: A) -> Result<(), A::Error> {
        let Some(first) = piece.next_element()? else {
            return Err(A::Error::invalid_length(0, &self));
        };
        let list = self.0;
        let read = piece.next_element_seed(FromBefore { list: &mut *list, first })?;
        read.ok_or_else(|| A::Error::invalid_length(1, &Piece(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, item: A) -> Result<(), A::Error> {
        self.0.items.push(T::deserialize(MapAccessDeserializer::new(item))?);
        Ok(())
    }
}

/// Reads what comes of the list before, from this position on.
struct FromBefore<'l, 'a, T> {
    list: &'l mut List<'a, T>,
    first: usize,
}

impl<'de, T: Item> DeserializeSeed<'de> for FromBefore<'_, '_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Item> Visitor<'de> for FromBefore<'_, '_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of items or changed fields")
    }

    fn visit_u64<E: serde::de::Error>(self, count: u64) -> Result<(), E> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let items = self.list.take(self.first, count).map_err(E::custom)?;
        self.list.items.extend_from_slice(items);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<(), A::Error> {
        let before = self.list.take(self.first, 1).map_err(A::Error::custom)?;
        self.list.items.push(T::read(&before[0], MapAccessDeserializer::new(fields))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
