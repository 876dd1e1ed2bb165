//! What damaged records of environments name: who is named there may be in an environment all the same.

use std::collections::HashSet;

use serde_json::Value;

use super::value::{Entry, eid};

/// The environments and members that records name which were left out, as far as they can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Ids of environments.
    pub eids: HashSet<String>,
    /// Pids of members.
    pub pids: HashSet<u32>,
}

impl LeftOut {
    /// Whether no record was left out that names something.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.eids.is_empty() && self.pids.is_empty()
    }

    /// Adds what an entry names. Of one that `is_kept`, only members were left out.
    pub(super) fn add(&mut self, entry: &Entry<'_>, is_kept: bool) {
        if !is_kept {
            self.eids.extend(eid(entry.value.get("eid"), entry.key));
        }
        if let Some(pids) = entry.value.get("pids") {
            self.add_pids(pids);
        }
    }

    /// Adds each number of a value that may be a pid, whatever the shape of the value.
    fn add_pids(&mut self, value: &Value) {
        match value {
            Value::Number(_) | Value::String(_) => {
                let text = match value {
                    Value::String(text) => text.trim().to_owned(),
                    number => number.to_string(),
                };
                let whole = text.strip_suffix(".0").unwrap_or(&text);
                self.pids.extend(whole.parse::<u32>());
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_pids(item)),
            Value::Object(fields) => fields.values().for_each(|item| self.add_pids(item)),
            Value::Null | Value::Bool(_) => {}
        }
    }
}
