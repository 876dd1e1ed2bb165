//! `genv remote-serve`, which other machines start over SSH.

use std::io::{self, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use genv_core::collect::{HostSources, once, spawn};
use genv_core::duration::{format_duration, interval_of_seconds, parse_duration};
use genv_core::stream::SnapshotStream;
use genv_core::text::{harmless, shortened};
use genv_remote::protocol::{Answers, Hello, LONGEST_LINE_BYTES, PROTOCOL_VERSION, Reply, Request, line};
use genv_simulator::SourceOptions;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use serde::Deserialize;
use serde_json::Value;

use super::snapshot::collect_options;
use crate::handover;
use crate::machine::tell;
use crate::serve::{Confirmations, Errand, Full, Line, Lines, Outbox, carry_out};
use crate::source_flags::SourceFlags;

const EXAMPLE: &str = "Example: what a machine that may do nothing else here has in authorized_keys
  restrict,command=\"genv remote-serve\" ssh-ed25519 AAAA… monitor@example.org

docs/remote.md describes what is said on stdin and stdout: lines of JSON.";

/// Answer a machine that asks over SSH: with snapshots, on stdout, as it asks for them on stdin.
///
/// It ends with its input, when nobody reads its output, and when nothing was asked for two minutes.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct RemoteServe {
    /// Also have genv-enforcer carry out what an enforcer on that machine decides.
    #[arg(long)]
    enforce: bool,

    /// How long to wait for a request.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    silence: Duration,

    #[command(flatten)]
    sources: SourceFlags,
}

/// How long GPUs may take to tell something of one snapshot.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(4);

/// How long genv-enforcer may take.
const ENFORCER_PATIENCE: Duration = Duration::from_secs(30);

/// How much of a wrong request is told again.
const MOST_SHOWN_CHARACTERS: usize = 200;

impl RemoteServe {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let options = self.sources.options().or_from_environment()?;
        // What is wrong with them is said before anything else is.
        let host = this_host(&options)?;
        let (ended, open) = io::pipe().context("cannot serve: no pipe")?;
        let outbox = Outbox::start(io::stdout(), open).context("cannot serve: no thread")?;
        let mut server = Server {
            options,
            host: Some(host),
            outbox,
            following: None,
            once: Errand::default(),
            enforcing: Errand::default(),
            may_enforce: self.enforce,
        };
        server.greet()?;
        match server.serve(&ended, self.silence) {
            Ok(End::Input) => server.finish(),
            Ok(End::Output) => {}
            Ok(End::Silence) => {
                tell(&format!("nothing was asked for {}: the session ends", format_duration(self.silence)))
            }
            Err(error) => return Err(error).context("cannot serve: stdin cannot be read"),
        }
        Ok(())
    }
}

const NO_ENFORCER: &str = "cannot enforce: genv-enforcer is not installed on this host. Put it next to genv or in a \
                           folder of PATH";

/// The sources of this machine; of a scenario's hosts the one that is called like it, or the first.
fn this_host(options: &SourceOptions) -> anyhow::Result<HostSources> {
    let mut hosts = options.open()?;
    let own = options.own_hostname();
    let position = hosts.iter().position(|host| host.hostname == own);
    // Without a host nothing is opened.
    Ok(hosts.swap_remove(position.unwrap_or(0)))
}

/// Why a session ends.
enum End {
    Input,
    Output,
    Silence,
}

struct Server {
    options: SourceOptions,
    /// Until somebody follows.
    host: Option<HostSources>,
    outbox: Outbox,
    following: Option<Following>,
    once: Errand,
    enforcing: Errand,
    may_enforce: bool,
}

struct Following {
    interval: Duration,
    stream: SnapshotStream,
}

impl Server {
    fn greet(&self) -> anyhow::Result<()> {
        let hello = Hello {
            genv_remote: PROTOCOL_VERSION,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            answers_with: Answers::Genv,
            may_enforce: self.may_enforce,
        };
        Ok(self.outbox.reply(line(&hello)?)?)
    }

    /// Reads requests until the session ends.
    fn serve(&mut self, ended: &io::PipeReader, silence: Duration) -> io::Result<End> {
        let mut stdin = io::stdin().lock();
        let stdout = io::stdout();
        let mut lines = Lines::default();
        let mut buffer = vec![0; 64 << 10];
        let mut last_asked = Instant::now();
        loop {
            let left = silence.saturating_sub(last_asked.elapsed());
            let left = Timespec::try_from(left).ok();
            let mut polled = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(&stdout, PollFlags::empty()),
                PollFd::new(ended, PollFlags::empty()),
            ];
            match poll(&mut polled, left.as_ref()) {
                Ok(0) => return Ok(End::Silence),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if polled[1..].iter().any(|polled| !polled.revents().is_empty()) {
                return Ok(End::Output);
            }
            let bytes = match stdin.read(&mut buffer) {
                Ok(0) => return Ok(End::Input),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let mut answered = Ok(());
            lines.take(&buffer[..bytes], |line| {
                last_asked = Instant::now();
                if answered.is_ok() {
                    answered = self.answer(line);
                }
            });
            if answered.is_err() {
                return Ok(End::Output);
            }
        }
    }

    fn answer(&mut self, line: Line<'_>) -> Result<(), Full> {
        let line = match line {
            Line::Whole(line) => line,
            Line::TooLong => {
                let most = LONGEST_LINE_BYTES >> 20;
                return self
                    .refuse(None, &format!("cannot read a request: it has more than {most} MiB: send less at once"));
            }
        };
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        match serde_json::from_slice(line) {
            Ok(Request::Alive) => Ok(()),
            Ok(Request::Follow { interval_seconds, changes }) => self.follow(interval_seconds, changes),
            Ok(Request::Once) => self.tell_once(),
            Ok(Request::Enforce { id, intents }) => self.enforce(id, intents),
            Err(error) => {
                let id = serde_json::from_slice::<Id>(line).ok().and_then(|it| it.id);
                let error = shortened(&harmless(&error.to_string()), MOST_SHOWN_CHARACTERS);
                self.refuse(
                    id,
                    &format!(
                        "cannot understand a request: {error}: see that genv on this host, version {}, is as new as where this comes from",
                        env!("CARGO_PKG_VERSION")
                    ),
                )
            }
        }
    }

    fn follow(&mut self, interval_seconds: f64, changes: bool) -> Result<(), Full> {
        let cannot = |why: &str| format!("cannot follow every {interval_seconds} s: {why}");
        let interval = match interval_of_seconds(interval_seconds) {
            Ok(interval) => interval,
            Err(error) => return self.refuse(None, &cannot(&error.to_string())),
        };
        if let Some(following) = &self.following {
            // Another collection would count from 0.
            if following.interval != interval {
                let seconds = following.interval.as_secs_f64();
                let why = format!("this session follows every {seconds} s: open another one");
                return self.refuse(None, &cannot(&why));
            }
            self.outbox.send_changes(changes);
            return Ok(());
        }
        self.outbox.send_changes(changes);
        match self.start_following(interval) {
            Ok(stream) => self.following = Some(Following { interval, stream }),
            Err(error) => return self.refuse(None, &cannot(&format!("{error:#}"))),
        }
        Ok(())
    }

    fn start_following(&mut self, interval: Duration) -> anyhow::Result<SnapshotStream> {
        let host = match self.host.take() {
            Some(host) => host,
            None => this_host(&self.options)?,
        };
        let stream = spawn(vec![host], collect_options(interval))?;
        let mut next = stream.clone();
        let outbox = self.outbox.clone();
        let confirmations = Confirmations::new();
        let teller = thread::Builder::new().name("snapshots".to_owned());
        teller.spawn(move || {
            while let Ok(publication) = next.next_blocking() {
                let snapshot = publication.hosts.first().and_then(|it| it.snapshot.as_ref());
                if let Some(snapshot) = snapshot
                    && outbox.snapshot(confirmations.add(snapshot)).is_err()
                {
                    return;
                }
            }
        })?;
        Ok(stream)
    }

    fn tell_once(&mut self) -> Result<(), Full> {
        if let Some(following) = &self.following {
            let latest = following.stream.latest();
            // The first one comes by itself.
            return match latest.hosts.first().and_then(|it| it.snapshot.clone()) {
                Some(snapshot) => self.outbox.whole_snapshot(Confirmations::new().add(&snapshot)),
                None => Ok(()),
            };
        }
        let outbox = self.outbox.clone();
        let options = self.options.clone();
        let collect = move || {
            let collected = this_host(&options).and_then(|host| Ok(once(vec![host], SNAPSHOT_PATIENCE)?));
            let collected = collected.context("cannot collect a snapshot")?;
            let snapshot = collected.hosts.first().and_then(|it| it.snapshot.clone());
            anyhow::Ok(snapshot)
        };
        let begun = self.once.begin("once", collect, move |snapshot| match snapshot {
            Ok(Some(snapshot)) => outbox.whole_snapshot(snapshot),
            Ok(None) => Ok(()),
            Err(error) => refuse(&outbox, None, &format!("{error:#}: ask again")),
        });
        begun.or_else(|why| self.refuse(None, &format!("cannot collect a snapshot: {why}")))
    }

    fn enforce(&mut self, id: u64, intents: Value) -> Result<(), Full> {
        if !self.may_enforce {
            return self.refuse(
                Some(id),
                "cannot enforce: this host only tells. Have 'genv remote-serve --enforce' run there",
            );
        }
        // It may have been installed since the last time.
        let Some(enforcer) = handover::find("genv-enforcer") else {
            return self.refuse(Some(id), NO_ENFORCER);
        };
        let outbox = self.outbox.clone();
        let enforce = move || carry_out(&enforcer, &intents, ENFORCER_PATIENCE);
        let begun = self.enforcing.begin("enforce", enforce, move |done| match done {
            Ok(outcomes) => send(&outbox, &Reply::Enforced { id, outcomes }),
            Err(message) => refuse(&outbox, Some(id), &message),
        });
        begun.or_else(|why| self.refuse(Some(id), &format!("cannot enforce: {why}")))
    }

    fn refuse(&self, id: Option<u64>, message: &str) -> Result<(), Full> {
        refuse(&self.outbox, id, message)
    }

    /// Ends what was begun, and has it told.
    fn finish(mut self) {
        self.once.finish();
        self.enforcing.finish();
        self.outbox.flush();
    }
}

/// What identifies a request that is not understood otherwise.
#[derive(Deserialize)]
struct Id {
    #[serde(default)]
    id: Option<u64>,
}

fn refuse(outbox: &Outbox, id: Option<u64>, message: &str) -> Result<(), Full> {
    let message = message.to_owned();
    send(outbox, &Reply::Error { id, message })
}

fn send(outbox: &Outbox, reply: &Reply) -> Result<(), Full> {
    match line(reply) {
        Ok(line) => outbox.reply(line),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use genv_remote::protocol::LONGEST_SILENCE_SECONDS;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: RemoteServe,
    }

    #[test]
    fn silence_is_borne_for_as_long_as_clients_count_on() {
        let cli = Cli::try_parse_from(["genv"]).unwrap();
        assert_eq!(cli.serve.silence, Duration::from_secs(LONGEST_SILENCE_SECONDS));
    }
}
