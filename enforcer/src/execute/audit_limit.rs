//! A limit of audit lines per user and cycle about actions that are not done. One line stands for all further ones.

use std::collections::BTreeMap;

use super::audit::AuditRecord;

/// The largest number of lines of a user in a cycle in the log, and in the audit, without finished actions.
pub(crate) const MAX_USER_LINES: u64 = 20;

/// The lines of the current cycle.
#[derive(Debug, Default)]
pub(super) struct AuditLimit {
    of_user: BTreeMap<String, u64>,
    /// The lines over the limit, by user and rule: the first one, and their number.
    more: BTreeMap<(String, String), (AuditRecord, u64)>,
    /// The number in the audit's last such line.
    written: BTreeMap<(String, String), u64>,
}

impl AuditLimit {
    /// Whether a line may be written. A line over the limit is counted.
    pub(super) fn take(&mut self, record: &AuditRecord) -> bool {
        let of_user = self.of_user.entry(record.username.clone()).or_default();
        *of_user += 1;
        if *of_user <= MAX_USER_LINES {
            return true;
        }
        let key = (record.username.clone(), record.rule.clone());
        let more = self.more.entry(key);
        more.or_insert_with(|| (record.clone(), 0)).1 += 1;
        false
    }

    /// Ends the cycle. Returns the lines that stand for further ones, if there are more than in the cycle before.
    pub(super) fn end(&mut self) -> Vec<AuditRecord> {
        self.of_user.clear();
        let more = std::mem::take(&mut self.more);
        let before = std::mem::take(&mut self.written);
        let mut records = Vec::new();
        for (key, (record, number)) in more {
            if before.get(&key).is_none_or(|before| number > *before) {
                records.push(AuditRecord {
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
