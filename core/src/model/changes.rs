//! The difference between two consecutive snapshots, as JSON. Most facts of a host are equal in both.
//!
//! Of a struct it has the fields that differ, by their names in the snapshot's JSON. Each field has its whole value, except
//! those that `fields!` names last: these structs and lists have their difference.

mod list;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{
    Counters, Device, DeviceDistrusted, DeviceEnergy, DeviceIndex, DeviceMeasurements, DeviceXid, Environment,
    EnvironmentDevice, Process, ProcessDevice, Snapshot, UserDeviceUse, UserXid,
};
use list::Item;

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
        Before(before).deserialize(&mut serde_json::Deserializer::from_str(self.0.get()))
    }
}

impl PartialEq for SentChanges {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

/// A value that is written as its difference from another one.
trait Differ: Clone {
    /// Writes the difference from `before`.
    fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error>;

    /// The value that has the read difference from `before`; nothing if the difference has no fields, so that a shared value
    /// stays shared.
    fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Option<Self>, D::Error>;
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
struct Before<'a, T>(&'a T);

impl<'de, T: Differ> DeserializeSeed<'de> for Before<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        Ok(T::read(self.0, deserializer)?.unwrap_or_else(|| self.0.clone()))
    }
}

/// The name of a field. It is owned if its JSON has an escape.
#[derive(Deserialize)]
struct FieldName<'a>(#[serde(borrow)] Cow<'a, str>);

/// The name of a field in the snapshot's JSON.
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// The fields of a struct, with the name in JSON of a renamed one: first those that are written whole, then those that are
/// written as a difference.
macro_rules! fields {
    ($type:ident { $($whole:ident $(= $name:literal)?),*; $($part:ident),* }) => {
        impl Differ for $type {
            fn write<S: Serializer>(&self, before: &Self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self { $($whole,)* $($part,)* } = self;
                let mut fields = serializer.serialize_map(None)?;
                $(if *$whole != before.$whole {
                    fields.serialize_entry(name!($whole $($name)?), $whole)?;
                })*
                $(if *$part != before.$part {
                    fields.serialize_entry(name!($part), &Difference { before: &before.$part, now: $part })?;
                })*
                fields.end()
            }

            fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Option<Self>, D::Error> {
                struct Fields<'a>(&'a $type);

                impl<'de> Visitor<'de> for Fields<'_> {
                    type Value = Option<$type>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("changed fields of ", stringify!($type)))
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
                        let before = self.0;
                        $(let mut $whole = None;)*
                        $(let mut $part = None;)*
                        while let Some(FieldName(name)) = fields.next_key()? {
                            match &*name {
                                $(name!($whole $($name)?) => {
                                    set(&mut $whole, name!($whole $($name)?), fields.next_value())?;
                                })*
                                $(name!($part) => {
                                    set(&mut $part, name!($part), fields.next_value_seed(Before(&before.$part)))?;
                                })*
                                _ => {
                                    fields.next_value::<IgnoredAny>()?;
                                }
                            }
                        }
                        let is_changed = [$($whole.is_some(),)* $($part.is_some(),)*].contains(&true);
                        if !is_changed {
                            return Ok(None);
                        }
                        Ok(Some($type {
                            $($whole: $whole.unwrap_or_else(|| before.$whole.clone()),)*
                            $($part: $part.unwrap_or_else(|| before.$part.clone()),)*
                        }))
                    }
                }

                deserializer.deserialize_map(Fields(before))
            }
        }
    };
}

/// Sets a field that was not set before. An error names the field.
fn set<T, E: serde::de::Error>(field: &mut Option<T>, name: &'static str, value: Result<T, E>) -> Result<(), E> {
    let value = value.map_err(|error| E::custom(format_args!("{name}: {error}")))?;
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
fields!(ProcessDevice { index, process_type = "type", memory_used_bytes, utilization_ratio; });
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

    fn read<'de, D: Deserializer<'de>>(before: &Self, deserializer: D) -> Result<Option<Self>, D::Error> {
        Ok(T::read(before, deserializer)?.map(Self::new))
    }
}

#[cfg(test)]
mod tests;
