//! Members and processes stay in the environment in which they were first seen.
//!
//! Every user can write a new record in another user's name that lists a process of that user, or give another user's
//! record a new id. So a later record takes no living member from the environment that had it first, and no process from
//! the environment in which it was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use genv_core::attribute::reason;
use genv_core::model::{Attribution, ConfirmedChange, Environment, Process};
use serde::{Deserialize, Serialize};

use super::MAX_OF_A_HOST;
use super::judgement::Judgement;
use super::known::{key, member, pairs};

/// Where a process that uses a device counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FirstMembership {
    /// Its effective user.
    uid: Option<u32>,
    /// Its environment; absent: outside.
    pub(super) eid: Option<String>,
    /// When the files last said so, Unix time by the clock of the host.
    seen_seconds: f64,
}

/// The places of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Places(#[serde(with = "pairs")] pub(super) BTreeMap<(u32, u64), FirstMembership>);

/// Members that records list and that belong to other environments, by eid.
pub(super) type Taken = BTreeMap<String, BTreeSet<(u32, u64)>>;

impl Judgement<'_, '_> {
    /// Finds listed members that were first seen in another environment of the same user, did not leave it since, and were
    /// not put into this one by a command of the user.
    pub(super) fn find_taken(&mut self) {
        let snapshot = self.snapshot;
        let mut newcomers = Vec::new();
        for environment in snapshot.environments.iter().filter(|it| it.uid.is_some()) {
            let known = self.known.get(&environment.eid);
            for it in environment.members.iter().map(|it| key(*it)) {
                if !known.is_some_and(|known| known.members.contains_key(&it)) {
                    newcomers.push((environment, it));
                }
            }
        }
        if newcomers.is_empty() {
            return;
        }
        let mut first: HashMap<(u32, u64), Vec<String>> = HashMap::new();
        for (eid, known) in &*self.known {
            for it in known.members.keys() {
                first.entry(*it).or_default().push(eid.clone());
            }
        }
        for (environment, it) in newcomers {
            let eid = &environment.eid;
            let place = self.places.0.get(&it).and_then(|place| place.eid.clone());
            if place.as_ref() == Some(eid) {
                continue;
            }
            let mut eids = first.get(&it).cloned().unwrap_or_default();
            eids.extend(place);
            eids.sort();
            let is_taken = eids.iter().any(|first| self.keeps(first, it, environment));
            if is_taken && !self.has_joined(eid, environment.uid, it.0) {
                self.taken.entry(eid.clone()).or_default().insert(it);
            }
        }
    }

    /// Whether a process is still in the environment in which it was first seen.
    fn keeps(&mut self, eid: &str, process: (u32, u64), other: &Environment) -> bool {
        if self.known.get(eid).is_none_or(|it| it.uid != other.uid) {
            return false;
        }
        // Without a witness nothing can confirm that a member left; the files show it.
        let shown = self.snapshot.environment(eid);
        if self.witness.is_none() && shown.is_none() {
            return false;
        }
        let was_member = self.known[eid].members.contains_key(&process);
        if self.is_ended(eid, other.uid) && shown.is_none() {
            return false;
        }
        let known = self.known.get(eid);
        if was_member {
            return known.is_some_and(|it| it.members.contains_key(&process));
        }
        let seen_seconds = self.places.0.get(&process).map(|it| it.seen_seconds);
        !self.has_left(eid, seen_seconds.unwrap_or_default())
    }

    /// Whether all members that a record lists are of other environments.
    pub(super) fn is_taken_whole(&self, environment: &Environment) -> bool {
        let taken = self.taken.get(&environment.eid);
        let of_others = |taken: &BTreeSet<_>| {
            let mut members = environment.members.iter();
            members.all(|it| taken.contains(&key(*it)))
        };
        environment.kernel_ids.is_empty() && taken.is_some_and(of_others)
    }

    /// Counts processes where they were first seen.
    pub(super) fn keep_places(&mut self) {
        let snapshot = self.snapshot;
        for (position, process) in snapshot.processes.iter().enumerate() {
            let Some(of) = of(process).filter(|_| !self.moved.contains_key(&position)) else {
                continue;
            };
            let Some(now) = process.attribution.eid() else {
                if let Some(place) = self.place_left_out(of, process) {
                    self.moved.insert(position, place);
                }
                continue;
            };
            let place = self.places.0.get(&of).filter(|it| it.uid == process.uid);
            let belongs = if let Some(place) = place {
                let elsewhere = (place.eid.as_deref() != Some(now)).then(|| place.clone());
                elsewhere.and_then(|place| self.first_place(place, process, now))
            } else {
                // The member that started it may have been added by another user.
                let is_sure = !self.is_unsure(now) || self.is_users_own(position, now);
                (!is_sure).then(disputed)
            };
            if let Some(belongs) = belongs {
                self.moved.insert(position, belongs);
            } else if !self.environments.contains_key(now) {
                self.moved.insert(position, disputed());
            }
        }
    }

    /// The environment of a process that the files do not show there any more, without evidence that the process left.
    /// The process stays as long as the record counts.
    fn place_left_out(&mut self, of: (u32, u64), process: &Process) -> Option<Attribution> {
        let is_outside = matches!(process.attribution, Attribution::Outside { .. });
        // Without a witness no evidence can show that the process left.
        if !is_outside || self.witness.is_none() {
            return None;
        }
        let place = self.places.0.get(&of).filter(|it| it.uid == process.uid)?;
        let (eid, seen_seconds) = (place.eid.clone()?, place.seen_seconds);
        let is_own = self.known.get(&eid)?.uid == process.uid && process.uid.is_some();
        if !is_own || self.has_left(&eid, seen_seconds) {
            return None;
        }
        self.show(&eid);
        Some(Attribution::Environment { eid })
    }

    /// Where a process belongs that the files show in another place than before; absent: where they show it.
    fn first_place(&mut self, place: FirstMembership, process: &Process, now: &str) -> Option<Attribution> {
        let owner = self.snapshot.environment(now).and_then(|it| it.uid);
        let is_gone = |eid: &String| {
            let removed = self.snapshot.environment(eid).is_none();
            self.witness.is_none() && removed
        };
        if place.eid.as_ref().is_some_and(is_gone) {
            return None;
        }
        let known = place.eid.and_then(|eid| Some((self.known.get(&eid)?.uid, eid)));
        if let Some((uid, eid)) = known
            && uid == owner
            && !self.has_left(&eid, place.seen_seconds)
        {
            self.show(&eid);
            return Some(Attribution::Environment { eid });
        }
        // Outside before: it is in an environment if that has all its devices.
        let environment = self.environments.get(now);
        let has = |gpu: u32| {
            environment.is_some_and(|it| {
                let mut devices = it.devices.iter();
                devices.any(|device| device.attached && device.index.gpu == gpu)
            })
        };
        let mut devices = process.devices.iter();
        if !devices.all(|device| has(device.index.gpu)) {
            let reason = reason::NO_CLAIM.to_owned();
            return Some(Attribution::Outside { reason });
        }
        // To be inside helps it, and the limits of an environment that another user made would harm it.
        self.is_unsure(now).then(disputed)
    }

    /// Shows an environment of which the record is gone.
    pub(super) fn show(&mut self, eid: &str) {
        if self.environments.contains_key(eid) {
            return;
        }
        let Some(known) = self.known.get(eid) else {
            return;
        };
        let username = known.username.clone();
        let environment = Environment {
            eid: eid.to_owned(),
            uid: known.uid,
            username: username.clone(),
            name: None,
            created_timestamp_seconds: known.created_seconds,
            gpus: None,
            gpu_memory_bytes: known.memory_bytes,
            lease_end_timestamp_seconds: None,
            oldest_member_started_timestamp_seconds: None,
            foreign_members: 0,
            members: known.members.keys().copied().map(member).collect(),
            kernel_ids: Vec::new(),
            devices: Vec::new(),
            confirmed: Vec::new(),
        };
        self.environments.insert(eid.to_owned(), Arc::new(environment));
        let why = "it was removed while processes of it live".to_owned();
        self.dispute(eid, &username, why);
    }

    /// Whether a command of the user's confirms that something left this environment since then.
    fn has_left(&mut self, eid: &str, since_seconds: f64) -> bool {
        let Some(uid) = self.known.get(eid).and_then(|it| it.uid) else {
            return false;
        };
        let mut confirmed = self.confirmed_by(uid).iter();
        confirmed.any(|it| {
            let leaves = matches!(it.change, ConfirmedChange::Ended | ConfirmedChange::Left { .. });
            it.eid == eid && it.at_seconds >= since_seconds && leaves
        })
    }

    /// Remembers where processes are, and forgets those that ended.
    pub(super) fn remember_places(&mut self) {
        let snapshot = self.snapshot;
        let mut seen = HashSet::with_capacity(snapshot.processes.len());
        for (position, process) in snapshot.processes.iter().enumerate() {
            let Some(of) = of(process) else {
                continue;
            };
            seen.insert(of);
            // Where it is spared is a guess, and is no evidence later.
            if self.spared.contains(&position) {
                continue;
            }
            let moved = self.moved.get(&position);
            let eid = match moved.unwrap_or(&process.attribution) {
                Attribution::Environment { eid } => Some(eid),
                Attribution::Outside { .. } => None,
                Attribution::Unknown { .. } => continue,
            };
            let uid = process.uid;
            let seen_seconds = self.read_seconds;
            if let Some(place) = self.places.0.get_mut(&of) {
                if place.eid.as_ref() != eid || place.uid != uid {
                    (place.eid, place.uid) = (eid.cloned(), uid);
                    self.judged.changed = true;
                }
                if moved.is_none() {
                    place.seen_seconds = seen_seconds;
                }
            } else if self.places.0.len() < MAX_OF_A_HOST {
                let place = FirstMembership { uid, eid: eid.cloned(), seen_seconds };
                self.places.0.insert(of, place);
                self.judged.changed = true;
            }
        }
        let unseen = self.places.0.iter().filter(|(of, _)| !seen.contains(of));
        let unseen: Vec<((u32, u64), Option<u32>)> = unseen.map(|(of, it)| (*of, it.uid)).collect();
        for (it, uid) in unseen {
            if !self.lives(it, uid) {
                self.places.0.remove(&it);
                self.judged.changed = true;
            }
        }
    }
}

fn disputed() -> Attribution {
    let reason = reason::RECORD_DISPUTED.to_owned();
    Attribution::Unknown { reason }
}

/// A process as it is remembered.
pub(super) fn of(process: &Process) -> Option<(u32, u64)> {
    Some((process.pid, process.start_time_ticks?))
}
