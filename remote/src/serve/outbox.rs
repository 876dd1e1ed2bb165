//! Replies that wait for a writer thread: a client that does not read blocks only this thread.

use std::collections::VecDeque;
use std::io::{self, PipeWriter, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use genv_core::model::Snapshot;
use serde::Serialize;

use super::snapshot_lines::SnapshotLines;
use crate::protocol::{Reply, line};

/// With more waiting replies, the client counts as gone.
const MAX_WAITING: usize = 64;

/// How long the client may take to read the last replies, at the end of the session.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The client does not read the replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientGone;

/// The replies to write. A clone shares the content.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    replies: VecDeque<Vec<u8>>,
    /// The newest snapshot. It replaces an older snapshot that was not written in time.
    snapshot: Option<Arc<Snapshot>>,
    /// Whether the next snapshot is written whole, whatever was sent before.
    whole: bool,
    /// Whether the client understands [`Reply::Changes`].
    changes: bool,
    is_writing: bool,
    is_closed: bool,
}

impl Outbox {
    /// Starts the thread that writes to `out`. It drops `open` when the client is gone.
    pub(super) fn start(&self, out: impl Write + Send + 'static, open: PipeWriter) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        thread::Builder::new().name("replies".to_owned()).spawn(move || {
            let _open = open;
            shared.write_to(out);
        })?;
        Ok(())
    }

    /// Adds a message, which becomes one line.
    ///
    /// # Errors
    /// Too many replies wait, or the client is gone.
    pub(super) fn send(&self, message: &impl Serialize) -> Result<(), ClientGone> {
        match line(message) {
            Ok(line) => self.send_line(line),
            // No reply has a key or a number that JSON cannot have.
            Err(_) => Ok(()),
        }
    }

    /// Adds [`Reply::Error`].
    pub(super) fn refuse(&self, id: Option<u64>, message: String) -> Result<(), ClientGone> {
        self.send(&Reply::Error { id, message })
    }

    fn send_line(&self, line: Vec<u8>) -> Result<(), ClientGone> {
        let mut waiting = self.0.waiting();
        if waiting.is_closed || waiting.replies.len() >= MAX_WAITING {
            return Err(ClientGone);
        }
        waiting.replies.push_back(line);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Sets whether snapshots after the first are written as changes, or whole.
    pub(super) fn send_changes(&self, changes: bool) {
        let mut waiting = self.0.waiting();
        waiting.whole |= changes && !waiting.changes;
        waiting.changes = changes;
    }

    /// Adds a snapshot, in place of a snapshot that still waits.
    pub(super) fn snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), ClientGone> {
        let mut waiting = self.0.waiting();
        if waiting.is_closed {
            return Err(ClientGone);
        }
        waiting.snapshot = Some(snapshot);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Adds a snapshot that is not written as changes.
    pub(super) fn whole_snapshot(&self, snapshot: Arc<Snapshot>) -> Result<(), ClientGone> {
        self.0.waiting().whole = true;
        self.snapshot(snapshot)
    }

    /// Waits until everything is written, and at most for [`FLUSH_TIMEOUT`].
    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
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

/// The next message of the writer thread.
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
        self.is_closed || (self.replies.is_empty() && self.snapshot.is_none() && !self.is_writing)
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut out: impl Write) {
        let mut snapshots = SnapshotLines::default();
        let mut waiting = self.waiting();
        loop {
            let Some(next) = waiting.next() else {
                let woken = self.changed.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            waiting.is_writing = true;
            drop(waiting);
            let line = match next {
                Next::Reply(line) => line,
                Next::Snapshot { snapshot, whole } => snapshots.line(snapshot, whole),
            };
            let written = out.write_all(&line).and_then(|()| out.flush());
            waiting = self.waiting();
            waiting.is_writing = false;
            waiting.is_closed = written.is_err();
            self.changed.notify_all();
            if waiting.is_closed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read as _, pipe};

    use serde_json::json;

    use super::*;

    /// A snapshot with one environment, whose name is the first letter of the hostname.
    fn snapshot(hostname: &str) -> Arc<Snapshot> {
        let environment = json!({"eid": "e1", "username": "ada", "name": hostname[..1]});
        Arc::new(Snapshot {
            hostname: hostname.to_owned(),
            environments: vec![serde_json::from_value(environment).unwrap()],
            ..Snapshot::default()
        })
    }

    /// A line longer than the buffer of a pipe: later lines wait until the test reads.
    fn large() -> Vec<u8> {
        [&[b'x'; 1 << 20][..], b"\n"].concat()
    }

    fn started(out: PipeWriter) -> Outbox {
        let outbox = Outbox::default();
        outbox.start(out, pipe().unwrap().1).unwrap();
        outbox
    }

    /// The next lines, without the large lines: snapshots and changes become the hostname of the snapshot.
    fn read(reader: impl BufRead, before: &mut Snapshot, count: usize) -> Vec<String> {
        let lines = reader.lines().map(Result::unwrap);
        let words = lines.filter(|line| !line.starts_with("xx")).take(count);
        let described = words.map(|line| match serde_json::from_str(&line) {
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
        described.collect()
    }

    #[test]
    fn replies_stay_in_order_and_only_the_newest_snapshot_is_written() {
        let (reader, out) = pipe().unwrap();
        let outbox = started(out);
        outbox.send_line(large()).unwrap();
        for name in ["first", "second"] {
            outbox.snapshot(snapshot(name)).unwrap();
            outbox.send_line(format!("after {name}\n").into()).unwrap();
        }
        assert_eq!(
            read(BufReader::new(reader), &mut Snapshot::default(), 3),
            ["after first", "after second", "whole second"]
        );
        outbox.flush();
        assert!(outbox.0.waiting().is_done());
    }

    #[test]
    fn changes_are_relative_to_the_snapshot_that_was_written() {
        let (reader, out) = pipe().unwrap();
        let mut reader = BufReader::new(reader);
        let mut lines = Vec::new();
        let mut before = Snapshot::default();
        let outbox = started(out);
        let mut send = |name: &str| {
            outbox.snapshot(snapshot(name)).unwrap();
            lines.extend(read(&mut reader, &mut before, 1));
        };
        send("a");
        outbox.send_changes(true);
        send("b");
        send("c");
        // The same request again changes nothing.
        outbox.send_changes(true);
        send("d");
        outbox.send_changes(false);
        send("e");
        outbox.send_changes(true);
        send("f");
        // g1 is never written, so that no changes are relative to it.
        outbox.send_line(large()).unwrap();
        outbox.snapshot(snapshot("g1")).unwrap();
        send("g2");
        outbox.send_line(large()).unwrap();
        outbox.whole_snapshot(snapshot("i")).unwrap();
        send("j");
        send("k");
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
    fn replies_for_a_client_that_does_not_read_are_bounded() {
        let (_reader, out) = pipe().unwrap();
        let outbox = started(out);
        let sent = (0..10 * MAX_WAITING).take_while(|_| outbox.send_line(vec![b'x'; 1 << 20]).is_ok());
        // One reply is being written.
        assert!((MAX_WAITING..=MAX_WAITING + 1).contains(&sent.count()));
    }

    #[test]
    fn a_client_that_is_gone_closes_the_pipe_and_the_outbox() {
        let (reader, out) = pipe().unwrap();
        drop(reader);
        let (mut ended, open) = pipe().unwrap();
        let outbox = Outbox::default();
        outbox.start(out, open).unwrap();
        outbox.send_line(b"x".to_vec()).unwrap();
        assert_eq!(ended.read(&mut [0]).unwrap(), 0);
        assert_eq!(outbox.send_line(b"x".to_vec()), Err(ClientGone));
        assert_eq!(outbox.snapshot(snapshot("a")), Err(ClientGone));
    }
}
