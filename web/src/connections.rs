//! The connections that are open, and room for one more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::Limits;
use crate::connection::Progress;

/// Where every connection is busy, how long until one is looked for again that has fallen idle.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Connections up to a number. One more takes the place of that which has waited longest for its client, so that idle
/// and silent clients, however many, keep no other out.
#[derive(Debug)]
pub(crate) struct Connections {
    slots: Arc<Semaphore>,
    open: Mutex<HashMap<u64, Entry>>,
    opened: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    progress: Arc<Progress>,
    stop: CancellationToken,
}

/// One open connection; closing it is dropping this.
pub(crate) struct OpenConnection {
    connections: Arc<Connections>,
    id: u64,
    /// Where it stands.
    pub(crate) progress: Arc<Progress>,
    /// Cancelled when the server stops, or another connection needs this one's place.
    pub(crate) stop: CancellationToken,
    _slot: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
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
            if let Ok(Ok(slot)) = timeout(LOOK_AGAIN, freed).await {
                break slot;
            }
        };
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let (progress, stop) = (Progress::new(limits), stop.child_token());
        let entry = Entry { progress: Arc::clone(&progress), stop: stop.clone() };
        self.entries().insert(id, entry);
        OpenConnection { connections: Arc::clone(self), id, progress, stop, _slot: slot }
    }

    fn close_longest_waiting(&self) {
        let entries = self.entries();
        let waiting = entries.values().filter_map(|entry| {
            let since = entry.progress.waiting_since()?;
            (!entry.stop.is_cancelled()).then_some((since, &entry.stop))
        });
        if let Some((_, stop)) = waiting.min_by_key(|(since, _)| *since) {
            tracing::debug!("closing the connection that has waited longest, to make room");
            stop.cancel();
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // Insertions and removals are whole whatever else panics.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.entries().remove(&self.id);
    }
}
