//! The environments and members that damaged records name. They may exist.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use super::value::{Entry, eid};

/// The most environments and members that are kept: every user may write the file.
const MOST_EIDS: usize = 10_000;
const MOST_MEMBERS: usize = 40_000;

/// The readable environments and members in records that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Ids of environments.
    pub eids: HashSet<String>,
    /// Pids of members, each with the uid of the record. A record without a readable uid has no members here: another
    /// user may have written it.
    pub members: BTreeSet<(u32, u32)>,
}

impl LeftOut {
    /// Whether no name was left out.
    pub fn is_empty(&self) -> bool {
        self.eids.is_empty() && self.members.is_empty()
    }

    /// The uids of the records that list a process.
    pub(crate) fn uids_of(&self, pid: u32) -> impl Iterator<Item = u32> {
        let members = self.members.range((pid, 0)..=(pid, u32::MAX));
        members.map(|(_, uid)| *uid)
    }

    /// Adds the names of an entry. If the entry `is_kept`, only members were left out.
    pub(super) fn add(&mut self, entry: &Entry<'_>, is_kept: bool) {
        if !is_kept && self.eids.len() < MOST_EIDS {
            self.eids.extend(eid(entry.value.get("eid"), entry.key));
        }
        let uid = entry.value.get("uid").and_then(whole_number);
        if let Some((uid, pids)) = uid.zip(entry.value.get("pids")) {
            self.add_pids(uid, pids);
        }
    }

    /// Adds each number of a value that may be a pid, whatever the shape of the value.
    fn add_pids(&mut self, uid: u32, value: &Value) {
        match value {
            _ if self.members.len() >= MOST_MEMBERS => {}
            Value::Number(_) | Value::String(_) => {
                self.members.extend(whole_number(value).map(|pid| (pid, uid)));
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_pids(uid, item)),
            Value::Object(fields) => fields.values().for_each(|item| self.add_pids(uid, item)),
            Value::Null | Value::Bool(_) => {}
        }
    }
}

/// A pid or uid, whatever its type.
fn whole_number(value: &Value) -> Option<u32> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    text.strip_suffix(".0").unwrap_or(&text).parse().ok()
}
