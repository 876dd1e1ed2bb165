//! Limits on the number of records of one user and of one host. Every user may write into the state, in the name
//! of every other user.
//!
//! A user beyond the limit keeps the records that the user's own commands confirmed ([`super::confirmed`]), then the
//! records with a living process of the user, then the first records of the file. The enforcer has lower limits, and
//! keeps the records that it knows from before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::BorrowedFd;

use super::EnvironmentState;
use super::confirmed;
use super::jobs::processes_by_user;
use crate::model::ConfirmedChange;

/// A number of records and their size.
#[derive(Clone, Copy, Default)]
struct Amount {
    records: usize,
    bytes: usize,
}

const MOST_OF_A_USER: Amount = Amount { records: 8_192, bytes: 2 << 20 };
const MOST_OF_A_HOST: Amount = Amount { records: 16_384, bytes: 4 << 20 };

/// The number of users that are named with the number of their dropped records.
const MOST_NAMED: usize = 10;

/// The number of users whose confirmations are kept in memory during a read: a file may name any number of uids.
const MOST_REMEMBERED: usize = 1_024;

impl Amount {
    /// Adds a record of this size, unless the sum exceeds `most`.
    fn add(&mut self, bytes: usize, most: Self) -> bool {
        let fits = self.records < most.records && self.bytes + bytes <= most.bytes;
        if fits {
            self.records += 1;
            self.bytes += bytes;
        }
        fits
    }
}

/// The evidence that a record belongs to its user, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EvidenceRank {
    Confirmed,
    HasLivingMember,
    Unknown,
}

struct SizedRecord {
    environment: EnvironmentState,
    position: usize,
    bytes: usize,
    evidence_rank: EvidenceRank,
}

/// Removes the records beyond the limits. Returns a sentence for each user with removed records.
pub(super) fn leave_out(environments: &mut Vec<EnvironmentState>, directory: BorrowedFd<'_>) -> Vec<String> {
    let size = |it: &EnvironmentState| serde_json::to_vec(it).map_or(0, |text| text.len());
    if environments.len() <= MOST_OF_A_USER.records
        && environments.iter().map(size).sum::<usize>() <= MOST_OF_A_USER.bytes
    {
        return Vec::new();
    }
    let mut evidence = RecordEvidence { directory, confirmed: HashMap::new(), living: None };
    let records = std::mem::take(environments).into_iter().enumerate().map(|(position, environment)| SizedRecord {
        position,
        bytes: size(&environment),
        evidence_rank: evidence.evidence_rank(&environment),
        environment,
    });
    let mut records: Vec<SizedRecord> = records.collect();
    records.sort_by_key(|record| (record.evidence_rank, record.position));
    let (mut ranked, mut surplus) = (Vec::new(), Vec::new());
    let mut of_users: HashMap<u32, Amount> = HashMap::new();
    for record in records {
        let of_user = of_users.entry(record.environment.uid).or_default();
        if of_user.add(record.bytes, MOST_OF_A_USER) {
            ranked.push((of_user.records, record));
        } else {
            surplus.push(record.environment.uid);
        }
    }
    // The first record of every user precedes the second record of any user.
    ranked.sort_by_key(|(rank, record)| (record.evidence_rank, *rank, record.position));
    let mut of_host = Amount::default();
    let mut kept = Vec::new();
    for (_, record) in ranked {
        if of_host.add(record.bytes, MOST_OF_A_HOST) {
            kept.push(record);
        } else {
            surplus.push(record.environment.uid);
        }
    }
    kept.sort_by_key(|record| record.position);
    environments.extend(kept.into_iter().map(|it| it.environment));
    warnings(&surplus)
}

/// A sentence for each of these users, of whom each stands for a removed record; for some users only.
fn warnings(surplus: &[u32]) -> Vec<String> {
    let mut of_users: BTreeMap<u32, usize> = BTreeMap::new();
    for uid in surplus {
        *of_users.entry(*uid).or_default() += 1;
    }
    let others: usize = of_users.values().skip(MOST_NAMED).sum();
    let named = of_users.into_iter().take(MOST_NAMED).map(|(uid, number)| {
        format!("{number} records of environments of the user with uid {uid} are left out: there are too many")
    });
    let others = Some(others).filter(|number| *number > 0);
    named.chain(others.map(|number| format!("{number} records of environments of more users are left out"))).collect()
}

/// The evidence for the user of a record, apart from the record itself.
struct RecordEvidence<'d> {
    directory: BorrowedFd<'d>,
    /// Environments that their users' commands changed and did not end.
    confirmed: HashMap<u32, HashSet<String>>,
    /// Processes by user.
    living: Option<HashMap<u32, HashSet<u32>>>,
}

impl RecordEvidence<'_> {
    fn evidence_rank(&mut self, environment: &EnvironmentState) -> EvidenceRank {
        let directory = self.directory;
        if self.confirmed.len() >= MOST_REMEMBERED {
            self.confirmed.clear();
        }
        let uid = environment.uid;
        let confirmed = self.confirmed.entry(uid).or_insert_with(|| {
            let changes = confirmed::read(directory, uid).into_iter();
            let goes_on = changes.filter(|it| it.change != ConfirmedChange::Ended);
            goes_on.map(|it| it.eid).collect()
        });
        if confirmed.contains(&environment.eid) {
            return EvidenceRank::Confirmed;
        }
        let living = self.living.get_or_insert_with(|| {
            let all = processes_by_user().unwrap_or_default().into_iter();
            all.map(|(uid, pids)| (uid, pids.into_iter().collect())).collect()
        });
        let lives = |living: &HashSet<u32>| environment.pids().any(|pid| living.contains(&pid));
        if living.get(&uid).is_some_and(lives) { EvidenceRank::HasLivingMember } else { EvidenceRank::Unknown }
    }
}

#[cfg(test)]
mod tests;
