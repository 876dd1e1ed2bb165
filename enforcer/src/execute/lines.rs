//! How many lines of the audit one user can cause in a cycle by what is not done: what is beyond that is one line.

use std::collections::BTreeMap;

use super::audit::Record;

/// What is logged, or written to the audit, of one user in a cycle, besides what is done.
pub(crate) const MOST_LINES_OF_A_USER: u64 = 20;

/// The lines of the current cycle.
#[derive(Debug, Default)]
pub(super) struct Lines {
    of_user: BTreeMap<String, u64>,
    /// What is beyond the bound, by user and rule: the first, and how many.
    more: BTreeMap<(String, String), (Record, u64)>,
    /// How many the audit has in one line from an earlier cycle.
    written: BTreeMap<(String, String), u64>,
}

impl Lines {
    /// Whether a line may be written. One that may not is counted.
    pub(super) fn take(&mut self, record: &Record) -> bool {
        let of_user = self.of_user.entry(record.username.clone()).or_default();
        *of_user += 1;
        if *of_user <= MOST_LINES_OF_A_USER {
            return true;
        }
        let key = (record.username.clone(), record.rule.clone());
        let more = self.more.entry(key);
        more.or_insert_with(|| (record.clone(), 0)).1 += 1;
        false
    }

    /// Ends the cycle: the lines that stand for all that are more than in the cycle before.
    pub(super) fn end(&mut self) -> Vec<Record> {
        self.of_user.clear();
        let more = std::mem::take(&mut self.more);
        let before = std::mem::take(&mut self.written);
        let mut records = Vec::new();
        for (key, (record, number)) in more {
            if before.get(&key).is_none_or(|before| number > *before) {
                records.push(Record {
                    more: Some(number),
                    pid: None,
                    start_time_ticks: None,
                    comm: None,
                    eid: None,
                    gpu: None,
                    ..record
                });
            }
            self.written.insert(key, number);
        }
        records
    }
}
