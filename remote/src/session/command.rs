//! Commands on a host and their output.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::time::{sleep, timeout};

use super::failures::{disconnected, seconds};
use super::{ConnectionEvents, Session};
use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

/// The number of bytes that are kept of the end of a command's stderr.
const STDERR_BYTES: usize = 4 << 10;

/// A refused channel is asked for again after waits that double from 50 ms to less than this, 750 ms in all.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Limits of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Limit of the output on stdout.
    pub stdout_bytes: usize,
    /// Time limit from the open of the channel to the end of the command.
    pub duration: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { stdout_bytes: LONGEST_LINE_BYTES, duration: Duration::from_secs(30) }
    }
}

/// The output and the end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// The end of the command.
    pub end: CommandEnd,
    /// The whole output on stdout.
    pub stdout: Vec<u8>,
    /// The end of the output on stderr.
    pub stderr: String,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// With this exit status.
    Exited(u32),
    /// By a signal, such as `TERM`.
    Signalled(String),
    /// The host does not report the end.
    Unknown,
}

impl CommandEnd {
    /// Whether the command ended with status 0.
    pub fn success(&self) -> bool {
        *self == Self::Exited(0)
    }
}

impl std::fmt::Display for CommandEnd {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(status) => write!(formatter, "ended with status {status}"),
            Self::Signalled(signal) => write!(formatter, "was ended by signal {signal}"),
            Self::Unknown => formatter.write_str("ended without a status"),
        }
    }
}

impl Session {
    /// Runs a command by the host's login shell, and waits for its end. The number of commands at once is limited; others
    /// wait. A command whose future is dropped keeps some kilobytes of memory until the session ends: russh frees a channel
    /// only when the host closes it.
    ///
    /// # Errors
    /// The command cannot be started, does not end in time, or writes too much, or the session ends. A command that ends
    /// with another status than 0 is not an error.
    pub async fn run(&self, command: &str, stdin: &[u8], limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
        let run = async {
            // The semaphore is never closed.
            let _permit = self.commands.acquire().await;
            let (mut running, input) = self.start(command).await?;
            let stdin = Bytes::copy_from_slice(stdin);
            let feed = async {
                // The write fails if the command does not read its stdin. That is not an error.
                let _ = input.write.data_bytes(stdin).await;
                let _ = input.write.eof().await;
                std::future::pending::<()>().await;
            };
            let output = tokio::select! {
                output = running.collect(limits.stdout_bytes) => output,
                () = feed => Err(disconnected("its stdin was closed")),
            };
            // The channel is closed before the permit is free: the host counts open channels.
            let _ = input.write.close().await;
            output
        };
        match timeout(limits.duration, run).await {
            Ok(result) => result,
            Err(_) => Err(HostFailure::new(
                FailureKind::TimedOut,
                format!(
                    "the command '{}' did not end in {}. Run it there, and see what it waits for",
                    shortened(command),
                    seconds(limits.duration)
                ),
            )),
        }
    }

    pub(super) async fn start(&self, command: &str) -> Result<(RunningCommand, CommandInput), HostFailure> {
        let limit = self.timeouts.answer;
        let start = async {
            // sshd counts a channel for a moment after both ends have closed it, which matters with 'MaxSessions 1'.
            let mut wait = Duration::from_millis(50);
            let opened = loop {
                match self.handle.channel_open_session().await {
                    Err(russh::Error::ChannelOpenFailure(_)) if wait < LONGEST_WAIT => sleep(wait).await,
                    opened => break opened,
                }
                wait *= 2;
            };
            let channel = match opened {
                Ok(channel) => channel,
                Err(russh::Error::ChannelOpenFailure(reason)) => {
                    return Err(HostFailure::new(
                        FailureKind::Command,
                        format!(
                            "cannot run a command: it opens no channel ({}). Raise MaxSessions in its sshd_config",
                            reason.description()
                        ),
                    ));
                }
                Err(error) => return Err(self.ended(&error)),
            };
            let (read, write) = channel.split();
            let input = CommandInput { write: Arc::new(write) };
            let mut running = RunningCommand {
                read,
                events: Arc::clone(&self.events),
                early: VecDeque::new(),
                end: CommandEnd::Unknown,
                ended: false,
                stderr: Vec::new(),
            };
            let sent = input.write.exec(true, command).await;
            sent.map_err(|error| self.ended(&error))?;
            running.accepted().await?;
            Ok((running, input))
        };
        match timeout(limit, start).await {
            Ok(result) => result,
            Err(_) => Err(HostFailure::new(
                FailureKind::TimedOut,
                format!(
                    "cannot run a command: the host did not start it in {}. See whether it is overloaded",
                    seconds(limit)
                ),
            )),
        }
    }
}

/// The stdin of a command. Its drop closes the channel.
#[derive(Debug)]
pub(super) struct CommandInput {
    pub(super) write: Arc<ChannelWriteHalf<Msg>>,
}

impl Drop for CommandInput {
    fn drop(&mut self) {
        let write = Arc::clone(&self.write);
        // After the end of the session this task ends at once.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = write.close().await;
            });
        }
    }
}

/// The output of a running command.
#[derive(Debug)]
pub(super) struct RunningCommand {
    read: ChannelReadHalf,
    events: Arc<Mutex<ConnectionEvents>>,
    /// Messages that arrived before the confirmation of the start, or while input was sent.
    early: VecDeque<ChannelMsg>,
    pub(super) end: CommandEnd,
    ended: bool,
    stderr: Vec<u8>,
}

impl RunningCommand {
    /// Waits until the host has started the command.
    async fn accepted(&mut self) -> Result<(), HostFailure> {
        loop {
            match self.read.wait().await {
                Some(ChannelMsg::Success) => return Ok(()),
                Some(ChannelMsg::Failure | ChannelMsg::Close) => {
                    return Err(HostFailure::new(
                        FailureKind::Command,
                        "cannot run a command: the host refuses to start any. See its sshd_config (ForceCommand, \
                         ChrootDirectory) and the user's shell",
                    ));
                }
                Some(message) => self.early.push_back(message),
                None => return Err(self.disconnected()),
            }
        }
    }

    /// Receives a message, and keeps it for [`RunningCommand::next`].
    pub(super) async fn take_early(&mut self) -> Result<(), HostFailure> {
        match self.read.wait().await {
            Some(message) => self.early.push_back(message),
            None => return Err(self.disconnected()),
        }
        Ok(())
    }

    pub(super) fn early_bytes(&self) -> usize {
        let bytes = |message: &ChannelMsg| match message {
            ChannelMsg::Data { data } | ChannelMsg::ExtendedData { data, .. } => data.len(),
            _ => 0,
        };
        self.early.iter().map(bytes).sum()
    }

    /// The next output on stdout; absent after the end of the command.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, HostFailure> {
        while !self.ended {
            let message = match self.early.pop_front() {
                Some(message) => Some(message),
                None => self.read.wait().await,
            };
            match message {
                Some(ChannelMsg::Data { data }) => return Ok(Some(data)),
                Some(ChannelMsg::ExtendedData { data, .. }) => self.keep(&data),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    self.end = CommandEnd::Exited(exit_status);
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    self.end = CommandEnd::Signalled(match signal_name {
                        russh::Sig::Custom(name) => name.chars().take(20).collect(),
                        signal => format!("{signal:?}"),
                    });
                }
                Some(ChannelMsg::Close) => self.ended = true,
                Some(_) => {}
                None => return Err(self.disconnected()),
            }
        }
        Ok(None)
    }

    async fn collect(&mut self, max_bytes: usize) -> Result<CommandOutput, HostFailure> {
        let mut stdout = Vec::new();
        while let Some(data) = self.next().await? {
            if stdout.len() + data.len() > max_bytes {
                return Err(HostFailure::new(
                    FailureKind::Protocol,
                    format!("the command wrote more than {max_bytes} bytes. Run it there, and see what it writes"),
                ));
            }
            stdout.extend_from_slice(&data);
        }
        Ok(CommandOutput { end: self.end.clone(), stdout, stderr: self.stderr() })
    }

    /// Keeps the end of the output on stderr.
    fn keep(&mut self, data: &[u8]) {
        self.stderr.extend_from_slice(data);
        if self.stderr.len() > 2 * STDERR_BYTES {
            let surplus = self.stderr.len() - STDERR_BYTES;
            self.stderr.drain(..surplus);
        }
    }

    pub(super) fn stderr(&self) -> String {
        let surplus = self.stderr.len().saturating_sub(STDERR_BYTES);
        let last = self.stderr.get(surplus..).unwrap_or_default();
        String::from_utf8_lossy(last).into_owned()
    }

    pub(super) fn disconnected(&self) -> HostFailure {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        disconnected(events.ended.as_deref().unwrap_or("its channel ended"))
    }
}

/// Shortens a command for a message.
fn shortened(command: &str) -> String {
    genv_core::text::shortened(command, 60)
}
