//! The client's end of the protocol with one host.
//!
//! On the host a short script executes `genv remote-serve`, or prints a greeting that names another program. If a line of
//! `authorized_keys` forces `genv remote-serve`, sshd runs this command instead, with the same greeting.

mod failures;
mod pipes;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use crate::failure::quoted;
use crate::protocol::{Hello, LONGEST_LINE_BYTES, LONGEST_NOISE_BYTES, PROTOCOL_VERSION, Reply, Request};
use crate::session::LineChannel;
use crate::{FailureKind, HostFailure, Session, script};
use failures::Silence;
pub use pipes::Pipes;

const SCRIPT: &str = include_str!("serve.sh");

/// The first bytes of a [`Hello`], which need not be at the beginning of a line.
const HELLO: &[u8] = b"{\"genv_remote\":";

/// The largest length of a [`Hello`].
const LONGEST_HELLO_BYTES: usize = 4 << 10;

/// How to start the program on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Whether genv runs as root there, by sudo.
    pub sudo: bool,
    /// Whether it accepts [`Request::Enforce`].
    pub enforce: bool,
    /// How long the greeting may take.
    pub answer_timeout: Duration,
}

/// Lines to and from a program on a host.
pub trait Lines: Send {
    /// The next line, without its line feed; `None` after the end of the program. If the future is dropped before it is
    /// ready, nothing is lost.
    ///
    /// # Errors
    /// The line is longer than `max_bytes` ([`FailureKind::Protocol`]), or the host is gone.
    fn next_line(&mut self, max_bytes: usize) -> impl Future<Output = Result<Option<Vec<u8>>, HostFailure>> + Send;

    /// The bytes of a line whose end has not arrived, or the beginning of a line that is too long.
    fn begun(&self) -> &[u8];

    /// Sends a line, and adds a line feed.
    ///
    /// # Errors
    /// The program or the host is gone.
    fn send_line(&mut self, line: &[u8]) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// The end of the program's stderr.
    fn stderr(&self) -> String;
}

impl Lines for LineChannel {
    async fn next_line(&mut self, max_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        self.next_line_within(max_bytes).await
    }

    fn begun(&self) -> &[u8] {
        LineChannel::begun(self)
    }

    async fn send_line(&mut self, line: &[u8]) -> Result<(), HostFailure> {
        LineChannel::send_line(self, line).await
    }

    fn stderr(&self) -> String {
        LineChannel::stderr(self)
    }
}

/// The command that a host runs.
#[must_use]
pub fn serve_command(options: &ServeOptions) -> String {
    let word = |yes| if yes { "yes" } else { "no" };
    let version = PROTOCOL_VERSION.to_string();
    let arguments = [version.as_str(), word(options.sudo), word(options.enforce)];
    script::command(SCRIPT, &arguments)
}

/// The protocol with one host. A drop ends the program on the host.
#[derive(Debug)]
pub struct Conversation<L> {
    lines: L,
}

impl Conversation<LineChannel> {
    /// Starts the program in a session, which can run other commands too.
    ///
    /// # Errors
    /// As [`Conversation::with`], or the command cannot be started.
    pub async fn begin(session: &Session, options: &ServeOptions) -> Result<(Self, Hello), HostFailure> {
        let channel = session.open(&serve_command(options)).await?;
        Self::with(channel, options).await
    }
}

impl<L: Lines> Conversation<L> {
    /// Waits for the greeting of [`serve_command`]. After a greeting of another program than
    /// [genv](crate::protocol::Answers::Genv) there are no replies.
    ///
    /// # Errors
    /// There is no greeting in time, the greeting is of another version, or the user may not run genv there.
    pub async fn with(lines: L, options: &ServeOptions) -> Result<(Self, Hello), HostFailure> {
        let mut conversation = Self { lines };
        let mut noise = Vec::new();
        let hello = timeout(options.answer_timeout, conversation.hello(&mut noise)).await;
        let silence = match hello {
            Ok(Ok(Some(hello))) => return Ok((conversation, hello)),
            Ok(Ok(None)) => Silence::Ended,
            Ok(Err(failure)) => return Err(failure),
            Err(_) => Silence::TooLong(options.answer_timeout),
        };
        // A prompt has no line feed.
        noise.extend_from_slice(conversation.lines.begun());
        Err(silence.failure(options, &noise, &conversation.lines.stderr()))
    }

    /// Skips lines until a greeting; `None` if the program ended before.
    async fn hello(&mut self, noise: &mut Vec<u8>) -> Result<Option<Hello>, HostFailure> {
        loop {
            let max_bytes = LONGEST_NOISE_BYTES + LONGEST_HELLO_BYTES - noise.len();
            let line = match self.lines.next_line(max_bytes).await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(failure) if failure.kind == FailureKind::Protocol => {
                    noise.extend_from_slice(self.lines.begun());
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

    /// The next reply. Replies to different requests come in any order. If the future is dropped before it is ready, nothing
    /// is lost.
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
                    "cannot understand its reply ({error}), which begins with {}: see that genv is of the same \
                     version there and here",
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

    /// The end of the host's stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.lines.stderr()
    }
}
