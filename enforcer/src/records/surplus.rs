//! Records that are more than a user or a host can need.

use std::collections::{BTreeMap, HashSet};

use genv_core::model::Environment;

use super::judgement::{Judgement, Uses};
use super::{MOST_OF_A_HOST, MOST_OF_A_USER, TooManyRecords};

/// The records of one user.
#[derive(Default)]
struct OfUser {
    number: usize,
    counted: usize,
    /// The position of the first that does not count.
    first_left: Option<usize>,
}

impl Judgement<'_, '_> {
    /// Positions of records that count as if they were not there. One that is known, or in which a process of its user
    /// uses a device, always counts.
    pub(super) fn surplus(&mut self, uses: &Uses<'_>) -> HashSet<usize> {
        let snapshot = self.snapshot;
        let mut surplus = HashSet::new();
        if snapshot.environments.len() <= MOST_OF_A_USER {
            return surplus;
        }
        let is_certain = |environment: &Environment| {
            let eid = environment.eid.as_str();
            let own = |it: &usize| snapshot.processes[*it].uid == environment.uid;
            self.known.contains_key(eid) || uses.get(eid).is_some_and(|it| it.iter().any(own))
        };
        let environments = snapshot.environments.iter();
        let certain: Vec<bool> = environments.map(|it| is_certain(it)).collect();
        let mut users: BTreeMap<Option<u32>, OfUser> = BTreeMap::new();
        let mut counted = 0;
        for (environment, is_certain) in snapshot.environments.iter().zip(&certain) {
            let of_user = users.entry(environment.uid).or_default();
            of_user.number += 1;
            of_user.counted += usize::from(*is_certain);
            counted += usize::from(*is_certain);
        }
        for (position, environment) in snapshot.environments.iter().enumerate() {
            let of_user = users.entry(environment.uid).or_default();
            if certain[position] {
                continue;
            }
            if of_user.counted < MOST_OF_A_USER && counted < MOST_OF_A_HOST {
                of_user.counted += 1;
                counted += 1;
            } else {
                surplus.insert(position);
                of_user.first_left.get_or_insert(position);
            }
        }
        for (uid, of_user) in users {
            if let Some(first) = of_user.first_left {
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
}
