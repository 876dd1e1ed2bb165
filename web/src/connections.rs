//! The limit of open connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Limits;
use crate::connection::ConnectionState;

/// How often an idle connection is looked for while all connections are busy.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Connections up to a maximum. One more replaces the connection that has waited longest for its client, so that no
/// number of idle and silent clients blocks another client.
#[derive(Debug)]
pub(crate) struct Connections {
    slots: Arc<Semaphore>,
    open: Mutex<HashMap<u64, ConnectionEntry>>,
    opened: AtomicU64,
}

#[derive(Debug)]
struct ConnectionEntry {
    state: Arc<ConnectionState>,
    stop: CancellationToken,
}

/// One open connection, which counts until it is dropped.
pub(crate) struct OpenConnection {
    connections: Arc<Connections>,
    id: u64,
    /// Its phase and deadline.
    pub(crate) state: Arc<ConnectionState>,
    /// Cancelled when the server stops, or another connection needs this one's place.
    pub(crate) stop: CancellationToken,
    _slot: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(maximum: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Arc::new(Semaphore::new(maximum.min(Semaphore::MAX_PERMITS))),
            open: Mutex::default(),
            opened: AtomicU64::new(0),
        })
    }

    /// Opens a connection as soon as there is room; all of them end with `stop`.
    pub(crate) async fn open(self: &Arc<Self>, limits: &Limits, stop: &CancellationToken) -> OpenConnection {
        let slot = loop {
            if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
                break slot;
            }
            self.close_longest_waiting();
            let freed = Arc::clone(&self.slots).acquire_owned();
            if let Ok(Ok(slot)) = timeout(RETRY_INTERVAL, freed).await {
                break slot;
            }
        };
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let (state, stop) = (ConnectionState::new(limits), stop.child_token());
        let entry = ConnectionEntry { state: Arc::clone(&state), stop: stop.clone() };
        self.entries().insert(id, entry);
        OpenConnection { connections: Arc::clone(self), id, state, stop, _slot: slot }
    }

    fn close_longest_waiting(&self) {
        let entries = self.entries();
        let waiting = entries.values().filter_map(|entry| {
            let since = entry.state.waiting_since()?;
            (!entry.stop.is_cancelled()).then_some((since, &entry.stop))
        });
        if let Some((_, stop)) = waiting.min_by_key(|(since, _)| *since) {
            tracing::debug!("closing the connection that has waited longest, to make room");
            stop.cancel();
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, ConnectionEntry>> {
        // A panic of another thread leaves no half insertion or removal.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.entries().remove(&self.id);
    }
}
