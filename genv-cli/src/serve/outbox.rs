//! Replies on their way to who asked, written by a thread of their own: whoever does not read stops nobody here.

use std::collections::VecDeque;
use std::io::{self, PipeWriter, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::model::Snapshot;

use super::snapshot_lines::SnapshotLines;

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
    snapshot: Option<Arc<Snapshot>>,
    /// Whether the next one is written whole, whatever was told before.
    whole: bool,
    /// Whether who asked understands changes.
    changes: bool,
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

    /// Has snapshots written as what changed since the one before, from the second on; or whole.
    pub(crate) fn send_changes(&self, changes: bool) {
        let mut waiting = self.0.waiting();
        waiting.whole |= changes && !waiting.changes;
        waiting.changes = changes;
    }

    /// Has a snapshot written, in the place of one that still waits.
    ///
    /// # Errors
    /// The reader is gone.
    pub(crate) fn snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), Full> {
        let mut waiting = self.0.waiting();
        if waiting.closed {
            return Err(Full);
        }
        waiting.snapshot = Some(snapshot);
        self.0.changed.notify_all();
        Ok(())
    }

    /// The same with all of it, to who asked for one.
    ///
    /// # Errors
    /// The reader is gone.
    pub(crate) fn whole_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), Full> {
        self.0.waiting().whole = true;
        self.snapshot(snapshot)
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

/// What is to be written next.
enum Next {
    Reply(Vec<u8>),
    Snapshot { snapshot: Arc<Snapshot>, whole: bool },
}

impl Waiting {
    fn next(&mut self) -> Option<Next> {
        if let Some(reply) = self.replies.pop_front() {
            return Some(Next::Reply(reply));
        }
        let snapshot = self.snapshot.take()?;
        let whole = std::mem::take(&mut self.whole) || !self.changes;
        Some(Next::Snapshot { snapshot, whole })
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
        let mut told = SnapshotLines::default();
        let mut waiting = self.waiting();
        loop {
            let Some(next) = waiting.next() else {
                let woken = self.changed.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            waiting.writing = true;
            drop(waiting);
            let line = match next {
                Next::Reply(line) => line,
                Next::Snapshot { snapshot, whole } => told.line(snapshot, whole),
            };
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
    use std::io::{BufRead, BufReader, Read as _, pipe};

    use genv_remote::protocol::Reply;
    use serde_json::json;

    use super::*;

    /// One whose environment is named by the first letter.
    fn snapshot(hostname: &str) -> Arc<Snapshot> {
        let environment = json!({"eid": "e1", "username": "ada", "name": hostname[..1]});
        Arc::new(Snapshot {
            hostname: hostname.to_owned(),
            environments: vec![serde_json::from_value(environment).unwrap()],
            ..Snapshot::default()
        })
    }

    /// More than a pipe holds: what comes after it waits until somebody reads.
    fn large() -> Vec<u8> {
        let mut line = vec![b'x'; 1 << 20];
        line.push(b'\n');
        line
    }

    /// Lines that come, the large ones left out: words as they are, snapshots by name, changes with what they make.
    fn read(reader: impl BufRead, before: &mut Snapshot, count: usize) -> Vec<String> {
        let lines = reader.lines().map(Result::unwrap);
        let words = lines.filter(|line| !line.starts_with("xx")).take(count);
        let told = words.map(|line| match serde_json::from_str(&line) {
            Ok(Reply::Snapshot { snapshot }) => {
                *before = *snapshot;
                format!("whole {}", before.hostname)
            }
            Ok(Reply::Changes { changes }) => {
                *before = changes.apply(before).unwrap();
                assert_eq!(*before, *snapshot(&before.hostname));
                format!("changes to {}", before.hostname)
            }
            _ => line,
        });
        told.collect()
    }

    #[test]
    fn replies_are_kept_in_order_and_of_snapshots_the_newest() {
        let (reader, out) = pipe().unwrap();
        let outbox = Outbox::start(out, pipe().unwrap().1).unwrap();
        outbox.reply(large()).unwrap();
        for name in ["first", "second"] {
            outbox.snapshot(snapshot(name)).unwrap();
            outbox.reply(format!("after {name}\n").into()).unwrap();
        }
        assert_eq!(
            read(BufReader::new(reader), &mut Snapshot::default(), 3),
            ["after first", "after second", "whole second"]
        );
        outbox.flush();
        assert!(outbox.0.waiting().is_done());
    }

    #[test]
    fn changes_are_of_what_was_written_and_who_asks_for_all_of_it_has_it() {
        let (reader, out) = pipe().unwrap();
        let mut reader = BufReader::new(reader);
        let mut lines = Vec::new();
        let mut before = Snapshot::default();
        let outbox = Outbox::start(out, pipe().unwrap().1).unwrap();
        let mut tell = |name: &str| {
            outbox.snapshot(snapshot(name)).unwrap();
            lines.extend(read(&mut reader, &mut before, 1));
        };
        tell("a");
        outbox.send_changes(true);
        tell("b");
        tell("c");
        // Asked again, it goes on.
        outbox.send_changes(true);
        tell("d");
        outbox.send_changes(false);
        tell("e");
        outbox.send_changes(true);
        tell("f");
        // Nothing is a change of one that is never written.
        outbox.reply(large()).unwrap();
        outbox.snapshot(snapshot("g1")).unwrap();
        tell("g2");
        outbox.reply(large()).unwrap();
        outbox.whole_snapshot(snapshot("i")).unwrap();
        tell("j");
        tell("k");
        assert_eq!(
            lines,
            [
                "whole a",
                "whole b",
                "changes to c",
                "changes to d",
                "whole e",
                "whole f",
                "changes to g2",
                "whole j",
                "changes to k"
            ]
        );
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
        assert_eq!(outbox.snapshot(snapshot("a")), Err(Full));
    }
}
