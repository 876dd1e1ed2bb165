//! The connection and the last snapshot of one host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use tokio::time::Instant;

use crate::HostFailure;

/// The status of a host. The host's task writes it, and the publisher reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedStatus(Arc<Mutex<HostStatus>>);

#[derive(Debug, Default)]
struct HostStatus {
    snapshot: Option<ReceivedSnapshot>,
    /// Whether the last session has delivered a snapshot and is still open.
    delivers: bool,
    connect_duration: Option<Duration>,
    failure: Option<HostFailure>,
}

#[derive(Debug)]
struct ReceivedSnapshot {
    snapshot: Arc<Snapshot>,
    at: Instant,
    timestamp_seconds: f64,
}

impl SharedStatus {
    fn lock(&self) -> MutexGuard<'_, HostStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session was opened within this time.
    pub(super) fn connected(&self, duration: Duration) {
        self.lock().connect_duration = Some(duration);
    }

    /// A snapshot arrived at this Unix time.
    pub(super) fn received(&self, snapshot: Arc<Snapshot>, timestamp_seconds: f64) {
        let mut status = self.lock();
        status.snapshot = Some(ReceivedSnapshot { snapshot, at: Instant::now(), timestamp_seconds });
        status.delivers = true;
        status.failure = None;
    }

    /// The connection or the session failed.
    pub(super) fn failed(&self, failure: HostFailure) {
        let mut status = self.lock();
        status.delivers = false;
        status.failure = Some(failure);
    }

    /// Whether the host has delivered a snapshot or failed.
    pub(super) fn is_settled(&self) -> bool {
        let status = self.lock();
        status.snapshot.is_some() || status.failure.is_some()
    }

    /// The host's part of a publication.
    pub(super) fn publish(&self, hostname: &str, max_age: Duration) -> HostSnapshot {
        let status = self.lock();
        let received = status.snapshot.as_ref();
        let current = received.filter(|received| received.at.elapsed() <= max_age);
        HostSnapshot {
            hostname: hostname.to_owned(),
            up: status.delivers && current.is_some(),
            received_timestamp_seconds: received.map(|received| received.timestamp_seconds),
            snapshot: current.map(|received| Arc::clone(&received.snapshot)),
            ssh: Some(CollectorStatus {
                success: status.delivers,
                current: current.is_some(),
                duration_seconds: status.connect_duration.map(|it| it.as_secs_f64()),
                timestamp_seconds: received.map(|received| received.timestamp_seconds),
                error: status.failure.as_ref().map(ToString::to_string),
                fault: None,
                withheld: Vec::new(),
            }),
        }
    }
}
