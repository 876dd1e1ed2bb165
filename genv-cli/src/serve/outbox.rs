//! Replies on their way to who asked, written by a thread of their own: whoever does not read stops nobody here.

use std::collections::VecDeque;
use std::io::{self, PipeWriter, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// More replies than these wait for nobody who reads.
const MOST_WAITING: usize = 64;

/// How long who asked may take to read the last replies, at the end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nobody reads the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads the replies")]
pub(crate) struct Full;

/// What is to be written. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    replies: VecDeque<Vec<u8>>,
    /// The newest; an older one that was not written in time is of no use to anybody.
    snapshot: Option<Vec<u8>>,
    writing: bool,
    /// The reader is gone.
    closed: bool,
}

impl Outbox {
    /// Begins to write. `open` is dropped once nothing can be written any more.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(out: impl Write + Send + 'static, open: PipeWriter) -> io::Result<Self> {
        let outbox = Self::default();
        let shared = Arc::clone(&outbox.0);
        let writer = thread::Builder::new().name("replies".to_owned());
        writer.spawn(move || {
            let _open = open;
            shared.write_to(out);
        })?;
        Ok(outbox)
    }

    /// Has a reply written.
    ///
    /// # Errors
    /// Nobody reads: too many wait, or the reader is gone.
    pub(crate) fn reply(&self, line: Vec<u8>) -> Result<(), Full> {
        let mut waiting = self.0.waiting();
        if waiting.closed || waiting.replies.len() >= MOST_WAITING {
            return Err(Full);
        }
        waiting.replies.push_back(line);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Has a snapshot written, in the place of one that still waits.
    ///
    /// # Errors
    /// The reader is gone.
    pub(crate) fn snapshot(&self, line: Vec<u8>) -> Result<(), Full> {
        let mut waiting = self.0.waiting();
        if waiting.closed {
            return Err(Full);
        }
        waiting.snapshot = Some(line);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Waits until all is written, and no longer than [`PATIENCE`].
    pub(crate) fn flush(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut waiting = self.0.waiting();
        while !waiting.is_done() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.0.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Waiting {
    fn next(&mut self) -> Option<Vec<u8>> {
        self.replies.pop_front().or_else(|| self.snapshot.take())
    }

    fn is_done(&self) -> bool {
        self.closed || (self.replies.is_empty() && self.snapshot.is_none() && !self.writing)
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut out: impl Write) {
        let mut waiting = self.waiting();
        loop {
            let Some(line) = waiting.next() else {
                let woken = self.changed.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            waiting.writing = true;
            drop(waiting);
            let written = out.write_all(&line).and_then(|()| out.flush());
            waiting = self.waiting();
            waiting.writing = false;
            waiting.closed = written.is_err();
            self.changed.notify_all();
            if waiting.closed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, pipe};

    use super::*;

    #[test]
    fn replies_are_kept_in_order_and_of_snapshots_the_newest() {
        let (mut reader, out) = pipe().unwrap();
        let outbox = Outbox::start(out, pipe().unwrap().1).unwrap();
        // More than a pipe holds: what comes after it waits.
        let large = vec![b'x'; 1 << 20];
        outbox.reply(large.clone()).unwrap();
        for text in ["first", "second"] {
            outbox.snapshot(text.into()).unwrap();
            outbox.reply(format!("after {text} ").into()).unwrap();
        }
        let mut read = vec![0; large.len() + "after first after second second".len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&read[large.len()..]),
            "after first after second second"
        );
        outbox.flush();
        assert!(outbox.0.waiting().is_done());
    }

    #[test]
    fn who_does_not_read_is_not_written_to_without_end() {
        let (_reader, out) = pipe().unwrap();
        let outbox = Outbox::start(out, pipe().unwrap().1).unwrap();
        let sent = (0..10 * MOST_WAITING).take_while(|_| outbox.reply(vec![b'x'; 1 << 20]).is_ok());
        // One is being written.
        assert!((MOST_WAITING..=MOST_WAITING + 1).contains(&sent.count()));
    }

    #[test]
    fn a_reader_that_is_gone_is_told_to_who_waits_for_it() {
        let (reader, out) = pipe().unwrap();
        drop(reader);
        let (mut ended, open) = pipe().unwrap();
        let outbox = Outbox::start(out, open).unwrap();
        outbox.reply(b"x".to_vec()).unwrap();
        assert_eq!(ended.read(&mut [0]).unwrap(), 0);
        assert_eq!(outbox.reply(b"x".to_vec()), Err(Full));
        assert_eq!(outbox.snapshot(b"x".to_vec()), Err(Full));
    }
}
