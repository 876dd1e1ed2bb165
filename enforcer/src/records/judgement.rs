//! The records of one host: what of each counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use genv_core::enforcement::DisputedRecord;
use genv_core::model::{Attachment, Attribution, CollectorStatus, Confirmed, DeviceIndex, Environment, Snapshot};

use super::TooManyRecords;
use super::amounts::{Compared, compare, held, is_lessened};
use super::evidence::Claims;
use super::given_back::GivenBack;
use super::known::{HeldDevice, Known, KnownByEid, Reservations, member};
use super::places::{Places, Taken};
use super::witness::Witness;
use crate::by_gpu::ByGpu;
use crate::plan::Unconfirmed;

/// Processes by the environment that they are in, as the snapshot says; by position.
pub(super) type Uses<'a> = HashMap<&'a str, Vec<usize>>;

/// What of one host counts.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The snapshot as it counts, where it differs.
    pub(super) snapshot: Option<Snapshot>,
    /// By environment.
    pub(super) disputes: BTreeMap<String, DisputedRecord>,
    pub(super) too_many: Vec<TooManyRecords>,
    /// Whether something is to be written down.
    pub(super) changed: bool,
}

/// What is remembered of one host.
pub(super) struct Memory<'j> {
    pub(super) known: &'j mut KnownByEid,
    pub(super) places: &'j mut Places,
    pub(super) given_back: &'j mut GivenBack,
    pub(super) claims: &'j mut Claims,
}

/// What a judgement is made of.
pub(super) struct Judgement<'j, 'w> {
    pub(super) snapshot: &'j Snapshot,
    pub(super) known: &'j mut KnownByEid,
    pub(super) places: &'j mut Places,
    given_back: &'j mut GivenBack,
    pub(super) claims: &'j mut Claims,
    pub(super) witness: Option<&'j mut (dyn Witness + 'w)>,
    pub(super) unconfirmed: &'j mut Unconfirmed,
    /// What is seen now for the first time may have been there for long.
    pub(super) begins: bool,
    /// Whether what the files say needs nothing that bears it out: it was there before this program, or nothing can be
    /// asked.
    pub(super) believes: bool,
    /// When the files were read, by the clock of the host.
    pub(super) read_seconds: f64,
    /// The time of the request, before the files were read.
    asked_seconds: Option<f64>,
    confirmed: HashMap<u32, Vec<Confirmed>>,
    /// Members that are other environments', by the eid of the record that lists them.
    pub(super) taken: Taken,
    /// Processes that belong elsewhere than the snapshot says, by position.
    pub(super) moved: HashMap<usize, Attribution>,
    /// Those that are in an environment by their devices alone, while the files do not show where they are.
    pub(super) spared: HashSet<usize>,
    pub(super) environments: BTreeMap<String, Arc<Environment>>,
    /// What environments reserve of GPUs, where that is not what the snapshot says.
    reserved: BTreeMap<(u32, String), HeldDevice>,
    pub(super) judged: Judged,
    pub(super) differs: bool,
}

impl<'j, 'w> Judgement<'j, 'w> {
    pub(super) fn new(
        snapshot: &'j Snapshot,
        memory: Memory<'j>,
        witness: Option<&'j mut (dyn Witness + 'w)>,
        unconfirmed: &'j mut Unconfirmed,
        now_seconds: f64,
    ) -> Self {
        let state = snapshot.collectors.get("state");
        let read_seconds = state.and_then(|it| it.timestamp_seconds);
        let read_seconds = read_seconds.unwrap_or(snapshot.timestamp_seconds);
        let finite = Some(read_seconds).filter(|it| it.is_finite());
        let asked_seconds = state.and_then(CollectorStatus::asked_seconds);
        Self {
            snapshot,
            known: memory.known,
            places: memory.places,
            given_back: memory.given_back,
            claims: memory.claims,
            believes: witness.is_none(),
            witness,
            unconfirmed,
            begins: false,
            read_seconds: finite.unwrap_or(now_seconds),
            asked_seconds,
            confirmed: HashMap::new(),
            taken: Taken::new(),
            moved: HashMap::new(),
            spared: HashSet::new(),
            environments: BTreeMap::new(),
            reserved: BTreeMap::new(),
            judged: Judged::default(),
            differs: false,
        }
    }

    pub(super) fn judge(mut self) -> Judged {
        let snapshot = self.snapshot;
        let mut uses = Uses::new();
        for (position, process) in snapshot.processes.iter().enumerate() {
            if let Some(eid) = process.attribution.eid() {
                uses.entry(eid).or_default().push(position);
            }
        }
        let surplus = self.surplus(&uses);
        self.find_taken();
        for (position, environment) in snapshot.environments.iter().enumerate() {
            let processes = uses.get(environment.eid.as_str());
            let processes = processes.map_or(&[][..], Vec::as_slice);
            if surplus.contains(&position) {
                self.leave_unknown(processes);
            } else {
                self.recognize(environment, processes);
            }
        }
        self.look_for_removed();
        self.keep_places();
        self.remember_places();
        self.differs |= !self.moved.is_empty();
        self.compare_amounts(&uses);
        self.remember_workers();
        self.claims.forget_unasked();
        self.finish()
    }

    /// Counts of each record what its user has of devices, memory and time.
    fn compare_amounts(&mut self, uses: &Uses<'_>) {
        let reservations = Reservations::of(self.snapshot);
        let uptime = self.witness.as_mut().and_then(|it| it.uptime_seconds());
        let mut environments = std::mem::take(&mut self.environments);
        for (eid, environment) in &mut environments {
            let now = held(environment, &reservations, self.read_seconds);
            let processes = uses.get(eid.as_str()).map_or(&[][..], Vec::as_slice);
            if let Some(counts) = self.amounts(environment, &now, processes, uptime) {
                *environment = Arc::new(counts);
            }
        }
        self.environments = environments;
    }

    fn amounts(
        &mut self,
        environment: &Environment,
        now: &ByGpu<HeldDevice>,
        processes: &[usize],
        uptime: Option<f64>,
    ) -> Option<Environment> {
        let eid = &environment.eid;
        let snapshot = self.snapshot;
        let known = self.known.get_mut(eid)?;
        let uid = known.uid;
        let before = known.devices.len();
        let asked_seconds = self.asked_seconds;
        known.devices.retain(|gpu, held| !held.was_taken(now.contains(gpu), asked_seconds));
        self.judged.changed |= known.devices.len() != before;
        let is_in_use = |moved: &HashMap<usize, Attribution>, gpu: u32| {
            let mut of_it = snapshot.processes.iter().enumerate().filter(|(at, process)| {
                let place = moved.get(at).unwrap_or(&process.attribution);
                place.eid() == Some(eid)
            });
            of_it.any(|(_, process)| process.devices.iter().any(|it| it.index.gpu == gpu))
        };
        // Devices that are gone, and that a process of the environment uses.
        let mut gone: Vec<u32> = Vec::new();
        for gpu in known.devices.gpus() {
            if !now.contains(gpu) && is_in_use(&self.moved, gpu) {
                gone.push(gpu);
            }
        }
        if !gone.is_empty() || is_lessened(known, environment, now) {
            self.confirm(eid, uid);
        }
        let shown = snapshot.environment(eid).is_some_and(|own| own.uid == uid);
        if shown {
            self.bear_out_devices(eid, now, processes);
        }
        let known = self.known.get_mut(eid)?;
        known.follow_uptime(snapshot.timestamp_seconds, uptime);
        let compared = compare(environment, known, now, &gone, shown, snapshot, self.read_seconds);
        let Compared { counts, reserved, mut why, changed } = compared;
        let unsure = known.unsure(now.gpus().chain(reserved.gpus()));
        for gpu in &unsure {
            self.unconfirmed.add(&snapshot.hostname, eid, *gpu);
        }
        why.extend(known.doubts(&unsure, !processes.is_empty()));
        self.judged.changed |= changed;
        self.differs |= counts.is_some() || !reserved.is_empty();
        let reserved = reserved.into_iter().map(|(gpu, held)| ((gpu, eid.clone()), held));
        self.reserved.extend(reserved);
        if !why.is_empty() {
            self.dispute(eid, &environment.username, why.join(", "));
        }
        counts
    }

    pub(super) fn lives(&mut self, member_key: (u32, u64), uid: Option<u32>) -> bool {
        let Some(witness) = self.witness.as_mut() else {
            return false;
        };
        uid.is_some() && witness.lives(member(member_key)) == uid
    }

    /// Takes what commands of the user took since; whether they ended the environment.
    pub(super) fn confirm(&mut self, eid: &str, uid: Option<u32>) -> bool {
        let Some(uid) = uid else {
            return false;
        };
        self.confirmed_by(uid);
        let confirmed = &self.confirmed[&uid];
        let Some(known) = self.known.get_mut(eid) else {
            return false;
        };
        let (ended, changed) = known.confirm(eid, confirmed);
        self.judged.changed |= changed;
        ended
    }

    /// What commands of a user changed. Another host sends that with the user's environments.
    pub(super) fn confirmed_by(&mut self, uid: u32) -> &[Confirmed] {
        let (witness, given_back) = (&mut self.witness, &mut *self.given_back);
        let environments = self.snapshot.environments.iter();
        let (now_seconds, changed) = (self.read_seconds, &mut self.judged.changed);
        self.confirmed.entry(uid).or_insert_with(|| {
            let mut confirmed = match witness {
                Some(witness) => witness.confirmed(uid),
                None => {
                    let of_user = environments.filter(|it| it.uid == Some(uid));
                    let of_it = |it: &Arc<Environment>| {
                        let changes = it.confirmed.iter().filter(|change| change.eid == it.eid);
                        changes.cloned().collect::<Vec<_>>()
                    };
                    of_user.flat_map(of_it).collect()
                }
            };
            *changed |= given_back.complete(uid, &mut confirmed, now_seconds);
            confirmed
        })
    }

    pub(super) fn is_ended(&mut self, eid: &str, uid: Option<u32>) -> bool {
        let ended = self.confirm(eid, uid);
        ended || self.known.get(eid).is_some_and(Known::is_unseen)
    }

    /// Names a record of which not all counts; the first reason is told.
    pub(super) fn dispute(&mut self, eid: &str, username: &str, why: String) {
        let hostname = &self.snapshot.hostname;
        let dispute =
            || DisputedRecord { hostname: hostname.clone(), eid: eid.to_owned(), username: username.to_owned(), why };
        self.judged.disputes.entry(eid.to_owned()).or_insert_with(dispute);
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
            let attachments = Arc::make_mut(&mut device.attachments);
            attachments.retain(counts);
            let first = (gpu, String::new());
            let of_gpu = self.reserved.range(first..);
            for ((_, eid), held) in of_gpu.take_while(|((it, _), _)| *it == gpu) {
                match attachments.iter_mut().find(|it| it.eid == *eid) {
                    Some(attachment) => attachment.memory_bytes = held.memory_bytes,
                    None => attachments.push(Attachment {
                        eid: eid.clone(),
                        memory_bytes: held.memory_bytes,
                        share_ratio: 0.0,
                        attached_timestamp_seconds: held.attached_seconds,
                        moved: false,
                    }),
                }
            }
        }
        snapshot.environments = self.environments.into_values().collect();
        self.judged.snapshot = Some(snapshot);
        self.judged
    }
}
