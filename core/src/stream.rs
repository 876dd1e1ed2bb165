//! The latest snapshot, its age and its health.

use std::sync::Arc;

use tokio::sync::watch;

use crate::model::Publication;

/// Publishes to every [`SnapshotStream`] made from it.
#[derive(Debug)]
pub struct Publisher(watch::Sender<Arc<Publication>>);

/// A view of the publications of one collection, local or remote. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SnapshotStream(watch::Receiver<Arc<Publication>>);

/// The collection ended, so that nothing will be published any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the collection has ended")]
pub struct Ended;

/// A publisher, and a first stream that holds an empty publication with sequence 0.
#[must_use]
pub fn channel() -> (Publisher, SnapshotStream) {
    let (sender, receiver) = watch::channel(Arc::new(Publication::default()));
    (Publisher(sender), SnapshotStream(receiver))
}

impl Publisher {
    /// Replaces the latest publication.
    pub fn publish(&self, publication: Publication) {
        self.0.send_replace(Arc::new(publication));
    }
}

impl SnapshotStream {
    /// The latest publication; sequence 0 before the first.
    #[must_use]
    pub fn latest(&self) -> Arc<Publication> {
        Arc::clone(&self.0.borrow())
    }

    /// Waits for a publication that this stream has not returned from `next` yet.
    ///
    /// # Errors
    /// The collection ended.
    pub async fn next(&mut self) -> Result<Arc<Publication>, Ended> {
        self.0.changed().await.map_err(|_| Ended)?;
        Ok(Arc::clone(&self.0.borrow_and_update()))
    }
}
