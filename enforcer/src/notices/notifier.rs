//! The notifier: a service that takes notices from a socket and runs the administrator's command. The enforcer itself has no
//! network, and starts no program but its own, as a reader of the driver.
//!
//! A connection carries one notice and its reply, each a line of JSON. A thread of its own sends the notices.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

/// [`NotifierMessage::version`] of what is written.
const VERSION: u32 = 1;

/// The largest number of notices that wait for the service; other notices are sent later.
const MAX_WAITING: usize = 64;

/// The time for all tries of the service.
const DEADLINE: Duration = Duration::from_secs(45);

/// The largest reply in bytes.
const MAX_ANSWER_BYTES: u64 = 4 << 10;

/// A notice, as the command gets it: JSON on stdin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NotifierMessage {
    /// [`VERSION`]: fields may be added, never renamed or removed.
    pub(crate) version: u32,
    /// `warning`, or `done`.
    pub(crate) kind: String,
    /// The uid of the recipient.
    pub(crate) uid: u32,
    /// The name of the recipient, if the machine knows it.
    pub(crate) username: Option<String>,
    /// The machine that sends the notice.
    pub(crate) hostname: String,
    /// The first violations.
    pub(crate) notices: Vec<NotifierViolation>,
    /// The number of further violations.
    pub(crate) more: usize,
    /// The text of all of them, as in a terminal.
    pub(crate) text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NotifierViolation {
    pub(crate) rule: String,
    /// The user who breaks the rule.
    pub(crate) username: String,
    pub(crate) hostname: Option<String>,
    pub(crate) subject: String,
    pub(crate) found: String,
    pub(crate) allowed: String,
    pub(crate) remedy: String,
    /// `warn`, `detach`, `terminate` or `kill`.
    pub(crate) action: String,
    /// The Unix time of the coming action; absent if it is done, or if no action follows.
    pub(crate) end_timestamp_seconds: Option<f64>,
    /// The processes and devices of the action.
    pub(crate) targets: Vec<String>,
}

/// The reply of the service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NotifierReply {
    pub(crate) accepted: bool,
    pub(crate) reason: String,
}

/// Sends notices to the service. `T` identifies a warning.
#[derive(Debug)]
pub(crate) struct Notifier<T> {
    socket: PathBuf,
    hostname: String,
    waiting: SyncSender<(NotifierMessage, Vec<T>)>,
    results: Receiver<(u32, Vec<T>, bool)>,
    /// Users with warnings that the service has not answered yet.
    in_flight: BTreeSet<u32>,
}

impl<T: Send + 'static> Notifier<T> {
    /// Starts the thread that sends notices to the service at this socket.
    pub(crate) fn start(socket: &Path, hostname: &str) -> std::io::Result<Self> {
        let (waiting, requests) = sync_channel(MAX_WAITING);
        let (replies, results) = channel();
        let path = socket.to_owned();
        let thread = thread::Builder::new().name("notify".to_owned());
        thread.spawn(move || deliver_all(&path, &requests, &replies))?;
        Ok(Self {
            socket: socket.to_owned(),
            hostname: hostname.to_owned(),
            waiting,
            results,
            in_flight: BTreeSet::new(),
        })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a notice. A notice with warnings is not sent while other warnings to its user are in flight. If the queue is full, the
    /// notice is dropped; the caller sends its warnings again later.
    pub(crate) fn send(&mut self, message: NotifierMessage, warnings: Vec<T>) {
        let uid = message.uid;
        let is_warning = !warnings.is_empty();
        if is_warning && self.in_flight.contains(&uid) {
            return;
        }
        let message = NotifierMessage { version: VERSION, hostname: self.hostname.clone(), ..message };
        if self.waiting.try_send((message, warnings)).is_ok() && is_warning {
            self.in_flight.insert(uid);
        }
    }

    /// The warnings that the service has accepted since the last call.
    pub(crate) fn accepted(&mut self) -> Vec<T> {
        let mut accepted = Vec::new();
        for (uid, warnings, is_accepted) in self.results.try_iter() {
            if !warnings.is_empty() {
                self.in_flight.remove(&uid);
            }
            if is_accepted {
                accepted.extend(warnings);
            }
        }
        accepted
    }
}

fn deliver_all<T>(path: &Path, requests: &Receiver<(NotifierMessage, Vec<T>)>, replies: &Sender<(u32, Vec<T>, bool)>) {
    while let Ok((message, warnings)) = requests.recv() {
        let reply = deliver(path, &message)
            .unwrap_or_else(|error| NotifierReply { accepted: false, reason: error.to_string() });
        if !reply.accepted {
            let reason = genv_core::text::harmless(&reply.reason);
            let uid = message.uid;
            tracing::warn!(uid, reason, "a notice was not accepted by the notifier");
        }
        if replies.send((message.uid, warnings, reply.accepted)).is_err() {
            return;
        }
    }
}

/// Sends a notice and reads its reply, each within the deadline.
fn deliver(path: &Path, message: &NotifierMessage) -> std::io::Result<NotifierReply> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, Some(DEADLINE))?;
    }
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut stream = UnixStream::from(socket);
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = String::new();
    BufReader::new(stream.take(MAX_ANSWER_BYTES)).read_line(&mut reply)?;
    if reply.is_empty() {
        return Err(std::io::Error::other("it has sent no reply"));
    }
    Ok(serde_json::from_str(&reply)?)
}
