//! An SSH session with one host. Each command has its own channel.
//!
//! This module uses russh without a layer such as `async-ssh2-tokio`, which lacks four features: to distinguish unknown from
//! changed host keys, to offer keys of the agent and of files in one connection, to resolve a name at the jump host, and to
//! keep a channel open.

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
mod attempts;
mod authenticate;
mod command;
mod failures;
mod guarded_stream;
mod identities;
mod lines;
mod refusal;
mod tcp;

pub use attempts::LoginAttempts;
pub use command::{CommandEnd, CommandOutput, RunLimits};
use failures::{disconnected, ended, handshake_failure, reason, seconds, unreachable};
use guarded_stream::{GuardedStream, ReadLimit};
pub use lines::LineChannel;
use tcp::connect;

/// The number of bytes that a host may send before the login: banners, keys and lists of algorithms.
const MOST_BYTES_BEFORE_LOGIN: usize = 1 << 20;

/// The number of unread bytes that a host may send through a channel. russh keeps up to [`UNREAD_MESSAGES`] packets in
/// memory; the rest waits in the kernel and on the host.
const WINDOW_BYTES: u32 = 512 << 10;

/// The most bytes of data in a packet from a host. russh keeps a buffer as large as the longest packet that it received; by
/// default that is 32 KiB.
const PACKET_BYTES: u32 = 16 << 10;

/// The number of packets that fill the window.
const UNREAD_MESSAGES: usize = (WINDOW_BYTES / PACKET_BYTES) as usize;

/// The number of commands at once in one session. sshd allows 10 for each session (MaxSessions).
const MOST_COMMANDS: usize = 4;

/// Silence after which a keep-alive message is sent, if ServerAliveInterval is not configured.
const ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Time limit for the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limits of the steps of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The limit for each of three steps, on each jump host too: name lookup and TCP connection, key exchange, login.
    /// Absent: the option ConnectTimeout of ssh_config, or else 10 s.
    pub connect: Option<Duration>,
    /// The limit to open a channel and start a command, and to accept a line.
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

/// A connection after the login. Its drop closes all channels.
pub struct Session {
    handle: Handle<ClientHandler>,
    events: Arc<Mutex<ConnectionEvents>>,
    /// Its drop ends all reads and writes of the connection.
    cut: DropGuard,
    commands: Semaphore,
    timeouts: Timeouts,
    /// Sessions of the jump hosts, in the order of the connection.
    jump_sessions: Vec<Session>,
}

/// Events of a connection that russh has reported.
#[derive(Debug, Default)]
struct ConnectionEvents {
    /// The reason for the refusal of the host's key.
    refused: Option<HostFailure>,
    /// The reason for the end of the connection.
    ended: Option<String>,
}

impl Session {
    /// Connects through the jump hosts, checks the host's key, and logs in.
    ///
    /// # Errors
    /// A step failed. All connections are closed.
    pub async fn connect(target: &Target, timeouts: &Timeouts) -> Result<Self, HostFailure> {
        Self::connect_after(&LoginAttempts::default(), target, timeouts).await
    }

    /// As [`Session::connect`], with other attempts at the same servers.
    ///
    /// # Errors
    /// As [`Session::connect`]; or another attempt at one of the servers failed just now.
    pub async fn connect_after(
        attempts: &LoginAttempts,
        target: &Target,
        timeouts: &Timeouts,
    ) -> Result<Self, HostFailure> {
        let mut jump_sessions: Vec<Self> = Vec::new();
        let mut way = String::new();
        for jump in &target.jumps {
            way += &place(jump);
            let session = attempts.make(&way, Self::connect_next(jump_sessions.last(), jump, timeouts)).await;
            jump_sessions.push(session.map_err(|failure| {
                let message = format!("at the jump host {}: {}", jump.login, failure.message);
                HostFailure::new(failure.kind, message)
            })?);
            way += " > ";
        }
        way += &place(target);
        let session = attempts.make(&way, Self::connect_next(jump_sessions.last(), target, timeouts)).await;
        let mut session = session?;
        session.jump_sessions = jump_sessions;
        Ok(session)
    }

    /// Connects from this machine, or from the jump host before.
    async fn connect_next(before: Option<&Self>, target: &Target, timeouts: &Timeouts) -> Result<Self, HostFailure> {
        let known = read_known_hosts(target).await?;
        let limit = timeouts.connect(target);
        match before {
            None => {
                let stream = connect(target, limit).await?;
                Self::begin(stream, known, target, timeouts).await
            }
            Some(before) => {
                let stream = before.forward(target, limit).await?;
                Self::begin(stream, known, target, timeouts).await
            }
        }
    }

    /// A stream to another host. This jump host resolves its name.
    async fn forward(
        &self,
        target: &Target,
        limit: Duration,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + use<>, HostFailure> {
        let port = u32::from(target.port);
        let open = self.handle.channel_open_direct_tcpip(&target.address, port, "127.0.0.1", 0);
        let place = format!("{}:{} from the jump host before it", target.address, target.port);
        match timeout(limit, open).await {
            Err(_) => Err(unreachable(&place, &format!("no answer in {}", seconds(limit)))),
            Ok(Err(russh::Error::ChannelOpenFailure(reason))) => {
                Err(unreachable(&place, &format!("it answers '{}'", reason.description())))
            }
            Ok(Err(error)) => Err(self.ended(&error)),
            Ok(Ok(channel)) => Ok(channel.into_stream()),
        }
    }

    /// Exchanges keys, checks the host's key, and logs in.
    async fn begin<S>(stream: S, known: KnownHost, target: &Target, timeouts: &Timeouts) -> Result<Self, HostFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = timeouts.connect(target);
        let events = Arc::new(Mutex::new(ConnectionEvents::default()));
        let token = CancellationToken::new();
        let read_limit = Arc::new(ReadLimit::new(MOST_BYTES_BEFORE_LOGIN));
        let guarded_stream = GuardedStream::new(stream, &token, &read_limit);
        // If a later step fails, the drop of the guard ends the tasks of this connection.
        let cut = token.drop_guard();
        let config = Arc::new(configuration(target, &known)?);
        let known = Arc::new(known);
        let client = ClientHandler { known: Arc::clone(&known), events: Arc::clone(&events) };
        let handshake = client::connect_stream(config, guarded_stream, client);
        let mut handle = match timeout(limit, handshake).await {
            Err(_) => {
                return Err(HostFailure::new(
                    FailureKind::TimedOut,
                    format!(
                        "cannot connect: it accepts the connection, and does not complete the key exchange in {}. See \
                                                 whether its sshd hangs or is overloaded",
                        seconds(limit)
                    ),
                ));
            }
            Ok(Err(error)) => return Err(handshake_failure(&error, &events, &known, &read_limit)),
            Ok(Ok(handle)) => handle,
        };
        let login = authenticate::authenticate(&mut handle, target);
        match timeout(limit, login).await {
            Err(_) => {
                return Err(HostFailure::new(
                    FailureKind::TimedOut,
                    format!(
                        "cannot log in as {}: it gave no answer in {}. See whether its sshd, its PAM or the agent here \
                                                 hangs",
                        target.user,
                        seconds(limit)
                    ),
                ));
            }
            Ok(Err(failure)) => {
                return Err(failure.into_host_failure(target, || ended(&events, &read_limit)));
            }
            Ok(Ok(())) => {}
        }
        read_limit.open();
        Ok(Self {
            handle,
            events,
            cut,
            commands: Semaphore::new(MOST_COMMANDS),
            timeouts: *timeouts,
            jump_sessions: Vec::new(),
        })
    }

    /// Whether the session has ended.
    pub fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Closes the session and the sessions of the jump hosts, and waits for their ends.
    pub async fn close(self) {
        let Self { mut handle, cut, jump_sessions, .. } = self;
        let close = async {
            let _ = handle.disconnect(Disconnect::ByApplication, "", "").await;
            (&mut handle).await
        };
        if timeout(CLOSE_TIMEOUT, close).await.is_err() {
            drop(cut);
            let _ = timeout(CLOSE_TIMEOUT, &mut handle).await;
        }
        for session in jump_sessions.into_iter().rev() {
            Box::pin(session.close()).await;
        }
    }

    /// The failure of a session that has ended.
    fn ended(&self, error: &russh::Error) -> HostFailure {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let why = events.ended.clone().unwrap_or_else(|| reason(error));
        disconnected(&why)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Session");
        debug.field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

/// Receives the callbacks of russh.
struct ClientHandler {
    known: Arc<KnownHost>,
    events: Arc<Mutex<ConnectionEvents>>,
}

impl client::Handler for ClientHandler {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let checked = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.known.check(key),
            // The client offers no algorithm with certificates, so that a correct server sends none.
            PublicKeyOrCertificate::Certificate(_) => Err(HostFailure::new(
                FailureKind::Unsupported,
                "cannot trust it: it shows a certificate without a request. Add its key to known_hosts",
            )),
        };
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.refused = checked.err();
        Ok(events.refused.is_none())
    }

    async fn disconnected(&mut self, why: DisconnectReason<russh::Error>) -> Result<(), russh::Error> {
        let why = match why {
            DisconnectReason::ReceivedDisconnect(info) => {
                let message: String = info.message.chars().take(200).collect();
                format!("it sent '{message}'")
            }
            DisconnectReason::Error(error) => reason(&error),
        };
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.ended = Some(why);
        Ok(())
    }
}

fn configuration(target: &Target, known: &KnownHost) -> Result<client::Config, HostFailure> {
    Ok(client::Config {
        nodelay: true,
        window_size: WINDOW_BYTES,
        maximum_packet_size: PACKET_BYTES,
        channel_buffer_size: UNREAD_MESSAGES,
        keepalive_interval: Some(target.alive_interval.unwrap_or(ALIVE_INTERVAL)),
        // russh takes 0 for no limit.
        keepalive_max: target.alive_count.max(1),
        preferred: algorithms::preferred(target, known)?,
        ..client::Config::default()
    })
}

/// The server with all that an attempt depends on, such as the user and the keys: the same for a jump host, for the last
/// host, and for each alias of ssh's configuration with these options.
fn place(target: &Target) -> String {
    format!("{:?}", Target { login: String::new(), jumps: Vec::new(), ..target.clone() })
}

/// Reads the files known_hosts on a thread for blocking work: other hosts continue.
async fn read_known_hosts(target: &Target) -> Result<KnownHost, HostFailure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_share_their_attempts_unless_an_option_differs() {
        let alias = |login: &str, key: &str| Target {
            login: login.to_owned(),
            address: "gpu01.example".to_owned(),
            identity_files: vec![key.into()],
            ..Target::default()
        };
        let first = place(&alias("gpu01", "id_lab"));
        let behind = Target { jumps: vec![alias("jump", "id_lab")], ..alias("gpu01-behind", "id_lab") };
        assert_eq!([place(&alias("gpu01-other", "id_lab")), place(&behind)], [first.clone(), first.clone()]);
        let other_user = Target { user: "bob".to_owned(), ..alias("gpu01", "id_lab") };
        for other in [alias("gpu01", "id_home"), other_user] {
            assert_ne!(place(&other), first);
        }
    }
}
