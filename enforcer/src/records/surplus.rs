//! Records that are more than a user or a host can need: which of them count.

use std::collections::BTreeMap;

use foldhash::{HashSet, HashSetExt as _};
use genv_core::model::{ConfirmedChange, Environment};

use super::judgement::{Judgement, Uses};
use super::{MAX_OF_A_HOST, MAX_OF_A_USER, TooManyRecords};

/// The records of one user.
#[derive(Default)]
struct OfUser {
    number: usize,
    counted: usize,
    /// The position of the first that does not count.
    first_left: Option<usize>,
    /// Those of them that the user bears out.
    borne_out: usize,
    /// Environments and processes that commands of the user joined; asked only of a user with too many.
    joined: HashSet<(String, u32)>,
}

/// Which records count first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// It was borne out before, or a process of its user uses a device there.
    Certain,
    /// It is borne out now.
    BorneOut,
    /// Nothing shows that its user made it, and it was seen before.
    Known,
    New,
}

impl Judgement<'_, '_> {
    /// Positions of records that count as if they were not there. One that was borne out before, or in which a process of
    /// its user uses a device, always counts; what others write in a user's name takes no place from what the user makes.
    pub(super) fn surplus(&mut self, uses: &Uses<'_>) -> HashSet<usize> {
        let snapshot = self.snapshot;
        let mut surplus = HashSet::new();
        if snapshot.environments.len() <= MAX_OF_A_USER {
            return surplus;
        }
        let mut users: BTreeMap<Option<u32>, OfUser> = BTreeMap::new();
        for environment in &snapshot.environments {
            users.entry(environment.uid).or_default().number += 1;
        }
        for (uid, of_user) in &mut users {
            if let Some(uid) = uid.filter(|_| of_user.number > MAX_OF_A_USER) {
                let confirmed = self.confirmed_by(uid).iter();
                let joined = confirmed.filter_map(|it| match it.change {
                    ConfirmedChange::Joined { pid } => Some((it.eid.clone(), pid)),
                    _ => None,
                });
                of_user.joined = joined.collect();
            }
        }
        let mut counted = 0;
        let mut waiting: Vec<(Worth, usize)> = Vec::new();
        for (position, environment) in snapshot.environments.iter().enumerate() {
            let of_user = users.entry(environment.uid).or_default();
            let worth = self.worth(environment, of_user, uses);
            of_user.borne_out += usize::from(worth <= Worth::BorneOut);
            if worth == Worth::Certain {
                of_user.counted += 1;
                counted += 1;
            } else {
                waiting.push((worth, position));
            }
        }
        waiting.sort_unstable();
        for (_, position) in waiting {
            let environment = &snapshot.environments[position];
            let of_user = users.entry(environment.uid).or_default();
            if of_user.counted < MAX_OF_A_USER && counted < MAX_OF_A_HOST {
                of_user.counted += 1;
                counted += 1;
            } else {
                surplus.insert(position);
                let first = of_user.first_left.get_or_insert(position);
                *first = position.min(*first);
                self.judged.changed |= self.known.remove(&environment.eid).is_some();
            }
        }
        for (uid, of_user) in users {
            // Nobody is named for what others may have written.
            let first = of_user.first_left;
            if let Some(first) = first.filter(|_| of_user.borne_out >= MAX_OF_A_USER) {
                self.judged.too_many.push(TooManyRecords {
                    hostname: snapshot.hostname.clone(),
                    username: snapshot.environments[first].username.clone(),
                    uid,
                    records: of_user.number as u64,
                });
            }
        }
        surplus
    }

    fn worth(&self, environment: &Environment, of_user: &OfUser, uses: &Uses<'_>) -> Worth {
        let eid = environment.eid.as_str();
        let known = self.known.get(eid);
        let processes = uses.get(eid).map_or(&[][..], Vec::as_slice);
        let joined = |pid: u32| of_user.joined.contains(&(eid.to_owned(), pid));
        if known.is_some_and(|it| it.borne_out) || self.is_used(environment, processes) {
            Worth::Certain
        } else if self.believes || environment.members.iter().any(|it| joined(it.pid)) {
            Worth::BorneOut
        } else if known.is_some() {
            Worth::Known
        } else {
            Worth::New
        }
    }

    /// Whether a process of its user uses a device there.
    pub(super) fn is_used(&self, environment: &Environment, processes: &[usize]) -> bool {
        let own = |it: &usize| self.snapshot.processes[*it].uid == environment.uid;
        processes.iter().any(own)
    }
}
