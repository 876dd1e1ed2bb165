//! Snapshots as lines: whole, or as the changes since the snapshot before.

use std::sync::Arc;

use genv_core::model::{Changes, Snapshot};

use crate::protocol::{ChangesReply, LONGEST_LINE_BYTES, Reply, SnapshotReply, line};

/// The snapshot that the client has.
#[derive(Debug, Default)]
pub(super) struct SnapshotLines(Option<Arc<Snapshot>>);

impl SnapshotLines {
    /// The line for the next snapshot, or an error if the line would be too long.
    pub(super) fn line(&mut self, snapshot: Arc<Snapshot>, whole: bool) -> Vec<u8> {
        let written = match &self.0 {
            Some(before) if !whole => line(&ChangesReply { changes: Changes::between(before, &snapshot) }),
            _ => line(&SnapshotReply { snapshot: &snapshot }),
        };
        let why = match written {
            Ok(line) if line.len() <= LONGEST_LINE_BYTES => {
                self.0 = Some(snapshot);
                return line;
            }
            Ok(line) => format!(
                "cannot send a snapshot: it has {} MiB, more than a line may have: find the user who made so many environments \
                 or processes on this host",
                line.len() >> 20
            ),
            Err(error) => {
                format!("cannot write a snapshot: {error}: report this as a defect of genv")
            }
        };
        line(&Reply::Error { id: None, message: why }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use genv_core::model::Environment;
    use serde_json::{from_slice, from_value, json};

    use super::*;

    fn named(name: &str) -> Arc<Snapshot> {
        let environment = json!({"eid": "e1", "username": "ada", "name": name});
        let environment = from_value::<Environment>(environment).unwrap();
        Arc::new(Snapshot { environments: vec![environment.into()], ..Snapshot::default() })
    }

    #[test]
    fn a_snapshot_that_is_too_long_becomes_an_error_and_the_next_changes_skip_it() {
        let mut lines = SnapshotLines::default();
        let first = from_slice(&lines.line(named("a"), false)).unwrap();
        assert!(matches!(first, Reply::Snapshot { snapshot } if *snapshot == *named("a")));
        let too_long = named(&"x".repeat(LONGEST_LINE_BYTES));
        for whole in [false, true] {
            let refused = from_slice(&lines.line(Arc::clone(&too_long), whole)).unwrap();
            let Reply::Error { id: None, message } = refused else {
                panic!("{refused:?}");
            };
            assert!(message.contains("it has 16 MiB"), "{message}");
        }
        let changes = from_slice(&lines.line(named("b"), false)).unwrap();
        let Reply::Changes { changes } = changes else {
            panic!("{changes:?}");
        };
        assert_eq!(changes.apply(&named("a")).unwrap(), *named("b"));
    }
}
