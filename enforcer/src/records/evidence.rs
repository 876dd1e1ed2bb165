//! What shows that a user did what a record says: a command of the user's that left its word, or a process of the user's
//! whose environment variables name the environment and the device. Without either, what came to a record helps its
//! user, and harms nobody.

use std::collections::BTreeMap;

use foldhash::HashMap;
use genv_core::model::{ConfirmedChange, Environment};
use genv_core::proc::{INITIAL_PID_NAMESPACE, Named};

use super::judgement::Judgement;
use super::known::{HeldDevice, key, member};
use super::places::of;
use crate::by_gpu::ByGpu;

/// A process may seem to have started so much later than it did.
const START_TOLERANCE_SECONDS: f64 = 2.0;

/// What processes name, by pid and start, as far as they were asked in the last cycle.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Claims {
    known: HashMap<(u32, u64), Named>,
    asked: HashMap<(u32, u64), Named>,
}

impl Claims {
    pub(super) fn forget_unasked(&mut self) {
        self.known = std::mem::take(&mut self.asked);
    }
}

/// What commands of its user say of an environment.
#[derive(Default)]
struct Word {
    /// Processes, with when they last joined, Unix time.
    joined: BTreeMap<u32, f64>,
    /// By pid and start in clock ticks: when the process last joined, Unix time. Only processes of this pid namespace.
    started: BTreeMap<(u32, u64), f64>,
    /// Processes, with when they last left, Unix time.
    left: BTreeMap<u32, f64>,
    /// By GPU: the last attachment, and the last release or detach, Unix time.
    attached: BTreeMap<u32, f64>,
    released: BTreeMap<u32, f64>,
    /// Whether the environment ended, and no command made another one with its id.
    ended: bool,
}

impl Word {
    /// Whether its user attached a GPU, and no command released or detached it afterwards.
    fn has_attached(&self, gpu: u32) -> bool {
        let (attached, released) = (self.attached.get(&gpu), self.released.get(&gpu));
        attached.is_some_and(|at| released.is_none_or(|released| at > released))
    }

    /// The processes that a command put into the environment, and that none took out of it since.
    fn present(&self) -> impl Iterator<Item = (u32, u64)> {
        let ended = self.ended;
        let present = self.started.iter().filter(move |_| !ended);
        let present = present.filter(|((pid, _), joined)| self.left.get(pid).is_none_or(|left| *joined > left));
        present.map(|(process, _)| *process)
    }
}

fn note_latest<K: Ord>(times: &mut BTreeMap<K, f64>, key: K, at_seconds: f64) {
    let latest = times.entry(key).or_insert(at_seconds);
    *latest = latest.max(at_seconds);
}

impl Judgement<'_, '_> {
    /// Remembers who came to a record, and looks for what bears out that its user is in it.
    pub(super) fn bear_out(&mut self, environment: &Environment, processes: &[usize]) {
        let eid = &environment.eid;
        let Some(known) = self.known.get_mut(eid).filter(|it| it.uid == environment.uid) else {
            return;
        };
        let taken = self.taken.get(eid);
        for it in environment.members.iter().map(|it| key(*it)) {
            if taken.is_some_and(|of| of.contains(&it)) {
                continue;
            }
            if known.members.insert(it, self.read_seconds).is_none() {
                self.judged.changed = true;
                if !known.is_new && !self.believes {
                    known.unconfirmed.insert(it);
                }
            }
        }
        let members = &known.members;
        known.unconfirmed.retain(|it| members.contains_key(it));
        if known.borne_out && known.unconfirmed.is_empty() {
            return;
        }
        let mut sought = std::mem::take(&mut known.unconfirmed);
        let mut borne_out = known.borne_out;
        let word = self.word_of(eid, environment.uid);
        // What joined before any member was started was another process with the same pid.
        let oldest = environment.oldest_member_started_timestamp_seconds;
        let earliest = oldest.map_or(f64::MIN, |it| it - START_TOLERANCE_SECONDS);
        let of_root = environment.uid == Some(0);
        let is_sure = |by: &mut Self, it: (u32, u64)| {
            of_root && by.is_roots_shell(it)
                || word.joined.get(&it.0).is_some_and(|at| *at >= earliest)
                || !word.ended && by.names(it, eid, environment.uid, false)
        };
        sought.retain(|it| !is_sure(self, *it));
        if !borne_out {
            let mut listed = environment.members.iter().map(|it| key(*it));
            borne_out = listed.any(|it| is_sure(self, it));
            // `genv exec` puts its command in its own place: the record may still list `genv exec`.
            borne_out = borne_out || word.present().any(|process| self.lives(process, environment.uid));
            let mut of_it = processes.iter();
            borne_out |= of_it.any(|at| self.is_users_own(*at, eid));
        }
        let Some(known) = self.known.get_mut(eid) else {
            return;
        };
        self.judged.changed |= borne_out != known.borne_out;
        known.borne_out = borne_out;
        known.unconfirmed = sought;
    }

    /// Whether a member can only be a shell of root that joined with genv 1.x. Such a shell gives no other evidence
    /// until a process starts in the environment.
    fn is_roots_shell(&mut self, of: (u32, u64)) -> bool {
        let witness = self.witness.as_mut();
        witness.is_some_and(|witness| witness.is_in_terminal(member(of)) && witness.is_started_by_root(member(of)))
    }

    /// Remembers devices that came to a record, and looks for what bears out that its user attached them.
    pub(super) fn bear_out_devices(&mut self, eid: &str, now: &ByGpu<HeldDevice>, processes: &[usize]) {
        let Some(known) = self.known.get_mut(eid) else {
            return;
        };
        let mut sought: Vec<u32> = Vec::new();
        for (gpu, held) in now.iter() {
            let held = known.devices.entry(gpu, || {
                self.judged.changed = true;
                let unconfirmed = !known.is_new && !self.believes;
                HeldDevice { unconfirmed, ..*held }
            });
            if held.unconfirmed {
                sought.push(gpu);
            }
        }
        known.is_new = false;
        if sought.is_empty() {
            return;
        }
        let uid = known.uid;
        let word = self.word_of(eid, uid);
        for gpu in sought {
            let mut of_it = processes.iter();
            let is_sure = word.has_attached(gpu) || of_it.any(|at| self.is_users_own(*at, eid) && self.sees(*at, gpu));
            if is_sure && let Some(held) = self.known.get_mut(eid).and_then(|it| it.devices.get_mut(gpu)) {
                held.unconfirmed = false;
                self.judged.changed = true;
            }
        }
    }

    /// Whether a record lists members of which nothing shows that they are its user's will.
    pub(super) fn is_unsure(&self, eid: &str) -> bool {
        let known = self.known.get(eid);
        self.taken.contains_key(eid) || known.is_some_and(|it| !it.borne_out || !it.unconfirmed.is_empty())
    }

    /// Whether a process is in an environment by its user's own word: it runs as that user and was started with the variable
    /// that names the environment. One that was seen elsewhere before names what was, and may have ended since.
    pub(super) fn is_users_own(&mut self, position: usize, eid: &str) -> bool {
        let process = &self.snapshot.processes[position];
        let Some(of) = of(process) else {
            return false;
        };
        let uid = self.known.get(eid).and_then(|it| it.uid);
        let elsewhere = self.places.0.get(&of).is_some_and(|it| it.eid.as_deref() != Some(eid));
        // Who may start containers is root anyway; of theirs the snapshot tells only what is credible.
        let contained = process.container_id.is_some();
        uid.is_some()
            && !elsewhere
            && (contained || process.uid == uid)
            && self.names(of, eid, uid, true)
            && !self.word_of(eid, uid).ended
    }

    fn sees(&mut self, position: usize, gpu: u32) -> bool {
        let of = of(&self.snapshot.processes[position]);
        of.is_some_and(|of| self.named_by(of, false).is_some_and(|it| it.gpus.contains(&gpu)))
    }

    /// Whether a process names an environment of a user. A setuid program of root carries the variables of its caller.
    fn names(&mut self, of: (u32, u64), eid: &str, uid: Option<u32>, again: bool) -> bool {
        let named = self.named_by(of, again);
        let names_it = named.is_some_and(|it| it.eid.as_deref() == Some(eid));
        let witness = self.witness.as_mut();
        names_it && (uid != Some(0) || witness.is_some_and(|witness| witness.is_started_by_root(member(of))))
    }

    /// What a process names; asked once, and `again` in each cycle while it names nothing.
    pub(super) fn named_by(&mut self, of: (u32, u64), again: bool) -> Option<&Named> {
        if !self.claims.asked.contains_key(&of) {
            let known = self.claims.known.remove(&of);
            let known = known.filter(|it| it.eid.is_some() || !again);
            let named = match known {
                Some(named) => named,
                None => self.witness.as_mut()?.names(member(of))?,
            };
            self.claims.asked.insert(of, named);
        }
        self.claims.asked.get(&of)
    }

    fn word_of(&mut self, eid: &str, uid: Option<u32>) -> Word {
        let mut word = Word::default();
        let Some(uid) = uid else {
            return word;
        };
        let mut ended_seconds = f64::MIN;
        let mut joined_seconds = f64::MIN;
        for it in self.confirmed_by(uid).iter().filter(|it| it.eid == eid) {
            match it.change {
                ConfirmedChange::Joined { pid } => {
                    note_latest(&mut word.joined, pid, it.at_seconds);
                    joined_seconds = it.at_seconds.max(joined_seconds);
                    // A pid of another namespace is another process here.
                    if let Some(process) = it.process.filter(|joined| joined.pid_namespace == INITIAL_PID_NAMESPACE) {
                        note_latest(&mut word.started, (pid, process.start_time_ticks), it.at_seconds);
                    }
                }
                ConfirmedChange::Left { pid } => note_latest(&mut word.left, pid, it.at_seconds),
                ConfirmedChange::Attached { gpu } => note_latest(&mut word.attached, gpu, it.at_seconds),
                ConfirmedChange::Released { gpu } => note_latest(&mut word.released, gpu, it.at_seconds),
                ConfirmedChange::Ended => ended_seconds = it.at_seconds.max(ended_seconds),
                _ => {}
            }
        }
        word.ended = ended_seconds > joined_seconds;
        word
    }

    /// Whether a command put a process into an environment of this user.
    pub(super) fn has_joined(&mut self, eid: &str, uid: Option<u32>, pid: u32) -> bool {
        self.word_of(eid, uid).joined.contains_key(&pid)
    }
}
