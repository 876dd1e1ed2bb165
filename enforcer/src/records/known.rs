//! A record as it was first seen, and what changed since.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::model::{Environment, Member, Snapshot};
use genv_core::state::{Confirmed, ConfirmedChange};
use serde::{Deserialize, Serialize};

/// What is remembered of a record: the most that its user had of everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    pub(super) uid: Option<u32>,
    pub(super) username: String,
    /// When it was first seen, Unix time; absent if it may have been there for long.
    pub(super) seen_seconds: Option<f64>,
    /// The time of making that it claims, if it can be.
    pub(super) created_seconds: Option<f64>,
    /// A time of making that was in the future when it was seen.
    pub(super) impossible_seconds: Option<f64>,
    /// What its configuration asks for; absent: nothing is said.
    pub(super) memory_bytes: Option<u64>,
    /// When that was last seen as it is, Unix time by the clock of the host.
    pub(super) memory_seen_seconds: f64,
    /// By GPU.
    pub(super) devices: BTreeMap<u32, Held>,
    /// Members that are its user's by the kernel, where that can be told, with when they were last seen in the record.
    #[serde(with = "pairs")]
    pub(super) members: BTreeMap<(u32, u64), f64>,
}

/// One device of a record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Held {
    /// What it reserves; absent: nothing is said.
    pub(super) memory_bytes: Option<u64>,
    pub(super) attached_seconds: Option<f64>,
    /// When it was last seen so, Unix time by the clock of the host.
    pub(super) seen_seconds: f64,
}

impl Known {
    pub(super) fn begin(environment: &Environment, seen_seconds: Option<f64>) -> Self {
        Self {
            uid: environment.uid,
            username: environment.username.clone(),
            seen_seconds,
            created_seconds: None,
            impossible_seconds: None,
            memory_bytes: environment.gpu_memory_bytes,
            memory_seen_seconds: 0.0,
            devices: BTreeMap::new(),
            members: BTreeMap::new(),
        }
    }

    /// Forgets what commands took since it was last seen.
    pub(super) fn confirm(&mut self, eid: &str, confirmed: &[Confirmed]) -> bool {
        let mut ended = false;
        for Confirmed {
            at_seconds, change, ..
        } in confirmed.iter().filter(|it| it.eid == eid)
        {
            match *change {
                ConfirmedChange::Ended => {
                    ended |= self.members.values().all(|seen| at_seconds >= seen);
                }
                ConfirmedChange::Left { pid } => {
                    let left =
                        |member: &(u32, u64), seen: f64| member.0 == pid && *at_seconds >= seen;
                    self.members.retain(|member, seen| !left(member, *seen));
                }
                ConfirmedChange::Released { gpu } => {
                    self.devices
                        .retain(|index, held| *index != gpu || *at_seconds < held.seen_seconds);
                }
                ConfirmedChange::Reserved { gpu, bytes } => {
                    let held = self.devices.get_mut(&gpu);
                    if let Some(held) = held.filter(|held| *at_seconds >= held.seen_seconds) {
                        held.memory_bytes = Some(bytes);
                    }
                }
                ConfirmedChange::Configured { bytes } => {
                    if *at_seconds >= self.memory_seen_seconds {
                        self.memory_bytes = Some(bytes);
                    }
                }
            }
        }
        ended
    }
}

/// Whether an amount is less than another; none is all of a device.
pub(super) fn is_less(bytes: Option<u64>, than: Option<u64>) -> bool {
    match (bytes, than) {
        (Some(bytes), Some(than)) => bytes < than,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// What a record reserves of each GPU now.
pub(super) fn held(
    environment: &Environment,
    reservations: &Reservations<'_>,
    seen_seconds: f64,
) -> BTreeMap<u32, Held> {
    let attached = environment.devices.iter().filter(|device| device.attached);
    let gpus: BTreeSet<u32> = attached.map(|device| device.index.whole().gpu).collect();
    let held = gpus.into_iter().map(|gpu| {
        let of_gpu = reservations.0.get(&(environment.eid.as_str(), gpu));
        let (memory_bytes, attached_seconds) = of_gpu.copied().unwrap_or_default();
        let held = Held {
            memory_bytes,
            attached_seconds,
            seen_seconds,
        };
        (gpu, held)
    });
    held.collect()
}

/// Memory and time of all attachments of a host, by eid and GPU.
pub(super) struct Reservations<'a>(BTreeMap<(&'a str, u32), Reserved>);

/// Memory and time of one.
type Reserved = (Option<u64>, Option<f64>);

impl<'a> Reservations<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut all = BTreeMap::new();
        for device in &snapshot.devices {
            for attachment in &device.attachments {
                let place = (attachment.eid.as_str(), device.index.gpu);
                let what = (
                    attachment.memory_bytes,
                    attachment.attached_timestamp_seconds,
                );
                all.entry(place).or_insert(what);
            }
        }
        Self(all)
    }
}

/// A member as it is remembered.
pub(super) const fn key(member: Member) -> (u32, u64) {
    (member.pid, member.start_time_ticks)
}

/// The member that is remembered.
pub(super) const fn member((pid, start_time_ticks): (u32, u64)) -> Member {
    Member {
        pid,
        start_time_ticks,
    }
}

/// A map by pid and start time, as a list of pairs.
pub(super) mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    type ByProcess<V> = BTreeMap<(u32, u64), V>;

    pub(in crate::records) fn serialize<V: Serialize, S: Serializer>(
        map: &ByProcess<V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(in crate::records) fn deserialize<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ByProcess<V>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}
