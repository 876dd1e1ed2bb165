//! The records of one host: what of each counts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use genv_core::attribute::reason;
use genv_core::enforcement::DisputedRecord;
use genv_core::model::{
    Attachment, Attribution, DeviceIndex, Environment, EnvironmentDevice, Member, Process, Snapshot,
};
use genv_core::state::Confirmed;

use super::known::{Held, Known, Reservations, held, is_less, key, member};
use super::places::{Places, Taken};
use super::witness::Witness;
use super::{MOST_OF_A_HOST, MOST_OF_A_USER, TooManyRecords};
use crate::plan::words;

/// A record whose time of making is later than now by more than this was not made then: clocks of machines that share a
/// state differ by less.
const FUTURE_SECONDS: f64 = 60.0;

/// What of one host counts.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The snapshot as it counts, where it differs.
    pub(super) snapshot: Option<Snapshot>,
    pub(super) disputes: Vec<DisputedRecord>,
    pub(super) too_many: Vec<TooManyRecords>,
    /// Whether something is to be written down.
    pub(super) changed: bool,
}

/// What a judgement is made of.
pub(super) struct Judgement<'j, 'w> {
    pub(super) snapshot: &'j Snapshot,
    pub(super) known: &'j mut BTreeMap<String, Known>,
    pub(super) places: &'j mut Places,
    pub(super) witness: Option<&'j mut (dyn Witness + 'w)>,
    /// What is seen now for the first time may have been there for long.
    pub(super) begins: bool,
    /// When the files were read, by the clock of the host.
    pub(super) read_seconds: f64,
    confirmed: HashMap<u32, Vec<Confirmed>>,
    /// Members that are other environments', by the eid of the record that lists them.
    pub(super) taken: Taken,
    /// Processes that belong elsewhere than the snapshot says, by position.
    pub(super) moved: HashMap<usize, Attribution>,
    pub(super) environments: BTreeMap<String, Arc<Environment>>,
    /// What environments reserve of GPUs, where that is not what the snapshot says.
    reserved: BTreeMap<(u32, String), Held>,
    pub(super) judged: Judged,
    differs: bool,
}

impl<'j, 'w> Judgement<'j, 'w> {
    pub(super) fn new(
        snapshot: &'j Snapshot,
        known: &'j mut BTreeMap<String, Known>,
        places: &'j mut Places,
        witness: Option<&'j mut (dyn Witness + 'w)>,
        now_seconds: f64,
    ) -> Self {
        let state = snapshot.collectors.get("state");
        let read_seconds = state.and_then(|it| it.timestamp_seconds);
        let read_seconds = read_seconds.unwrap_or(snapshot.timestamp_seconds);
        let finite = Some(read_seconds).filter(|it| it.is_finite());
        Self {
            snapshot,
            known,
            places,
            witness,
            begins: false,
            read_seconds: finite.unwrap_or(now_seconds),
            confirmed: HashMap::new(),
            taken: Taken::new(),
            moved: HashMap::new(),
            environments: BTreeMap::new(),
            reserved: BTreeMap::new(),
            judged: Judged::default(),
            differs: false,
        }
    }

    pub(super) fn judge(mut self) -> Judged {
        let snapshot = self.snapshot;
        let mut uses: HashMap<&str, Vec<usize>> = HashMap::new();
        for (position, process) in snapshot.processes.iter().enumerate() {
            if let Some(eid) = process.attribution.eid() {
                uses.entry(eid).or_default().push(position);
            }
        }
        let mut of_users: HashMap<Option<u32>, usize> = HashMap::new();
        for known in self.known.values() {
            *of_users.entry(known.uid).or_default() += 1;
        }
        let surplus = self.surplus(&uses);
        self.find_taken();
        for (position, environment) in snapshot.environments.iter().enumerate() {
            let processes = uses.get(environment.eid.as_str());
            let processes = processes.map_or(&[][..], Vec::as_slice);
            if surplus.contains(&position) {
                self.leave_unknown(processes);
                continue;
            }
            self.recognize(environment, processes, &mut of_users);
        }
        self.look_for_removed();
        self.keep_places();
        self.remember_places();
        self.differs |= !self.moved.is_empty();

        let reservations = Reservations::of(snapshot);
        let mut used: HashMap<String, BTreeSet<u32>> = HashMap::new();
        for (position, process) in snapshot.processes.iter().enumerate() {
            let moved = self.moved.get(&position);
            if let Some(eid) = moved.unwrap_or(&process.attribution).eid() {
                let gpus = process.devices.iter().map(|device| device.index.gpu);
                used.entry(eid.to_owned()).or_default().extend(gpus);
            }
        }
        for (eid, environment) in std::mem::take(&mut self.environments) {
            let none = BTreeSet::new();
            let used = used.get(&eid).unwrap_or(&none);
            let counts = self.compare(&environment, &reservations, used);
            let counts = counts.map_or(environment, Arc::new);
            self.environments.insert(eid, counts);
        }
        self.finish()
    }

    /// Decides whose a record is, and whether it counts at all.
    fn recognize(
        &mut self,
        environment: &Arc<Environment>,
        processes: &[usize],
        of_users: &mut HashMap<Option<u32>, usize>,
    ) {
        let eid = &environment.eid;
        let mut counts = Arc::clone(environment);
        if self.taken.contains_key(eid) {
            let why = "it lists members of another environment of its user".to_owned();
            self.dispute(eid, &environment.username, why);
        }
        if let Some(known) = self.known.get(eid)
            && !known.members.is_empty()
        {
            let uid = known.uid;
            let has = |it: &(u32, u64)| environment.members.iter().any(|now| key(*now) == *it);
            let there = known.members.keys().any(has);
            let missing: Vec<(u32, u64)> = known
                .members
                .keys()
                .copied()
                .filter(|it| !has(it))
                .collect();
            let mut living: Vec<(u32, u64)> = Vec::new();
            for it in missing {
                if self.lives(it, uid) {
                    living.push(it);
                } else if let Some(known) = self.known.get_mut(eid) {
                    known.members.remove(&it);
                    self.judged.changed = true;
                }
            }
            if environment.uid != uid && (there || !living.is_empty()) {
                if self.is_ended(eid, uid) {
                    self.forget(eid, of_users);
                } else {
                    let known = &self.known[eid];
                    let owner = known.username.clone();
                    let why = format!(
                        "it names {} as its user, and its members are of {}",
                        words::name(&environment.username),
                        words::name(&owner)
                    );
                    let mut own = Environment::clone(environment);
                    (own.uid, own.username) = (uid, owner);
                    counts = Arc::new(own);
                    self.dispute(eid, &counts.username, why);
                    self.spare(eid, uid);
                    self.leave_to_others(processes, uid);
                    self.differs = true;
                }
            } else if environment.uid != uid || !there && living.is_empty() {
                self.forget(eid, of_users);
            } else if !living.is_empty() {
                self.confirm(eid, uid);
                let left = self.known.get(eid);
                let left = left.filter(|it| living.iter().any(|at| it.members.contains_key(at)));
                if left.is_some() {
                    self.spare(eid, uid);
                }
            }
        }
        if !self.known.contains_key(eid) {
            if self.is_taken_whole(environment) {
                self.differs = true;
                return;
            }
            if self.is_anothers(environment, processes) {
                let why = format!(
                    "no member of it is a process of {}",
                    words::name(&environment.username)
                );
                self.dispute(eid, &environment.username, why);
                self.leave_unknown(processes);
                return;
            }
            let number = of_users.entry(environment.uid).or_default();
            if *number < MOST_OF_A_USER && self.known.len() < MOST_OF_A_HOST {
                *number += 1;
                let seen = (!self.begins).then_some(self.snapshot.timestamp_seconds);
                self.known
                    .insert(eid.clone(), Known::begin(environment, seen));
                self.judged.changed = true;
            }
        }
        self.environments.insert(eid.clone(), counts);
    }

    /// Records, by position, that are more than a user or a host can need: they count as if they were not there. One that
    /// is known, or that a process of its user uses a device in, always counts.
    fn surplus(&mut self, uses: &HashMap<&str, Vec<usize>>) -> HashSet<usize> {
        let snapshot = self.snapshot;
        let mut surplus = HashSet::new();
        if snapshot.environments.len() <= MOST_OF_A_USER {
            return surplus;
        }
        let counts = |environment: &Environment| {
            let eid = environment.eid.as_str();
            let own = |it: &usize| snapshot.processes[*it].uid == environment.uid;
            self.known.contains_key(eid) || uses.get(eid).is_some_and(|it| it.iter().any(own))
        };
        let certain: Vec<bool> = snapshot.environments.iter().map(|it| counts(it)).collect();
        // Of each user: how many there are, how many count, and the first that does not.
        let mut users: BTreeMap<Option<u32>, (usize, usize, Option<usize>)> = BTreeMap::new();
        let mut counted = 0;
        for (environment, _) in snapshot
            .environments
            .iter()
            .zip(&certain)
            .filter(|it| *it.1)
        {
            users.entry(environment.uid).or_default().1 += 1;
            counted += 1;
        }
        for (position, environment) in snapshot.environments.iter().enumerate() {
            let (number, of_user, first) = users.entry(environment.uid).or_default();
            *number += 1;
            if certain[position] {
                continue;
            }
            if *of_user < MOST_OF_A_USER && counted < MOST_OF_A_HOST {
                *of_user += 1;
                counted += 1;
            } else {
                surplus.insert(position);
                first.get_or_insert(position);
            }
        }
        for (uid, (number, _, first)) in users {
            if let Some(first) = first {
                self.judged.too_many.push(TooManyRecords {
                    hostname: snapshot.hostname.clone(),
                    username: snapshot.environments[first].username.clone(),
                    uid,
                    records: number as u64,
                });
            }
        }
        surplus
    }

    /// What is in an environment that does not count belongs where nobody knows.
    fn leave_unknown(&mut self, processes: &[usize]) {
        for &position in processes {
            let reason = reason::RECORD_DISPUTED.to_owned();
            self.moved.insert(position, Attribution::Unknown { reason });
        }
        self.differs = true;
    }

    /// Whether all that its record lists and that lives is of other users, and nothing else shows it to be its user's.
    fn is_anothers(&self, environment: &Environment, processes: &[usize]) -> bool {
        let own = |&position: &usize| self.snapshot.processes[position].uid == environment.uid;
        environment.foreign_members > 0
            && environment.members.is_empty()
            && environment.kernel_ids.is_empty()
            && environment.uid.is_some()
            && !processes.iter().any(own)
    }

    /// Records that are gone while members of them live: their processes go on as they were.
    fn look_for_removed(&mut self) {
        let snapshot = self.snapshot;
        let gone: Vec<String> = self
            .known
            .keys()
            .filter(|eid| snapshot.environment(eid).is_none())
            .cloned()
            .collect();
        for eid in gone {
            let uid = self.known[&eid].uid;
            let members: Vec<(u32, u64)> = self.known[&eid].members.keys().copied().collect();
            let lives = members.into_iter().any(|it| self.lives(it, uid));
            if !lives || self.is_ended(&eid, uid) {
                self.known.remove(&eid);
                self.judged.changed = true;
            } else {
                self.spare(&eid, uid);
            }
        }
    }

    /// Counts processes of a user outside that use a device of the user's record as being in its environment.
    fn spare(&mut self, eid: &str, uid: Option<u32>) {
        let Some(known) = self.known.get(eid).filter(|_| uid.is_some()) else {
            return;
        };
        let mut spared = false;
        for (position, process) in self.snapshot.processes.iter().enumerate() {
            let outside = matches!(process.attribution, Attribution::Outside { .. });
            let of_it = |process: &Process| {
                let mut devices = process.devices.iter();
                devices.any(|device| known.devices.contains_key(&device.index.gpu))
            };
            if outside && process.uid == uid && of_it(process) {
                let eid = eid.to_owned();
                let attribution = Attribution::Environment { eid };
                self.moved.entry(position).or_insert(attribution);
                spared = true;
            }
        }
        if !spared {
            return;
        }
        self.differs = true;
        if self.snapshot.environment(eid).is_some() {
            let owner = known.username.clone();
            let why = "members of it were removed while they live".to_owned();
            if !self.judged.disputes.iter().any(|it| it.eid == eid) {
                self.dispute(eid, &owner, why);
            }
            return;
        }
        self.show(eid);
    }

    /// Processes of others in an environment are outside of it: their claims name what is another user's.
    fn leave_to_others(&mut self, processes: &[usize], uid: Option<u32>) {
        for &position in processes {
            let process = &self.snapshot.processes[position];
            if process.uid != uid && process.container_id.is_none() {
                let reason = reason::OTHER_USERS_ENVIRONMENT.to_owned();
                self.moved.insert(position, Attribution::Outside { reason });
            }
        }
    }

    /// The record as it counts, if that differs; remembers what it gives.
    fn compare(
        &mut self,
        environment: &Environment,
        reservations: &Reservations<'_>,
        used: &BTreeSet<u32>,
    ) -> Option<Environment> {
        let eid = &environment.eid;
        let mut known = self.known.get(eid)?.clone();
        let now = held(environment, reservations, self.read_seconds);
        if self.takes(environment, &known, &now, used) {
            self.confirm(eid, known.uid);
            known = self.known.get(eid)?.clone();
        }
        let before = known.clone();
        let mut counts = environment.clone();
        let mut why = Vec::new();
        let own = self.snapshot.environment(eid);
        let is_shown = own.is_some_and(|own| own.uid == known.uid);

        counts.created_timestamp_seconds = self.created(environment, &mut known, &mut why);
        if is_less(environment.gpu_memory_bytes, known.memory_bytes) {
            if now.values().any(|held| held.memory_bytes.is_none()) {
                why.push("its memory was lowered".to_owned());
            }
            counts.gpu_memory_bytes = known.memory_bytes;
        } else if is_shown {
            known.memory_bytes = environment.gpu_memory_bytes;
            known.memory_seen_seconds = self.read_seconds;
        }
        for (&gpu, held) in &now {
            match known.devices.get(&gpu) {
                Some(first) if is_less(held.memory_bytes, first.memory_bytes) => {
                    why.push(format!("its memory on device {gpu} was lowered"));
                    let held = Held {
                        memory_bytes: first.memory_bytes,
                        ..*held
                    };
                    self.reserved.insert((gpu, eid.clone()), held);
                }
                _ if !is_shown => {}
                _ => {
                    known.devices.insert(gpu, *held);
                }
            }
        }
        for (&gpu, held) in &known.devices {
            if now.contains_key(&gpu) || !used.contains(&gpu) {
                continue;
            }
            why.push(format!("device {gpu} was taken from it"));
            attach(&mut counts, gpu);
            self.reserved.insert((gpu, eid.clone()), *held);
        }
        let taken = self.taken.get(eid);
        let own = |it: &&Member| is_shown && taken.is_none_or(|of| !of.contains(&key(**it)));
        for it in environment.members.iter().filter(own) {
            known.members.insert(key(*it), self.read_seconds);
        }
        self.judged.changed |= is_news(&before, &known);
        let username = counts.username.clone();
        self.known.insert(eid.clone(), known);
        if !why.is_empty() && !self.judged.disputes.iter().any(|it| it.eid == *eid) {
            self.dispute(eid, &username, why.join(", "));
        }
        let differs = counts != *environment;
        self.differs |= differs || !self.reserved.is_empty();
        differs.then_some(counts)
    }

    /// Whether something was taken from the user of a record.
    fn takes(
        &self,
        environment: &Environment,
        known: &Known,
        now: &BTreeMap<u32, Held>,
        used: &BTreeSet<u32>,
    ) -> bool {
        let less = |(gpu, held): (&u32, &Held)| {
            let first = known.devices.get(gpu);
            first.is_some_and(|first| is_less(held.memory_bytes, first.memory_bytes))
        };
        is_less(environment.gpu_memory_bytes, known.memory_bytes)
            || now.iter().any(less)
            || known
                .devices
                .keys()
                .any(|it| !now.contains_key(it) && used.contains(it))
    }

    /// When the environment began, at the earliest that is borne out: what the record says, when the oldest living member
    /// was started, and when it was first seen.
    fn created(
        &self,
        environment: &Environment,
        known: &mut Known,
        why: &mut Vec<String>,
    ) -> Option<f64> {
        let claimed = environment.created_timestamp_seconds;
        let claimed = claimed.filter(|it| it.is_finite());
        let latest = self.snapshot.timestamp_seconds + FUTURE_SECONDS;
        if claimed.is_some_and(|it| it > latest) {
            known.impossible_seconds = claimed;
        }
        if claimed.is_some() && claimed == known.impossible_seconds {
            why.push("it was made in the future, by its own word".to_owned());
        } else if let Some(claimed) = claimed {
            if known.created_seconds.is_some_and(|first| claimed < first) {
                why.push("its time of making was moved back".to_owned());
            } else {
                known.created_seconds = Some(claimed);
            }
        }
        let bounds = [
            known.created_seconds,
            environment.oldest_member_started_timestamp_seconds,
            known.seen_seconds,
        ];
        bounds.into_iter().flatten().reduce(f64::max)
    }

    pub(super) fn lives(&mut self, member_key: (u32, u64), uid: Option<u32>) -> bool {
        let Some(witness) = self.witness.as_mut() else {
            return false;
        };
        uid.is_some() && witness.lives(member(member_key)) == uid
    }

    fn forget(&mut self, eid: &str, of_users: &mut HashMap<Option<u32>, usize>) {
        if let Some(known) = self.known.remove(eid) {
            let number = of_users.entry(known.uid).or_default();
            *number = number.saturating_sub(1);
            self.judged.changed = true;
        }
    }

    /// Takes what commands of the user took since; whether they ended the environment.
    fn confirm(&mut self, eid: &str, uid: Option<u32>) -> bool {
        let Some(uid) = uid else {
            return false;
        };
        self.confirmed_by(uid);
        let confirmed = &self.confirmed[&uid];
        let Some(known) = self.known.get_mut(eid) else {
            return false;
        };
        let before = known.clone();
        let ended = known.confirm(eid, confirmed);
        self.judged.changed |= is_news(&before, known);
        ended
    }

    /// What commands of a user took, as far as that can be known here.
    pub(super) fn confirmed_by(&mut self, uid: u32) -> &[Confirmed] {
        let witness = &mut self.witness;
        self.confirmed.entry(uid).or_insert_with(|| {
            let read = witness.as_mut().map(|it| it.confirmed(uid));
            read.unwrap_or_default()
        })
    }

    pub(super) fn is_ended(&mut self, eid: &str, uid: Option<u32>) -> bool {
        let ended = self.confirm(eid, uid);
        ended || self.known.get(eid).is_some_and(|it| it.members.is_empty())
    }

    pub(super) fn dispute(&mut self, eid: &str, username: &str, why: String) {
        self.judged.disputes.push(DisputedRecord {
            hostname: self.snapshot.hostname.clone(),
            eid: eid.to_owned(),
            username: username.to_owned(),
            why,
        });
    }

    fn finish(mut self) -> Judged {
        if !self.differs {
            return self.judged;
        }
        let mut snapshot = self.snapshot.clone();
        for (position, attribution) in self.moved {
            let process = Arc::make_mut(&mut snapshot.processes[position]);
            process.attribution = attribution;
        }
        for device in &mut snapshot.devices {
            let gpu = device.index.gpu;
            if device.index != DeviceIndex::gpu(gpu) {
                continue;
            }
            // What a record holds that does not count is free.
            let environments = &self.environments;
            let counts = |it: &Attachment| environments.contains_key(&it.eid);
            device.attachments.retain(counts);
            let first = (gpu, String::new());
            let of_gpu = self.reserved.range(first..);
            for ((_, eid), held) in of_gpu.take_while(|((it, _), _)| *it == gpu) {
                let mut attachments = device.attachments.iter_mut();
                match attachments.find(|it| it.eid == *eid) {
                    Some(attachment) => attachment.memory_bytes = held.memory_bytes,
                    None => device.attachments.push(Attachment {
                        eid: eid.clone(),
                        memory_bytes: held.memory_bytes,
                        share_ratio: 0.0,
                        attached_timestamp_seconds: held.attached_seconds,
                    }),
                }
            }
        }
        snapshot.environments = self.environments.into_values().collect();
        self.judged.snapshot = Some(snapshot);
        self.judged
    }
}

/// Shows an environment as attached to a device.
fn attach(environment: &mut Environment, gpu: u32) {
    let index = DeviceIndex::gpu(gpu);
    let devices = &mut environment.devices;
    if let Some(device) = devices.iter_mut().find(|device| device.index == index) {
        device.attached = true;
        return;
    }
    devices.push(EnvironmentDevice {
        index,
        attached: true,
        memory_used_bytes: None,
        memory_capacity_bytes: None,
        utilization_ratio: None,
        last_active_timestamp_seconds: None,
    });
}

/// Whether more than times of seeing differs.
fn is_news(before: &Known, after: &Known) -> bool {
    let devices = |known: &Known| -> Vec<(u32, Option<u64>)> {
        let devices = known.devices.iter();
        devices
            .map(|(gpu, held)| (*gpu, held.memory_bytes))
            .collect()
    };
    before.created_seconds != after.created_seconds
        || before.impossible_seconds != after.impossible_seconds
        || before.memory_bytes != after.memory_bytes
        || !before.members.keys().eq(after.members.keys())
        || devices(before) != devices(after)
}
