//! The last snapshot of a session. Hosts send the changes to this snapshot.

use std::io;
use std::sync::Arc;

use genv_core::model::{SentChanges, Snapshot};

use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

/// The size of a snapshot is checked once per this many changes: only serializing the snapshot shows its size.
const CHANGES_PER_CHECK: u32 = 32;

/// The last snapshot of a session.
#[derive(Debug, Default)]
pub(super) struct LastSnapshot {
    snapshot: Option<Arc<Snapshot>>,
    changes: u32,
}

impl LastSnapshot {
    /// Keeps a snapshot as the base of the next changes.
    pub(super) fn keep(&mut self, snapshot: Arc<Snapshot>) {
        self.snapshot = Some(snapshot);
    }

    /// Applies changes to the last snapshot.
    pub(super) fn changed(&mut self, changes: &SentChanges) -> Result<Snapshot, HostFailure> {
        let Some(before) = &self.snapshot else {
            return Err(invalid("it sends changes of a snapshot that it never sent"));
        };
        let changed = changes
            .apply(before)
            .map_err(|error| invalid(format_args!("its changes do not fit its last snapshot: {error}")))?;
        self.changes += 1;
        if self.changes.is_multiple_of(CHANGES_PER_CHECK) && is_too_large(&changed) {
            return Err(invalid(format_args!(
                "its changes add up to a snapshot of more than {} MiB",
                LONGEST_LINE_BYTES >> 20
            )));
        }
        Ok(changed)
    }
}

fn invalid(what: impl std::fmt::Display) -> HostFailure {
    HostFailure::new(
        FailureKind::Protocol,
        format_args!("{what}: its session is opened anew; see that genv is of the same version there and here"),
    )
}

fn is_too_large(snapshot: &Snapshot) -> bool {
    serde_json::to_writer(ByteLimit(LONGEST_LINE_BYTES), snapshot).is_err()
}

/// A writer that fails after this many bytes, and keeps none.
struct ByteLimit(usize);

impl io::Write for ByteLimit {
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
    use genv_core::model::{Changes, Environment};
    use serde_json::{from_value, json, to_value};

    use super::*;

    fn named(hostname: &str) -> Snapshot {
        Snapshot { hostname: hostname.to_owned(), ..Snapshot::default() }
    }

    #[test]
    fn a_snapshot_that_changes_make_too_large_is_an_error() {
        let mut last = LastSnapshot::default();
        last.keep(Arc::new(named("a")));
        let mut sent = 0;
        let failure = loop {
            // Each change adds an environment with a name of 1 MiB.
            let before = last.snapshot.clone().unwrap();
            let mut now = Snapshot::clone(&before);
            let name = "x".repeat(1 << 20);
            let environment = json!({"eid": sent.to_string(), "username": "ada", "name": name});
            let environment: Environment = from_value(environment).unwrap();
            now.environments.push(Arc::new(environment));
            let changes = to_value(Changes::between(&before, &now)).unwrap();
            match last.changed(&from_value(changes).unwrap()) {
                Ok(changed) => last.keep(Arc::new(changed)),
                Err(failure) => break failure,
            }
            sent += 1;
        };
        assert!((15..32).contains(&sent), "{sent}");
        assert!(failure.message.contains("more than 16 MiB"), "{failure}");
    }
}
