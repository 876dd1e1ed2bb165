//! What was last learned of one host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use genv_core::model::{CollectorStatus, HostSnapshot, Snapshot};
use tokio::time::Instant;

use crate::HostFailure;

/// Written by the host's task, read by the publisher.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell(Arc<Mutex<Learned>>);

#[derive(Debug, Default)]
struct Learned {
    snapshot: Option<Received>,
    /// Whether a session is open that delivers.
    delivers: bool,
    connect_duration: Option<Duration>,
    failure: Option<HostFailure>,
}

#[derive(Debug)]
struct Received {
    snapshot: Arc<Snapshot>,
    at: Instant,
    timestamp_seconds: f64,
}

impl Cell {
    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session is open; it took so long.
    pub(super) fn connected(&self, duration: Duration) {
        self.learned().connect_duration = Some(duration);
    }

    /// A snapshot came, at this Unix time.
    pub(super) fn received(&self, snapshot: Arc<Snapshot>, timestamp_seconds: f64) {
        let mut learned = self.learned();
        learned.snapshot = Some(Received { snapshot, at: Instant::now(), timestamp_seconds });
        learned.delivers = true;
        learned.failure = None;
    }

    /// It went wrong.
    pub(super) fn failed(&self, failure: HostFailure) {
        let mut learned = self.learned();
        learned.delivers = false;
        learned.failure = Some(failure);
    }

    /// Whether it delivered or failed at least once.
    pub(super) fn is_settled(&self) -> bool {
        let learned = self.learned();
        learned.snapshot.is_some() || learned.failure.is_some()
    }

    /// What is published of it.
    pub(super) fn publish(&self, hostname: &str, max_age: Duration) -> HostSnapshot {
        let learned = self.learned();
        let received = learned.snapshot.as_ref();
        let current = received.filter(|received| received.at.elapsed() <= max_age);
        HostSnapshot {
            hostname: hostname.to_owned(),
            up: learned.delivers && current.is_some(),
            received_timestamp_seconds: received.map(|received| received.timestamp_seconds),
            snapshot: current.map(|received| Arc::clone(&received.snapshot)),
            ssh: Some(CollectorStatus {
                success: learned.delivers,
                current: current.is_some(),
                duration_seconds: learned.connect_duration.map(|it| it.as_secs_f64()),
                timestamp_seconds: received.map(|received| received.timestamp_seconds),
                error: learned.failure.as_ref().map(ToString::to_string),
            }),
        }
    }
}
