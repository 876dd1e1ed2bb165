//! The client's end of the protocol, for one host.
//!
//! A short script on the host executes `genv remote-serve`, or prints a greeting that names another program. If a line of
//! `authorized_keys` forces the command `genv remote-serve`, sshd runs this command instead; its greeting is the same.

mod failures;
mod streams;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use crate::failure::quoted;
use crate::protocol::{Hello, HostProgram, LONGEST_LINE_BYTES, LONGEST_NOISE_BYTES, PROTOCOL_VERSION, Reply, Request};
use crate::session::LineChannel;
use crate::{FailureKind, HostFailure, Session, script};
use failures::NoGreeting;
pub use streams::StreamTransport;

const SCRIPT: &str = concat!(include_str!("../path.sh"), include_str!("serve.sh"));

/// The first bytes of a [`Hello`]. Other output can precede them on the same line.
const HELLO: &[u8] = b"{\"genv_remote\":";

/// The largest length of a [`Hello`].
const LONGEST_HELLO_BYTES: usize = 4 << 10;

/// How to start the program on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Whether sudo runs genv as root on the host.
    pub sudo: bool,
    /// Whether it accepts [`Request::Enforce`].
    pub enforce: bool,
    /// How long the greeting may take.
    pub answer_timeout: Duration,
}

/// A transport of lines to and from a program on a host.
pub trait LineTransport: Send {
    /// The next line, without its line feed; `None` after the end of the program. If the future is dropped before it is
    /// ready, no byte is lost.
    ///
    /// # Errors
    /// The line is longer than `max_bytes` ([`FailureKind::Protocol`]), or the host is gone.
    fn next_line(&mut self, max_bytes: usize) -> impl Future<Output = Result<Option<Vec<u8>>, HostFailure>> + Send;

    /// The received part of an incomplete line, or the beginning of a line that is too long.
    fn partial_line(&self) -> &[u8];

    /// Sends a line with a line feed.
    ///
    /// # Errors
    /// The program or the host is gone.
    fn send_line(&mut self, line: &[u8]) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// The end of the program's stderr.
    fn stderr(&self) -> String;
}

impl LineTransport for LineChannel {
    async fn next_line(&mut self, max_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        self.next_line_within(max_bytes).await
    }

    fn partial_line(&self) -> &[u8] {
        LineChannel::partial_line(self)
    }

    async fn send_line(&mut self, line: &[u8]) -> Result<(), HostFailure> {
        LineChannel::send_line(self, line).await
    }

    fn stderr(&self) -> String {
        LineChannel::stderr(self)
    }
}

/// The command for the host's login shell.
pub fn serve_command(options: &ServeOptions) -> String {
    let word = |yes| if yes { "yes" } else { "no" };
    let version = PROTOCOL_VERSION.to_string();
    let arguments = [version.as_str(), word(options.sudo), word(options.enforce)];
    script::command(SCRIPT, &arguments)
}

/// A conversation with one host. Its drop ends the program on the host.
#[derive(Debug)]
pub struct Conversation<L> {
    lines: L,
}

impl Conversation<LineChannel> {
    /// Starts the program in a session. The session can run other commands at the same time. A program other than
    /// [genv](HostProgram::Genv) has ended then.
    ///
    /// # Errors
    /// As [`Conversation::with`], or the command cannot be started.
    pub async fn begin(session: &Session, options: &ServeOptions) -> Result<(Self, Hello), HostFailure> {
        let channel = session.open(&serve_command(options)).await?;
        let (mut conversation, hello) = Self::with(channel, options).await?;
        if hello.answers_with != HostProgram::Genv {
            // A server with 'MaxSessions 1' opens the channel of the next command only after this one is closed. A host on
            // which it stays open may allow more channels.
            let _ = timeout(options.answer_timeout, conversation.end()).await;
        }
        Ok((conversation, hello))
    }
}

impl<L: LineTransport> Conversation<L> {
    /// Waits for the greeting of [`serve_command`]. Only [genv](HostProgram::Genv) replies to requests after it.
    ///
    /// # Errors
    /// There is no greeting in time, the greeting is of another version, or the user may not run genv there.
    pub async fn with(lines: L, options: &ServeOptions) -> Result<(Self, Hello), HostFailure> {
        let mut conversation = Self { lines };
        let mut noise = Vec::new();
        let hello = timeout(options.answer_timeout, conversation.hello(&mut noise)).await;
        let no_greeting = match hello {
            Ok(Ok(Some(hello))) => return Ok((conversation, hello)),
            Ok(Ok(None)) => NoGreeting::Ended,
            Ok(Err(failure)) => return Err(failure),
            Err(_) => NoGreeting::TimedOut(options.answer_timeout),
        };
        // For example a prompt, which has no line feed.
        noise.extend_from_slice(conversation.lines.partial_line());
        Err(no_greeting.failure(options, &noise, &conversation.lines.stderr()))
    }

    /// Waits for the end of the program.
    async fn end(&mut self) {
        while let Ok(Some(_)) = self.lines.next_line(LONGEST_LINE_BYTES).await {}
    }

    /// Skips lines until a greeting; `None` if the program ended before.
    async fn hello(&mut self, noise: &mut Vec<u8>) -> Result<Option<Hello>, HostFailure> {
        loop {
            let max_bytes = LONGEST_NOISE_BYTES + LONGEST_HELLO_BYTES - noise.len();
            let line = match self.lines.next_line(max_bytes).await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(failure) if failure.kind == FailureKind::Protocol => {
                    noise.extend_from_slice(self.lines.partial_line());
                    return Err(failures::too_noisy(noise));
                }
                Err(failure) => return Err(failure),
            };
            // The last line of a profile may have no line feed.
            let position = line.windows(HELLO.len()).position(|part| part == HELLO);
            let before = position.unwrap_or(line.len());
            let fits = noise.len() + before <= LONGEST_NOISE_BYTES;
            noise.extend_from_slice(&line[..before]);
            if !fits {
                return Err(failures::too_noisy(noise));
            }
            noise.push(b'\n');
            if position.is_some() {
                return failures::read_hello(&line[before..]).map(Some);
            }
        }
    }

    /// The next reply. Replies to different requests come in any order. If the future is dropped before it is ready, no byte is
    /// lost.
    ///
    /// # Errors
    /// The host or the program is gone, or the line is not a reply. The conversation is over then.
    pub async fn next_reply(&mut self) -> Result<Reply, HostFailure> {
        let Some(line) = self.lines.next_line(LONGEST_LINE_BYTES).await? else {
            return Err(failures::ended(&self.lines.stderr()));
        };
        // One check of UTF-8 for the whole line is faster than a check of each string.
        let reply = match str::from_utf8(&line) {
            Ok(line) => serde_json::from_str(line),
            Err(_) => serde_json::from_slice(&line),
        };
        reply.map_err(|error| {
            HostFailure::new(
                FailureKind::Protocol,
                format!(
                    "its reply is invalid ({error}), and begins with {}: see that genv is of the same version there \
                                         and here",
                    quoted(&line)
                ),
            )
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The host or the program is gone.
    pub async fn request(&mut self, request: &Request) -> Result<(), HostFailure> {
        let line = serde_json::to_vec(request)
            .map_err(|error| HostFailure::new(FailureKind::Protocol, format!("cannot write a request: {error}")))?;
        self.lines.send_line(&line).await
    }

    /// The end of the program's stderr.
    pub fn stderr(&self) -> String {
        self.lines.stderr()
    }
}
