//! Limits on the number of records of one user and of one host. Every user may write into the state files, in the name
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

/// A record takes about 300 bytes in genv's own layout.
const MOST_OF_A_USER: Amount = Amount { records: 8_192, bytes: 2 << 20 };

/// In genv's own layout these records fit into a file of allowed size: there a byte takes up to six.
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
    /// Computed only with too many records.
    evidence_rank: Option<EvidenceRank>,
}

/// The records of a file during the read.
pub(super) struct Records<'d> {
    evidence: RecordEvidence<'d>,
    records: Vec<SizedRecord>,
    eids: HashSet<String>,
    bytes: usize,
    left_out: BTreeMap<u32, usize>,
    left_out_of_others: usize,
}

impl<'d> Records<'d> {
    /// Starts without records. `directory` is the state directory, if there is one.
    pub(super) fn new(directory: Option<BorrowedFd<'d>>) -> Self {
        Self {
            evidence: RecordEvidence { directory, confirmed: HashMap::new(), living: None },
            records: Vec::new(),
            eids: HashSet::new(),
            bytes: 0,
            left_out: BTreeMap::new(),
            left_out_of_others: 0,
        }
    }

    /// Adds a record of this size, unless one with the same id exists. Returns whether the record was added.
    pub(super) fn add(&mut self, environment: EnvironmentState, position: usize, bytes: usize) -> bool {
        if !self.eids.insert(environment.eid.clone()) {
            return false;
        }
        self.bytes += bytes;
        self.records.push(SizedRecord { environment, position, bytes, evidence_rank: None });
        if self.records.len() >= 2 * MOST_OF_A_HOST.records || self.bytes > 2 * MOST_OF_A_HOST.bytes {
            self.leave_out_surplus();
        }
        true
    }

    /// The records, in the order of the file, and a sentence for each user with dropped records.
    pub(super) fn finish(mut self) -> (Vec<EnvironmentState>, Vec<String>) {
        self.leave_out_surplus();
        let named = self.left_out.into_iter().map(|(uid, number)| {
            format!("{number} records of environments of the user with uid {uid} are left out: there are too many")
        });
        let others = Some(self.left_out_of_others).filter(|number| *number > 0);
        let others = others.map(|number| format!("{number} records of environments of more users are left out"));
        let warnings = named.chain(others).collect();
        let records = self.records.into_iter();
        (records.map(|it| it.environment).collect(), warnings)
    }

    fn leave_out_surplus(&mut self) {
        if self.records.len() <= MOST_OF_A_USER.records && self.bytes <= MOST_OF_A_USER.bytes {
            return;
        }
        let mut records = std::mem::take(&mut self.records);
        for record in &mut records {
            let evidence = &mut self.evidence;
            let evidence_rank = || evidence.evidence_rank(&record.environment);
            record.evidence_rank.get_or_insert_with(evidence_rank);
        }
        records.sort_by_key(|record| (record.evidence_rank, record.position));
        let (mut ranked, mut surplus) = (Vec::new(), Vec::new());
        let mut of_users: HashMap<u32, Amount> = HashMap::new();
        for record in records {
            let of_user = of_users.entry(record.environment.uid).or_default();
            if of_user.add(record.bytes, MOST_OF_A_USER) {
                ranked.push((of_user.records, record));
            } else {
                surplus.push(record);
            }
        }
        // The first record of every user precedes the second record of any user.
        ranked.sort_by_key(|(rank, record)| (record.evidence_rank, *rank, record.position));
        let mut of_host = Amount::default();
        for (_, record) in ranked {
            if of_host.add(record.bytes, MOST_OF_A_HOST) {
                self.records.push(record);
            } else {
                surplus.push(record);
            }
        }
        self.records.sort_by_key(|record| record.position);
        self.bytes = of_host.bytes;
        for SizedRecord { environment, .. } in surplus {
            self.eids.remove(&environment.eid);
            let is_named = self.left_out.len() < MOST_NAMED;
            if is_named || self.left_out.contains_key(&environment.uid) {
                *self.left_out.entry(environment.uid).or_default() += 1;
            } else {
                self.left_out_of_others += 1;
            }
        }
    }
}

/// The evidence for the user of a record, apart from the record itself.
struct RecordEvidence<'d> {
    directory: Option<BorrowedFd<'d>>,
    /// Environments that their users' commands changed and did not end.
    confirmed: HashMap<u32, HashSet<String>>,
    /// Processes by user.
    living: Option<HashMap<u32, HashSet<u32>>>,
}

impl RecordEvidence<'_> {
    fn evidence_rank(&mut self, environment: &EnvironmentState) -> EvidenceRank {
        let Some(directory) = self.directory else {
            return EvidenceRank::Unknown;
        };
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
mod tests {
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::*;
    use crate::state::document::{self, ReadContext};
    use crate::state::file::MOST_FILE_BYTES;
    use crate::state::shape::{self, Times};

    /// The number of bytes that a byte of a record takes at most in genv's own layout.
    const MOST_GROWTH: usize = 6;

    #[test]
    fn records_up_to_the_limits_fit_into_a_file_that_is_read() {
        let times = Times { zone: TimeZone::UTC, now_seconds: 0 };
        let sizes = |record: &Value| {
            let text = json!({ "envs": [record] }).to_string();
            let read = document::environments(text.as_bytes(), &ReadContext::of_text(&TimeZone::UTC)).unwrap();
            assert_eq!((read.entries.len(), read.warnings), (1, Vec::<String>::new()));
            (record.to_string().len(), shape::environments(&read.entries, &times).len())
        };
        // JSON has this character as one byte, and Python writes an escape.
        let eid = "\u{7f}";
        let long = eid.repeat(1_000);
        let (least_read, least_written) = sizes(&json!({"eid": eid, "uid": 1}));
        for record in [
            json!({"eid": long, "uid": 1}),
            json!({"eid": eid, "uid": 1, "username": long, "config": {"name": long}}),
            json!({"eid": eid, "uid": 1, "pids": [1]}),
            json!({"eid": eid, "uid": 1, "pids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}),
            json!({"eid": eid, "uid": 1, "kernel_ids": ["", long]}),
        ] {
            let (read, written) = sizes(&record);
            assert!(written - least_written <= MOST_GROWTH * (read - least_read), "{record}");
        }
        let most = MOST_OF_A_HOST.records * least_written + MOST_GROWTH * MOST_OF_A_HOST.bytes;
        assert!(most as u64 <= MOST_FILE_BYTES, "{most}");
    }
}
