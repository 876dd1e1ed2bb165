//! What is said with one host: how it begins, what is asked, and what is answered.
//!
//! At a host a short script runs that becomes `genv remote-serve`, or tells what else there is. Where an
//! `authorized_keys` line forces `genv remote-serve`, sshd runs that instead, and the same is said.

mod failures;
mod pipes;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

use crate::protocol::{Hello, LONGEST_LINE_BYTES, LONGEST_NOISE_BYTES, PROTOCOL_VERSION, Reply, Request};
use crate::said::shown;
use crate::session::LineChannel;
use crate::{FailureKind, HostFailure, Session, script};
use failures::Silence;
pub use pipes::Pipes;

const SCRIPT: &str = include_str!("serve.sh");

/// With what a [`Hello`] begins, wherever in a line it is.
const HELLO: &[u8] = b"{\"genv_remote\":";

/// A [`Hello`] may be so long.
const LONGEST_HELLO_BYTES: usize = 4 << 10;

/// How to ask a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Whether genv runs as root there, by sudo.
    pub sudo: bool,
    /// Whether it is to carry out what an enforcer decides.
    pub enforce: bool,
    /// How long it may take to say what it is.
    pub answer_timeout: Duration,
}

/// Lines both ways, with a program at a host.
pub trait Lines: Send {
    /// The next line that comes, without its end; nothing once the program has ended. Nothing is lost if this is dropped
    /// before it is done.
    ///
    /// # Errors
    /// The line is longer than this ([`FailureKind::Protocol`]), or the host is gone.
    fn next_line(&mut self, most_bytes: usize) -> impl Future<Output = Result<Option<Vec<u8>>, HostFailure>> + Send;

    /// What came of a line that has not ended, or the beginning of one that is too long.
    fn begun(&self) -> &[u8];

    /// Sends a line, whose end is added.
    ///
    /// # Errors
    /// The program or the host is gone.
    fn send_line(&mut self, line: &[u8]) -> impl Future<Output = Result<(), HostFailure>> + Send;

    /// The last that the program said on its stderr.
    fn stderr(&self) -> String;
}

impl Lines for LineChannel {
    async fn next_line(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        self.next_line_within(most_bytes).await
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

/// The command to run at a host.
#[must_use]
pub fn serve_command(options: &ServeOptions) -> String {
    let word = |yes| if yes { "yes" } else { "no" };
    let version = PROTOCOL_VERSION.to_string();
    let arguments = [version.as_str(), word(options.sudo), word(options.enforce)];
    script::command(SCRIPT, &arguments)
}

/// A conversation with one host. Its program ends with the value.
#[derive(Debug)]
pub struct Conversation<L> {
    lines: L,
}

impl Conversation<LineChannel> {
    /// Begins one through a session, which may have others.
    ///
    /// # Errors
    /// As [`Conversation::with`], or nothing can be started at the host.
    pub async fn begin(session: &Session, options: &ServeOptions) -> Result<(Self, Hello), HostFailure> {
        let channel = session.open(&serve_command(options)).await?;
        Self::with(channel, options).await
    }
}

impl<L: Lines> Conversation<L> {
    /// Waits for what a host says first, through lines of [`serve_command`]. It says no more unless it
    /// [answers with genv](crate::protocol::Answers::Genv).
    ///
    /// # Errors
    /// It says something else, speaks another version, or nothing in time; or genv may not be run there.
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
        // A question is asked in a line that does not end.
        noise.extend_from_slice(conversation.lines.begun());
        Err(silence.failure(options, &noise, &conversation.lines.stderr()))
    }

    /// Passes over lines until one greets; nothing if there is none.
    async fn hello(&mut self, noise: &mut Vec<u8>) -> Result<Option<Hello>, HostFailure> {
        loop {
            // What is too much is not read.
            let most = LONGEST_NOISE_BYTES + LONGEST_HELLO_BYTES - noise.len();
            let line = match self.lines.next_line(most).await {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(failure) if failure.kind == FailureKind::Protocol => {
                    noise.extend_from_slice(self.lines.begun());
                    return Err(failures::too_noisy(noise));
                }
                Err(failure) => return Err(failure),
            };
            // What a profile printed last need not have ended its line.
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

    /// What comes next. Replies to different requests come in any order. Nothing is lost if this is dropped before it is
    /// done.
    ///
    /// # Errors
    /// The host or the program is gone, or says what is no reply: the conversation is over then.
    pub async fn next_reply(&mut self) -> Result<Reply, HostFailure> {
        let Some(line) = self.lines.next_line(LONGEST_LINE_BYTES).await? else {
            return Err(failures::ended(&self.lines.stderr()));
        };
        // Whether it is UTF-8 is found out faster for all of it than text by text.
        let reply = match str::from_utf8(&line) {
            Ok(line) => serde_json::from_str(line),
            Err(_) => serde_json::from_slice(&line),
        };
        reply.map_err(|error| {
            HostFailure::new(
                FailureKind::Protocol,
                format!(
                    "cannot understand its answer ({error}), which begins with {}: see that genv is of the same \
                     version there and here",
                    shown(&line)
                ),
            )
        })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// The host or the program is gone.
    pub async fn request(&mut self, request: &Request) -> Result<(), HostFailure> {
        let line = serde_json::to_vec(request)
            .map_err(|error| HostFailure::new(FailureKind::Protocol, format!("cannot write a request: {error}")))?;
        self.lines.send_line(&line).await
    }

    /// The last that the host said on its stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.lines.stderr()
    }
}
