//! The administrator's way to reach users: a service that takes notices from a socket and runs a command. The enforcer
//! itself has no network, and starts no program.
//!
//! One connection carries one notice, a line of JSON, and its answer, another. All of it happens on a thread of its own.

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

/// [`Facts::version`] of what is written.
const VERSION: u32 = 1;

/// Notices that wait for the service; more are tried again later.
const MOST_WAITING: usize = 64;

/// What the service takes for all its tries.
const DEADLINE: Duration = Duration::from_secs(45);

/// Bytes of an answer.
const MOST_ANSWER_BYTES: u64 = 4 << 10;

/// What the command learns, as JSON on its stdin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Facts {
    /// [`VERSION`]: fields may be added, never renamed or removed.
    pub(crate) version: u32,
    /// `warning`, or `done`.
    pub(crate) kind: String,
    /// For whom it is.
    pub(crate) uid: u32,
    /// The name of that user, if the machine knows one.
    pub(crate) username: Option<String>,
    /// The machine that sends it.
    pub(crate) hostname: String,
    /// What it is about, some of it.
    pub(crate) notices: Vec<Fact>,
    /// How many more there are.
    pub(crate) more: usize,
    /// All of it as the user reads it in a terminal.
    pub(crate) text: String,
}

/// One violation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Fact {
    pub(crate) rule: String,
    /// Who breaks it.
    pub(crate) username: String,
    pub(crate) hostname: Option<String>,
    pub(crate) subject: String,
    pub(crate) found: String,
    pub(crate) allowed: String,
    pub(crate) remedy: String,
    /// `warn`, `detach`, `terminate` or `kill`.
    pub(crate) action: String,
    /// When it is taken, Unix time; absent if it was, or nothing follows.
    pub(crate) end_timestamp_seconds: Option<f64>,
    /// What ends or ended.
    pub(crate) targets: Vec<String>,
}

/// What the service says of a notice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) accepted: bool,
    pub(crate) reason: String,
}

/// Sends notices to the service. `T` is what a warning is known by.
#[derive(Debug)]
pub(crate) struct Notifier<T> {
    socket: PathBuf,
    hostname: String,
    waiting: SyncSender<(Facts, Vec<T>)>,
    results: Receiver<(u32, Vec<T>, bool)>,
    /// Users whose warnings are on their way.
    under_way: BTreeSet<u32>,
}

impl<T: Send + 'static> Notifier<T> {
    /// Sends to the service at this socket, whenever there is one.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(socket: &Path, hostname: &str) -> std::io::Result<Self> {
        let (waiting, asked) = sync_channel(MOST_WAITING);
        let (answered, results) = channel();
        let path = socket.to_owned();
        let thread = thread::Builder::new().name("notify".to_owned());
        thread.spawn(move || follow(&path, &asked, &answered))?;
        Ok(Self {
            socket: socket.to_owned(),
            hostname: hostname.to_owned(),
            waiting,
            results,
            under_way: BTreeSet::new(),
        })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a notice about these warnings, unless others of that user are under way; about none, in any case. What does not
    /// fit is lost, and tried again with the warnings.
    pub(crate) fn send(&mut self, facts: Facts, warnings: Vec<T>) {
        let uid = facts.uid;
        let is_warning = !warnings.is_empty();
        if is_warning && self.under_way.contains(&uid) {
            return;
        }
        let facts = Facts { version: VERSION, hostname: self.hostname.clone(), ..facts };
        if self.waiting.try_send((facts, warnings)).is_ok() && is_warning {
            self.under_way.insert(uid);
        }
    }

    /// The warnings that the service has accepted since.
    pub(crate) fn accepted(&mut self) -> Vec<T> {
        let mut accepted = Vec::new();
        for (uid, warnings, is_accepted) in self.results.try_iter() {
            if !warnings.is_empty() {
                self.under_way.remove(&uid);
            }
            if is_accepted {
                accepted.extend(warnings);
            }
        }
        accepted
    }
}

fn follow<T>(path: &Path, asked: &Receiver<(Facts, Vec<T>)>, answered: &Sender<(u32, Vec<T>, bool)>) {
    while let Ok((facts, warnings)) = asked.recv() {
        let answer = ask(path, &facts).unwrap_or_else(|error| Answer { accepted: false, reason: error.to_string() });
        if !answer.accepted {
            let reason = genv_core::text::harmless(&answer.reason);
            let uid = facts.uid;
            tracing::warn!(uid, reason, "a notice was not accepted by the notifier");
        }
        if answered.send((facts.uid, warnings, answer.accepted)).is_err() {
            return;
        }
    }
}

/// Sends a notice and reads its answer, each within the deadline.
fn ask(path: &Path, facts: &Facts) -> std::io::Result<Answer> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, Some(DEADLINE))?;
    }
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let mut stream = UnixStream::from(socket);
    let mut line = serde_json::to_vec(facts)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MOST_ANSWER_BYTES)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(std::io::Error::other("it has said nothing"));
    }
    Ok(serde_json::from_str(&answer)?)
}
