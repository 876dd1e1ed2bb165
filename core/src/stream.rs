//! Publications for readers: the latest one, and each next one.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::sync::watch;

use crate::model::Publication;

/// Publishes to every [`SnapshotStream`] made from it.
#[derive(Debug)]
pub struct Publisher(watch::Sender<Arc<Publication>>);

/// A view of the publications of one collection, local or remote. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SnapshotStream(watch::Receiver<Arc<Publication>>);

/// The collection has ended: no publication follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the collection has ended")]
pub struct Ended;

/// A publisher, and a first stream that holds an empty publication with sequence 0.
pub fn channel() -> (Publisher, SnapshotStream) {
    let (sender, receiver) = watch::channel(Arc::new(Publication::default()));
    (Publisher(sender), SnapshotStream(receiver))
}

impl Publisher {
    /// Replaces the latest publication.
    pub fn publish(&self, publication: Publication) {
        self.0.send_replace(Arc::new(publication));
    }

    /// Whether all streams were dropped.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl SnapshotStream {
    /// The latest publication; sequence 0 before the first.
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

    /// As [`SnapshotStream::next`], for a thread without an asynchronous runtime.
    ///
    /// # Errors
    /// The collection ended.
    pub fn next_blocking(&mut self) -> Result<Arc<Publication>, Ended> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut next = pin!(self.next());
        loop {
            match next.as_mut().poll(&mut context) {
                Poll::Ready(publication) => return publication,
                Poll::Pending => thread::park(),
            }
        }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_wakes_for_a_publication_and_for_the_end() {
        let (publisher, mut stream) = channel();
        assert_eq!(stream.latest().sequence, 0);
        let waiting = thread::spawn(move || {
            let first = stream.next_blocking().map(|publication| publication.sequence);
            (first, stream.next_blocking().map(|publication| publication.sequence))
        });
        publisher.publish(Publication { sequence: 7, hosts: Vec::new() });
        drop(publisher);
        assert_eq!(waiting.join().unwrap(), (Ok(7), Err(Ended)));
    }
}
