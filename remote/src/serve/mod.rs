//! The session loop of `genv remote-serve`: reads requests from stdin, and writes replies to stdout.

mod confirmations;
mod enforcer;
mod outbox;
mod request_thread;
mod snapshot_lines;

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use genv_core::collect::{CollectOptions, HostSources, once, spawn};
use genv_core::duration::interval_of_seconds;
use genv_core::stream::SnapshotStream;
use genv_core::text::{harmless, shortened};
use genv_simulator::{SourceError, SourceOptions};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use serde::Deserialize;
use serde_json::Value;

use crate::lines::{InputLine, LineSplitter};
use crate::protocol::{Hello, HostProgram, LONGEST_LINE_BYTES, PROTOCOL_VERSION, Reply, Request};
use confirmations::add_confirmations;
use enforcer::run_enforcer;
use outbox::{ClientGone, Outbox};
use request_thread::RequestThread;

/// How long the GPUs may take for a single snapshot: longer than until a call about a GPU is late, so that another reader can
/// read the other GPUs if the driver opens quickly.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(8);

/// How long genv-enforcer may take for one request.
const ENFORCER_TIMEOUT: Duration = Duration::from_secs(30);

/// An error about a malformed request quotes at most this many characters.
const MAX_QUOTED_CHARACTERS: usize = 200;

/// Finds the program `genv-enforcer` on this host.
pub type FindEnforcer = fn() -> Option<PathBuf>;

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client closed stdin.
    Input,
    /// The client does not read stdout any more.
    Output,
    /// The client sent nothing for too long.
    Silence,
}

/// One session with a client.
pub struct Server {
    sources: SourceOptions,
    /// The opened sources, until the first `follow` takes them.
    host: Option<HostSources>,
    outbox: Outbox,
    following: Option<Following>,
    snapshot_thread: RequestThread,
    enforce_thread: RequestThread,
    find_enforcer: Option<FindEnforcer>,
}

struct Following {
    interval: Duration,
    stream: SnapshotStream,
}

/// The id of a request that is malformed otherwise.
#[derive(Deserialize)]
struct RequestId {
    id: Option<u64>,
}

impl Server {
    /// Opens the sources of this host. Without `find_enforcer` the session refuses to enforce.
    ///
    /// # Errors
    /// The sources cannot be opened.
    pub fn open(sources: SourceOptions, find_enforcer: Option<FindEnforcer>) -> Result<Self, SourceError> {
        let sources = sources.in_reader();
        let host = Some(sources.open_own()?);
        Ok(Self {
            sources,
            host,
            outbox: Outbox::default(),
            following: None,
            snapshot_thread: RequestThread::default(),
            enforce_thread: RequestThread::default(),
            find_enforcer,
        })
    }

    /// Sends the greeting, and replies to requests until the session ends. After the end of stdin it waits for the
    /// running jobs and their replies.
    ///
    /// # Errors
    /// stdin cannot be read, or the pipe or the thread of the outbox cannot be made.
    pub fn run(mut self, max_silence: Duration) -> io::Result<SessionEnd> {
        let (output_closed, open) = io::pipe()?;
        self.outbox.start(io::stdout(), open)?;
        let greeted = self.outbox.send(&Hello {
            genv_remote: PROTOCOL_VERSION,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            answers_with: HostProgram::Genv,
            may_enforce: self.find_enforcer.is_some(),
        });
        if greeted.is_err() {
            return Ok(SessionEnd::Output);
        }
        let end = self.reply_to_requests(&output_closed, max_silence)?;
        if end == SessionEnd::Input {
            self.snapshot_thread.finish();
            self.enforce_thread.finish();
            self.outbox.flush();
        }
        Ok(end)
    }

    fn reply_to_requests(&mut self, output_closed: &io::PipeReader, max_silence: Duration) -> io::Result<SessionEnd> {
        let mut stdin = io::stdin().lock();
        let stdout = io::stdout();
        let mut lines = LineSplitter::default();
        let mut buffer = vec![0; 64 << 10];
        let mut last_request = Instant::now();
        loop {
            let left = max_silence.saturating_sub(last_request.elapsed());
            let left = Timespec::try_from(left).ok();
            let mut polled = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(&stdout, PollFlags::empty()),
                PollFd::new(output_closed, PollFlags::empty()),
            ];
            match poll(&mut polled, left.as_ref()) {
                Ok(0) => return Ok(SessionEnd::Silence),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if polled[1..].iter().any(|polled| !polled.revents().is_empty()) {
                return Ok(SessionEnd::Output);
            }
            let length = match stdin.read(&mut buffer) {
                Ok(0) => return Ok(SessionEnd::Input),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("stdin cannot be read: {error}")));
                }
            };
            let mut sent = Ok(());
            lines.split(&buffer[..length], |line| {
                last_request = Instant::now();
                if sent.is_ok() {
                    sent = self.reply_to(line);
                }
            });
            if sent.is_err() {
                return Ok(SessionEnd::Output);
            }
        }
    }

    fn reply_to(&mut self, line: InputLine<'_>) -> Result<(), ClientGone> {
        let InputLine::Whole(line) = line else {
            let mib = LONGEST_LINE_BYTES >> 20;
            return self.refuse(None, format!("cannot read a request: it has more than {mib} MiB: send less at once"));
        };
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match serde_json::from_slice(line) {
            Ok(Request::Alive) => Ok(()),
            Ok(Request::Follow { interval_seconds, changed_fields }) => self.follow(interval_seconds, changed_fields),
            Ok(Request::Once) => self.send_snapshot(),
            Ok(Request::Enforce { id, intents }) => self.enforce(id, intents),
            Err(error) => {
                let id = serde_json::from_slice::<RequestId>(line).ok().and_then(|request| request.id);
                let error = shortened(&harmless(&error.to_string()), MAX_QUOTED_CHARACTERS);
                let version = env!("CARGO_PKG_VERSION");
                let message = format!(
                    "cannot understand a request: {error}: install the version of genv that the client has, or a newer \
                     one, on this host, which has {version}"
                );
                self.refuse(id, message)
            }
        }
    }

    fn follow(&mut self, interval_seconds: f64, changes: bool) -> Result<(), ClientGone> {
        self.start_following(interval_seconds, changes)
            .or_else(|why| self.refuse(None, format!("cannot follow every {interval_seconds} s: {why}")))
    }

    fn start_following(&mut self, interval_seconds: f64, changes: bool) -> Result<(), String> {
        let interval = interval_of_seconds(interval_seconds).map_err(|error| error.to_string())?;
        if let Some(following) = &self.following {
            // A second collection would count from 0.
            if following.interval != interval {
                let seconds = following.interval.as_secs_f64();
                return Err(format!("this session follows every {seconds} s: open another session"));
            }
            self.outbox.send_changes(changes);
            return Ok(());
        }
        self.outbox.send_changes(changes);
        let host = match self.host.take() {
            Some(host) => host,
            None => self.sources.open_own().map_err(|error| error.to_string())?,
        };
        let stream = spawn(vec![host], CollectOptions::every(interval)).map_err(|error| error.to_string())?;
        let mut publications = stream.clone();
        let outbox = self.outbox.clone();
        let sender = thread::Builder::new().name("snapshots".to_owned()).spawn(move || {
            while let Ok(publication) = publications.next_blocking() {
                let snapshot = publication.hosts.first().and_then(|host| host.snapshot.as_ref());
                if let Some(snapshot) = snapshot
                    && outbox.snapshot(add_confirmations(snapshot)).is_err()
                {
                    return;
                }
            }
        });
        sender.map_err(|error| error.to_string())?;
        self.following = Some(Following { interval, stream });
        Ok(())
    }

    fn send_snapshot(&mut self) -> Result<(), ClientGone> {
        if let Some(following) = &self.following {
            let latest = following.stream.latest();
            // Before the first publication there is no snapshot, and the first is sent without a request.
            return match latest.hosts.first().and_then(|host| host.snapshot.as_ref()) {
                Some(snapshot) => self.outbox.whole_snapshot(add_confirmations(snapshot)),
                None => Ok(()),
            };
        }
        let outbox = self.outbox.clone();
        let sources = self.sources.clone();
        let collect = move || {
            let host = sources.open_own().map_err(|error| error.to_string())?;
            let collected = once(vec![host], SNAPSHOT_TIMEOUT).map_err(|error| error.to_string())?;
            Ok::<_, String>(collected.hosts.first().and_then(|host| host.snapshot.clone()))
        };
        let started = self.snapshot_thread.start("once", collect, move |snapshot| match snapshot {
            Ok(Some(snapshot)) => outbox.whole_snapshot(snapshot),
            Ok(None) => Ok(()),
            Err(why) => outbox.refuse(None, format!("cannot collect a snapshot: {why}: send the request again")),
        });
        started.or_else(|why| self.refuse(None, format!("cannot collect a snapshot: {why}")))
    }

    fn enforce(&mut self, id: u64, intents: Value) -> Result<(), ClientGone> {
        let Some(find_enforcer) = self.find_enforcer else {
            let message =
                "cannot enforce: this host only sends snapshots. Have 'genv remote-serve --enforce' run there";
            return self.refuse(Some(id), message.to_owned());
        };
        // The search is repeated for each request: genv-enforcer can be installed during the session.
        let Some(enforcer) = find_enforcer() else {
            let message = "cannot enforce: genv-enforcer is not installed on this host. Put it next to genv or in a \
                           folder of PATH";
            return self.refuse(Some(id), message.to_owned());
        };
        let outbox = self.outbox.clone();
        let work = move || run_enforcer(&enforcer, &intents, ENFORCER_TIMEOUT);
        let started = self.enforce_thread.start("enforce", work, move |outcomes| match outcomes {
            Ok(outcomes) => outbox.send(&Reply::Enforced { id, outcomes }),
            Err(message) => outbox.refuse(Some(id), message),
        });
        started.or_else(|why| self.refuse(Some(id), format!("cannot enforce: {why}")))
    }

    fn refuse(&self, id: Option<u64>, message: String) -> Result<(), ClientGone> {
        self.outbox.refuse(id, message)
    }
}
