//! An SSH connection to one host, kept open, with a channel for each command.
//!
//! The library is russh itself, without a layer such as `async-ssh2-tokio` over it: who judges a host's key has to see it,
//! to tell an unknown one from another one; keys of the agent and of files are tried in one connection; a name behind
//! another host is resolved there; and a channel stays open for as long as its host is followed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::Disconnect;
use russh::client::{self, DisconnectReason, Handle};
use russh::keys::PublicKeyOrCertificate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::known_hosts::KnownHost;
use crate::resolve::Target;
use crate::{FailureKind, HostFailure};

mod algorithms;
mod authenticate;
mod command;
mod dial;
mod failures;
mod identities;
mod lines;
mod refusal;
mod wire;

pub use command::{CommandEnd, CommandOutput, RunLimits};
use dial::dial;
use failures::{disconnected, ended, handshake_failure, reason, seconds, unreachable};
pub use lines::LineChannel;
use wire::{Gate, Wire};

/// Of bytes that a host may send before it lets in: banners, keys and lists of algorithms.
const MOST_BYTES_BEFORE_LOGIN: usize = 1 << 20;

/// What a host may send through a channel before it is read. russh keeps up to [`UNREAD_MESSAGES`] packets in memory;
/// the rest waits in the kernel and at the host.
const WINDOW_BYTES: u32 = 512 << 10;

/// Packets of up to 32 KiB.
const UNREAD_MESSAGES: usize = 16;

/// Commands at once through one session: sshd allows 10 (MaxSessions), and other sessions of the same host count alone.
const MOST_COMMANDS: usize = 4;

/// Silence after which a host is asked whether it is there, unless ServerAliveInterval says otherwise.
const ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// How long a session may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long each step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To find the address and connect to it, to agree on keys, and to log in: each of the three, at each host on the
    /// way. It is ConnectTimeout of the configuration where this is none, and 10 s where neither says.
    pub connect: Option<Duration>,
    /// To open a channel, to start a command, and to take a line.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: None, answer: Duration::from_secs(10) }
    }
}

impl Timeouts {
    fn connect(&self, target: &Target) -> Duration {
        let configured = self.connect.or(target.connect_timeout);
        configured.unwrap_or(Duration::from_secs(10))
    }
}

/// A connection through which its user is let in. It ends with the value, and its channels with it.
pub struct Session {
    handle: Handle<Client>,
    told: Arc<Mutex<Told>>,
    /// Ends what reads and writes, whatever it waits for.
    cut: DropGuard,
    commands: Semaphore,
    timeouts: Timeouts,
    /// Sessions of the hosts on the way, the nearest first.
    way: Vec<Session>,
}

/// What happened to a connection, as far as the library calls back.
#[derive(Debug, Default)]
struct Told {
    /// Why the host's key is refused.
    refused: Option<HostFailure>,
    /// Why the connection ended.
    ended: Option<String>,
}

impl Session {
    /// Connects, through the hosts on the way if there are any; checks the host's key and logs in.
    ///
    /// # Errors
    /// What failed at which step; nothing is left open.
    pub async fn connect(target: &Target, timeouts: &Timeouts) -> Result<Self, HostFailure> {
        let mut way: Vec<Self> = Vec::new();
        for jump in &target.jumps {
            let session = Self::connect_next(way.last(), jump, timeouts).await;
            way.push(session.map_err(|failure| {
                let message = format!("on the way, at {}: {}", jump.login, failure.message);
                HostFailure::new(failure.kind, message)
            })?);
        }
        let mut session = Self::connect_next(way.last(), target, timeouts).await?;
        session.way = way;
        Ok(session)
    }

    /// Connects from here, or from the host before.
    async fn connect_next(before: Option<&Self>, target: &Target, timeouts: &Timeouts) -> Result<Self, HostFailure> {
        let known = known(target).await?;
        let limit = timeouts.connect(target);
        match before {
            None => {
                let stream = dial(target, limit).await?;
                Self::begin(stream, known, target, timeouts).await
            }
            Some(before) => {
                let stream = before.forward(target, limit).await?;
                Self::begin(stream, known, target, timeouts).await
            }
        }
    }

    /// A stream to another host, whose name this one resolves.
    async fn forward(
        &self,
        target: &Target,
        limit: Duration,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, HostFailure> {
        let port = u32::from(target.port);
        let open = self.handle.channel_open_direct_tcpip(&target.address, port, "127.0.0.1", 0);
        let place = format!("{}:{} from the host before it", target.address, target.port);
        match timeout(limit, open).await {
            Err(_) => Err(unreachable(&place, &format!("no answer in {}", seconds(limit)))),
            Ok(Err(russh::Error::ChannelOpenFailure(reason))) => {
                Err(unreachable(&place, &format!("it says '{}'", reason.description())))
            }
            Ok(Err(error)) => Err(self.ended(&error)),
            Ok(Ok(channel)) => Ok(channel.into_stream()),
        }
    }

    /// Agrees on keys, checks the host's, and logs in.
    async fn begin<S>(stream: S, known: KnownHost, target: &Target, timeouts: &Timeouts) -> Result<Self, HostFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = timeouts.connect(target);
        let told = Arc::new(Mutex::new(Told::default()));
        let token = CancellationToken::new();
        let gate = Arc::new(Gate::new(MOST_BYTES_BEFORE_LOGIN));
        let wire = Wire::new(stream, &token, &gate);
        // Whatever fails from here on, nothing goes on waiting for this host.
        let cut = token.drop_guard();
        let config = Arc::new(configuration(target, &known)?);
        let client = Client { known: known.clone(), told: Arc::clone(&told) };
        let handshake = client::connect_stream(config, wire, client);
        let mut handle = match timeout(limit, handshake).await {
            Err(_) => {
                return Err(HostFailure::new(
                    FailureKind::TimedOut,
                    format!(
                        "cannot connect: it accepts the connection, and says nothing that ends the key exchange in \
                         {}. Look whether its sshd hangs or is overloaded",
                        seconds(limit)
                    ),
                ));
            }
            Ok(Err(error)) => return Err(handshake_failure(&error, &told, &known, &gate)),
            Ok(Ok(handle)) => handle,
        };
        let login = authenticate::authenticate(&mut handle, target);
        match timeout(limit, login).await {
            Err(_) => {
                return Err(HostFailure::new(
                    FailureKind::TimedOut,
                    format!(
                        "cannot log in as {}: it gave no answer in {}. Look whether its sshd, its PAM or the agent \
                         here waits for something",
                        target.user,
                        seconds(limit)
                    ),
                ));
            }
            Ok(Err(failure)) => {
                return Err(failure.into_host_failure(target, || ended(&told, &gate)));
            }
            Ok(Ok(())) => {}
        }
        gate.open();
        Ok(Self { handle, told, cut, commands: Semaphore::new(MOST_COMMANDS), timeouts: *timeouts, way: Vec::new() })
    }

    /// Whether it has ended, by whomever.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Says goodbye, and waits until nothing of it is left, sessions of hosts on the way included.
    pub async fn close(self) {
        let Self { mut handle, cut, way, .. } = self;
        let farewell = async {
            let _ = handle.disconnect(Disconnect::ByApplication, "", "").await;
            (&mut handle).await
        };
        if timeout(FAREWELL, farewell).await.is_err() {
            drop(cut);
            let _ = timeout(FAREWELL, &mut handle).await;
        }
        for session in way.into_iter().rev() {
            Box::pin(session.close()).await;
        }
    }

    /// The failure of a session that has ended.
    fn ended(&self, error: &russh::Error) -> HostFailure {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let why = told.ended.clone().unwrap_or_else(|| reason(error));
        disconnected(&why)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Session");
        debug.field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// Called back by the library.
struct Client {
    known: KnownHost,
    told: Arc<Mutex<Told>>,
}

impl client::Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let checked = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.known.check(key),
            // None is asked for, so that none is sent.
            PublicKeyOrCertificate::Certificate(_) => Err(HostFailure::new(
                FailureKind::Unsupported,
                "cannot trust it: it shows a certificate, and none was asked for. Add its key to known_hosts",
            )),
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.refused = checked.err();
        Ok(told.refused.is_none())
    }

    async fn disconnected(&mut self, why: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        let why = match why {
            DisconnectReason::ReceivedDisconnect(info) => {
                let said: String = info.message.chars().take(200).collect();
                format!("it said '{said}'")
            }
            DisconnectReason::Error(error) => reason(&error),
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.ended = Some(why);
        Ok(())
    }
}

fn configuration(target: &Target, known: &KnownHost) -> Result<client::Config, HostFailure> {
    Ok(client::Config {
        nodelay: true,
        window_size: WINDOW_BYTES,
        channel_buffer_size: UNREAD_MESSAGES,
        keepalive_interval: Some(target.alive_interval.unwrap_or(ALIVE_INTERVAL)),
        // 0 would mean never.
        keepalive_max: target.alive_count.max(1),
        preferred: algorithms::preferred(target, known)?,
        ..client::Config::default()
    })
}

/// Reads the files without holding up other hosts.
async fn known(target: &Target) -> Result<KnownHost, HostFailure> {
    let target = target.clone();
    let read = tokio::task::spawn_blocking(move || {
        KnownHost::read(
            &target.known_hosts_files,
            &target.address,
            target.port,
            target.host_key_alias.as_deref(),
            &target.login,
        )
    });
    read.await
        .unwrap_or_else(|error| Err(HostFailure::new(FailureKind::HostKey, format!("cannot check its key: {error}"))))
}
