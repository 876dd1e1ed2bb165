//! The last snapshot of a session, from which the next one differs little.

use std::io;
use std::sync::Arc;

use genv_core::model::{Changes, Snapshot};

use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

/// How often it is seen whether all that changes have added up to is more than a host could send at once: rarely, as
/// nothing tells that but writing it.
const WEIGHED_EVERY: u32 = 32;

/// What was last received, with the lists as they came: changes are of nothing else.
#[derive(Debug, Default)]
pub(super) struct Latest {
    snapshot: Option<Arc<Snapshot>>,
    changes: u32,
}

impl Latest {
    /// Keeps what the next changes are of.
    pub(super) fn keep(&mut self, snapshot: Arc<Snapshot>) {
        self.snapshot = Some(snapshot);
    }

    /// What changes make of it.
    ///
    /// # Errors
    /// They are not changes of it, or make it larger than a snapshot may be.
    pub(super) fn changed(&mut self, changes: Changes<'_>) -> Result<Snapshot, HostFailure> {
        let Some(before) = &self.snapshot else {
            return Err(mistaken("it sends changes of a snapshot that it never sent"));
        };
        let changed = changes
            .apply(before)
            .map_err(|error| mistaken(format_args!("what it sends does not fit to what it sent before: {error}")))?;
        self.changes += 1;
        if self.changes.is_multiple_of(WEIGHED_EVERY) && is_too_large(&changed) {
            return Err(mistaken(format_args!(
                "its changes add up to a snapshot of more than {} MiB",
                LONGEST_LINE_BYTES >> 20
            )));
        }
        Ok(changed)
    }
}

fn mistaken(what: impl std::fmt::Display) -> HostFailure {
    HostFailure::new(
        FailureKind::Protocol,
        format_args!("{what}: its session is begun anew; see that genv is of the same version there and here"),
    )
}

fn is_too_large(snapshot: &Snapshot) -> bool {
    serde_json::to_writer(Room(LONGEST_LINE_BYTES), snapshot).is_err()
}

/// Takes so many bytes, and keeps none.
struct Room(usize);

impl io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use genv_core::model::Environment;
    use serde_json::{from_value, json};

    use super::*;

    fn named(hostname: &str) -> Snapshot {
        Snapshot { hostname: hostname.to_owned(), ..Snapshot::default() }
    }

    #[test]
    fn changes_of_nothing_are_told() {
        let (first, second) = (named("a"), named("b"));
        let mut latest = Latest::default();
        let failure = latest.changed(Changes::between(&first, &second));
        let failure = failure.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Protocol);
        assert!(failure.message.contains("it never sent"), "{failure}");
        latest.keep(Arc::new(first.clone()));
        let changed = latest.changed(Changes::between(&first, &second));
        assert_eq!(changed, Ok(second));
    }

    #[test]
    fn a_snapshot_does_not_grow_without_end() {
        let mut latest = Latest::default();
        latest.keep(Arc::new(named("a")));
        let mut sent = 0;
        let failure = loop {
            // What is there stays, and each time another MiB comes.
            let before = latest.snapshot.clone().unwrap();
            let mut now = Snapshot::clone(&before);
            let name = "x".repeat(1 << 20);
            let environment = json!({"eid": sent.to_string(), "username": "ada", "name": name});
            let environment: Environment = from_value(environment).unwrap();
            now.environments.push(Arc::new(environment));
            match latest.changed(Changes::between(&before, &now)) {
                Ok(changed) => latest.keep(Arc::new(changed)),
                Err(failure) => break failure,
            }
            sent += 1;
        };
        assert!((15..32).contains(&sent), "{sent}");
        assert!(failure.message.contains("more than 16 MiB"), "{failure}");
    }
}
