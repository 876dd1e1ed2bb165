//! The user of a record. A record stays its user's as long as a member or a job of that user lives, whatever the files
//! show later.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::HashSet;
use genv_core::attribute::reason;
use genv_core::model::{Attribution, Environment};
use genv_core::proc::is_kernel_thread;

use super::MAX_OF_A_HOST;
use super::judgement::Judgement;
use super::known::{Known, key};
use super::places::of;
use crate::plan::words;

impl Judgement<'_, '_> {
    /// Decides whose a record is, and whether it counts at all: what is not remembered does not.
    pub(super) fn recognize(&mut self, environment: &Arc<Environment>, processes: &[usize]) {
        let eid = &environment.eid;
        let mut counts = Arc::clone(environment);
        if self.taken.contains_key(eid) {
            let why = "it lists members of another environment of its user".to_owned();
            self.dispute(eid, &environment.username, why);
        }
        if let Some(own) = self.compare_members(environment, processes) {
            counts = Arc::new(own);
        }
        if !self.known.contains_key(eid) {
            // A false record of root stays visible: rules take its devices back.
            if environment.uid != Some(0) && self.is_anothers(environment, processes) {
                let user = words::name(&environment.username);
                let why = format!("no member of it is a process of {user}");
                self.dispute(eid, &environment.username, why);
                self.leave_unknown(processes);
                return;
            }
            // Records that are gone are known, too, while members of them live.
            if self.known.len() >= MAX_OF_A_HOST && !self.is_used(environment, processes) {
                self.leave_unknown(processes);
                return;
            }
            let seen = (!self.begins).then_some(self.snapshot.timestamp_seconds);
            let mut known = Known::begin(environment, seen);
            known.borne_out = self.believes
                && !self.is_taken_whole(environment)
                && (environment.uid != Some(0) || self.may_be_roots(environment));
            self.known.insert(eid.clone(), known);
            self.judged.changed = true;
        }
        self.bear_out(environment, processes);
        self.environments.insert(eid.clone(), counts);
    }

    /// Compares the members of a record with those that it had. Returns the record as its user's, where it names another one.
    fn compare_members(&mut self, environment: &Arc<Environment>, processes: &[usize]) -> Option<Environment> {
        let eid = &environment.eid;
        let known = self.known.get(eid)?;
        let uid = known.uid;
        if known.is_unseen() {
            // Nothing showed that it was that user's.
            if environment.uid != uid {
                self.forget(eid);
            }
            return None;
        }
        // As where it listed kernels alone, or shells of another pid namespace.
        let shows_none = known.members.is_empty() && environment.uid == uid;
        let has = |it: &(u32, u64)| environment.members.iter().any(|now| key(*now) == *it);
        let missing: Vec<(u32, u64)> = known.members.keys().copied().filter(|it| !has(it)).collect();
        let there = missing.len() < known.members.len();
        let mut living: Vec<(u32, u64)> = Vec::new();
        for it in missing {
            if self.lives(it, uid) {
                living.push(it);
            } else if let Some(known) = self.known.get_mut(eid) {
                known.members.remove(&it);
                self.judged.changed = true;
            }
        }
        let mut lives = there || !living.is_empty() || self.works(eid);
        if !lives && shows_none {
            // Who adds to it must not make it seem new: what a new record has is as old as itself.
            lives = self.has_worker(eid, uid) && !self.is_ended(eid, uid);
        }
        if environment.uid != uid && lives {
            if self.is_ended(eid, uid) {
                self.forget(eid);
                return None;
            }
            let owner = self.known[eid].username.clone();
            let why = format!(
                "it names {} as its user, and its processes are of {}",
                words::name(&environment.username),
                words::name(&owner)
            );
            self.dispute(eid, &owner, why);
            self.spare(eid, uid);
            self.leave_to_others(processes, uid);
            self.differs = true;
            let mut own = Environment::clone(environment);
            (own.uid, own.username) = (uid, owner);
            // It was read from a file of the user that the record names.
            own.lease_end_timestamp_seconds = None;
            return Some(own);
        }
        if !lives || environment.uid != uid {
            self.forget(eid);
        } else if !living.is_empty() {
            self.confirm(eid, uid);
            let left = &self.known[eid].members;
            if living.iter().any(|it| left.contains_key(it)) {
                self.spare(eid, uid);
            }
        }
        None
    }

    /// What is in an environment that does not count belongs where nobody knows.
    pub(super) fn leave_unknown(&mut self, processes: &[usize]) {
        for &position in processes {
            let reason = reason::RECORD_DISPUTED.to_owned();
            self.moved.insert(position, Attribution::Unknown { reason });
        }
        self.differs = true;
    }

    /// Whether root may have made an environment that existed before this program started: one of its members may be a
    /// shell of root. The first process and kernel threads prove nothing, since every user can list them.
    fn may_be_roots(&self, environment: &Environment) -> bool {
        let mut members = environment.members.iter();
        self.witness.is_none() || members.any(|it| it.pid != 1 && !is_kernel_thread(it.pid))
    }

    /// Whether all that its record lists and that lives is of other users, and nothing else shows it to be its user's.
    fn is_anothers(&self, environment: &Environment, processes: &[usize]) -> bool {
        environment.foreign_members > 0
            && environment.members.is_empty()
            && environment.kernel_ids.is_empty()
            && environment.uid.is_some()
            && !self.is_used(environment, processes)
    }

    /// Finds records that are gone while members or jobs of them live. Their processes keep their environment.
    pub(super) fn look_for_removed(&mut self) {
        let snapshot = self.snapshot;
        let environments = snapshot.environments.iter();
        let shown: HashSet<&str> = environments.map(|it| it.eid.as_str()).collect();
        let gone = self.known.keys().filter(|eid| !shown.contains(eid.as_str()));
        // A process that could be of two is of the first.
        let gone: BTreeSet<String> = gone.cloned().collect();
        for eid in gone {
            let uid = self.known[&eid].uid;
            let members: Vec<(u32, u64)> = self.known[&eid].members.keys().copied().collect();
            let lives = members.into_iter().any(|it| self.lives(it, uid)) || self.works(&eid);
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
        let owner = known.username.clone();
        let mut of_it = Vec::new();
        for (position, process) in self.snapshot.processes.iter().enumerate() {
            let outside = matches!(process.attribution, Attribution::Outside { .. });
            let mut devices = process.devices.iter();
            if outside && process.uid == uid && devices.any(|device| known.devices.contains(device.index.gpu)) {
                of_it.push(position);
            }
        }
        of_it.retain(|position| !self.is_of_another(*position, eid, uid));
        if of_it.is_empty() {
            return;
        }
        for position in of_it {
            let eid = eid.to_owned();
            let attribution = Attribution::Environment { eid };
            self.moved.entry(position).or_insert(attribution);
            self.spared.insert(position);
        }
        self.differs = true;
        if self.snapshot.environment(eid).is_some() {
            let why = "members of it were removed while they live".to_owned();
            self.dispute(eid, &owner, why);
            return;
        }
        self.show(eid);
    }

    /// Whether a process was last seen in another environment of this user, or names it: a device that both held once tells
    /// not in which it is.
    fn is_of_another(&mut self, position: usize, eid: &str, uid: Option<u32>) -> bool {
        let Some(of) = of(&self.snapshot.processes[position]) else {
            return false;
        };
        let place = self.places.0.get(&of).and_then(|it| it.eid.clone());
        let own = place.or_else(|| self.named_by(of, false)?.eid.clone());
        let is_known = |own: &String| self.known.get(own).is_some_and(|it| it.uid == uid);
        own.is_some_and(|own| own != eid && is_known(&own))
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

    fn forget(&mut self, eid: &str) {
        self.judged.changed |= self.known.remove(eid).is_some();
    }
}
