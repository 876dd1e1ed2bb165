//! A record as it was first seen, and what changed since.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashMapExt as _};
use genv_core::model::{Confirmed, ConfirmedChange, Environment, Member, Snapshot};
use serde::{Deserialize, Serialize};

use crate::by_gpu::ByGpu;

/// The records of a host that are remembered, by eid.
pub(super) type KnownByEid = HashMap<String, Known>;

/// What is remembered of a record: the most that its user had of everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    pub(super) uid: Option<u32>,
    pub(super) username: String,
    /// When it was first seen, Unix time; absent if it may have been there for long.
    pub(super) seen_seconds: Option<f64>,
    /// How long this machine had run then; only of records of this machine.
    #[serde(default)]
    pub(super) seen_uptime_seconds: Option<f64>,
    /// How far the wall clock was turned forward since then, by the clock since boot, which no admin turns.
    #[serde(default, skip_serializing_if = "is_short")]
    pub(super) turned_seconds: f64,
    /// The time of making that it claims, if it can be.
    pub(super) created_seconds: Option<f64>,
    /// A time of making that was in the future when it was seen.
    pub(super) impossible_seconds: Option<f64>,
    /// What its configuration asks for; absent: nothing is said.
    pub(super) memory_bytes: Option<u64>,
    /// When that was last seen as it is, Unix time by the clock of the host.
    pub(super) memory_seen_seconds: f64,
    pub(super) devices: ByGpu<HeldDevice>,
    /// Members that are its user's by the kernel, where that can be told, with when they were last seen in the record.
    #[serde(with = "pairs")]
    pub(super) members: BTreeMap<(u32, u64), f64>,
    /// Other processes of its user in it, by the kernel, each with the last time that the files showed it there.
    #[serde(default, with = "pairs", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) workers: BTreeMap<(u32, u64), f64>,
    /// The last time that one of its processes had a context on one of its devices, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) context_seconds: Option<f64>,
    /// The same time, as last saved.
    #[serde(skip)]
    pub(super) noted_context_seconds: Option<f64>,
    /// Whether something shows that its user made it.
    #[serde(default = "yes")]
    pub(super) borne_out: bool,
    /// Members that were added later, of which nothing shows that the user did it.
    #[serde(default)]
    pub(super) unconfirmed: BTreeSet<(u32, u64)>,
    /// Whether it is seen for the first time now: what it has is as old as itself.
    #[serde(skip)]
    pub(super) is_new: bool,
}

/// Records of which an older program wrote nothing else.
const fn yes() -> bool {
    true
}

/// Whether a clock was turned by no more than clocks are corrected all the time.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
pub(super) fn is_short(seconds: &f64) -> bool {
    seconds.abs() < 60.0
}

/// One device of a record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeldDevice {
    /// What it reserves; absent: nothing is said.
    pub(super) memory_bytes: Option<u64>,
    pub(super) attached_seconds: Option<f64>,
    /// When it was last seen so, Unix time by the clock of the host.
    pub(super) seen_seconds: f64,
    /// Whether it was added later, and nothing shows that the user did it.
    #[serde(default)]
    pub(super) unconfirmed: bool,
    /// The time at which the enforcer took the device, Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) taken_seconds: Option<f64>,
    /// Whether its memory is not known: the snapshot has reservations only for devices that the driver has listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unread: bool,
}

impl HeldDevice {
    /// Whether the enforcer took the device, and a state that was requested at this time does not show the device, or
    /// shows a new attachment.
    pub(super) fn was_taken(&self, is_shown: bool, asked_seconds: Option<f64>) -> bool {
        let taken = self.taken_seconds;
        taken.is_some_and(|taken| !is_shown || asked_seconds.is_some_and(|asked| asked > taken))
    }

    /// Whether it reserves less than the same device did before.
    pub(super) fn is_less(&self, before: &Self) -> bool {
        !self.unread && !before.unread && is_less(self.memory_bytes, before.memory_bytes)
    }
}

/// Whether an amount is less than another; `None` is the whole device.
pub(super) fn is_less(bytes: Option<u64>, than: Option<u64>) -> bool {
    match (bytes, than) {
        (Some(bytes), Some(than)) => bytes < than,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

impl Known {
    pub(super) fn begin(environment: &Environment, seen_seconds: Option<f64>) -> Self {
        Self {
            uid: environment.uid,
            username: environment.username.clone(),
            seen_seconds,
            seen_uptime_seconds: None,
            created_seconds: None,
            turned_seconds: 0.0,
            impossible_seconds: None,
            memory_bytes: environment.gpu_memory_bytes,
            memory_seen_seconds: 0.0,
            devices: ByGpu::default(),
            members: BTreeMap::new(),
            workers: BTreeMap::new(),
            context_seconds: None,
            noted_context_seconds: None,
            borne_out: false,
            unconfirmed: BTreeSet::new(),
            is_new: true,
        }
    }

    /// Takes the time since the first sight from a clock that nobody turns, where there is one: by the wall clock a record
    /// would be as old as that was turned.
    pub(super) fn follow_uptime(&mut self, now_seconds: f64, uptime_seconds: Option<f64>) {
        if self.seen_uptime_seconds.is_none() && self.seen_seconds == Some(now_seconds) {
            self.seen_uptime_seconds = uptime_seconds;
        }
        if let Some((now, seen)) = uptime_seconds.zip(self.seen_uptime_seconds) {
            let seen_seconds = now_seconds - (now - seen);
            self.turned_seconds += seen_seconds - self.seen_seconds.unwrap_or(seen_seconds);
            self.seen_seconds = Some(seen_seconds);
        }
    }

    /// Whether no process showed that the record is its user's.
    pub(super) fn is_unseen(&self) -> bool {
        self.members.is_empty() && self.workers.is_empty()
    }

    /// Of these GPUs those that nothing shows to be held by its user's will.
    pub(super) fn unsure(&self, gpus: impl Iterator<Item = u32>) -> BTreeSet<u32> {
        let is_unsure = |gpu: &u32| {
            let held = self.devices.get(*gpu);
            !self.borne_out || held.is_some_and(|held| held.unconfirmed)
        };
        gpus.filter(is_unsure).collect()
    }

    /// What nothing shows to be its user's will, in words.
    pub(super) fn doubts(&self, unsure: &BTreeSet<u32>, is_used: bool) -> Option<String> {
        const MAX_NAMED: usize = 4;
        if !self.borne_out {
            let matters = is_used || !unsure.is_empty();
            return matters.then(|| "nothing shows that its user made it".to_owned());
        }
        let members = self.unconfirmed.iter().map(|(pid, _)| format!("process {pid}"));
        let devices = unsure.iter().map(|gpu| format!("device {gpu}"));
        let added: Vec<String> = members.chain(devices).take(MAX_NAMED).collect();
        let more = (self.unconfirmed.len() + unsure.len()).saturating_sub(added.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let added = added.join(", ");
        (!added.is_empty()).then(|| format!("{added}{more} came to it, and nothing shows that its user did that"))
    }

    /// Forgets what commands took since it was last seen; whether they ended the environment, and whether something changed.
    pub(super) fn confirm(&mut self, eid: &str, confirmed: &[Confirmed]) -> (bool, bool) {
        let mut ended = false;
        let amounts = |it: &Self| {
            let processes = it.members.len() + it.workers.len();
            (processes, it.devices.len(), it.memory_bytes)
        };
        let before = amounts(self);
        let mut lowered = false;
        for Confirmed { at_seconds, change, .. } in confirmed.iter().filter(|it| it.eid == eid) {
            match *change {
                ConfirmedChange::Ended => {
                    let mut seen = self.members.values().chain(self.workers.values());
                    ended |= seen.all(|seen| at_seconds >= seen);
                }
                ConfirmedChange::Left { pid } => {
                    let left = |member: &(u32, u64), seen: f64| member.0 == pid && *at_seconds >= seen;
                    self.members.retain(|member, seen| !left(member, *seen));
                    self.workers.retain(|worker, seen| !left(worker, *seen));
                }
                ConfirmedChange::Released { gpu } => {
                    self.devices.retain(|index, held| index != gpu || *at_seconds < held.seen_seconds);
                }
                ConfirmedChange::Reserved { gpu, bytes } => {
                    let held = self.devices.get_mut(gpu);
                    if let Some(held) = held.filter(|held| *at_seconds >= held.seen_seconds) {
                        lowered |= held.memory_bytes != Some(bytes);
                        held.memory_bytes = Some(bytes);
                    }
                }
                ConfirmedChange::Configured { bytes } => {
                    if *at_seconds >= self.memory_seen_seconds {
                        self.memory_bytes = Some(bytes);
                    }
                }
                ConfirmedChange::Joined { .. } | ConfirmedChange::Attached { .. } => {}
            }
        }
        (ended, lowered || amounts(self) != before)
    }
}

/// Memory and time of all attachments of a host, by eid and GPU.
pub(super) struct Reservations<'a>(HashMap<(&'a str, u32), Reserved>);

/// Memory and time of one.
type Reserved = (Option<u64>, Option<f64>);

impl<'a> Reservations<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let attachments = snapshot.devices.iter().map(|it| it.attachments.len());
        let mut all = HashMap::with_capacity(attachments.sum());
        for device in &snapshot.devices {
            for attachment in device.attachments.iter() {
                let place = (attachment.eid.as_str(), device.index.gpu);
                let what = (attachment.memory_bytes, attachment.attached_timestamp_seconds);
                all.entry(place).or_insert(what);
            }
        }
        Self(all)
    }

    /// The reservation; absent where the snapshot does not list the device.
    pub(super) fn reserved(&self, eid: &'a str, gpu: u32) -> Option<Reserved> {
        self.0.get(&(eid, gpu)).copied()
    }
}

/// A member as it is remembered.
pub(super) const fn key(member: Member) -> (u32, u64) {
    (member.pid, member.start_time_ticks)
}

/// The member that is remembered.
pub(super) const fn member((pid, start_time_ticks): (u32, u64)) -> Member {
    Member { pid, start_time_ticks }
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
