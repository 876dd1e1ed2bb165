//! Commands at a host, and what they write.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::time::timeout;

use super::failures::{disconnected, seconds};
use super::{Session, Told};
use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

/// Of what a command says on its standard error, this much is kept: the last.
const STDERR_BYTES: usize = 4 << 10;

/// What a command may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// More output than this is a failure.
    pub stdout_bytes: usize,
    /// From the opening of its channel to its end.
    pub duration: Duration,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { stdout_bytes: LONGEST_LINE_BYTES, duration: Duration::from_secs(30) }
    }
}

/// What a command wrote, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    /// How it ended.
    pub end: CommandEnd,
    /// All that it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// The last that it wrote to its standard error.
    pub stderr: String,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// By itself, with this status.
    Exited(u32),
    /// By a signal, as `TERM`.
    Signalled(String),
    /// The host does not say.
    Unknown,
}

impl CommandEnd {
    /// Whether it ended with status 0.
    #[must_use]
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
    /// Runs a command, as the login shell there reads it, and waits for its end. More at once than sshd allows wait for
    /// each other. One that is given up leaves some kilobytes behind until the session ends: the library forgets a
    /// channel only when the host closes it first.
    ///
    /// # Errors
    /// It cannot be started, does not end in time, or writes too much; the session ends. A command that fails is none:
    /// its output tells.
    pub async fn run(&self, command: &str, stdin: &[u8], limits: &RunLimits) -> Result<CommandOutput, HostFailure> {
        let run = async {
            // It is never closed.
            let _permit = self.commands.acquire().await;
            let (mut running, input) = self.start(command).await?;
            let stdin = Bytes::copy_from_slice(stdin);
            let feed = async {
                // A command that does not read its input may end all the same.
                let _ = input.write.data_bytes(stdin).await;
                let _ = input.write.eof().await;
                std::future::pending::<()>().await;
            };
            let output = tokio::select! {
                output = running.collect(limits.stdout_bytes) => output,
                () = feed => Err(disconnected("its input ended")),
            };
            // Before another command takes its place, or the host would count both.
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

    pub(super) async fn start(&self, command: &str) -> Result<(Running, Input), HostFailure> {
        let limit = self.timeouts.answer;
        let start = async {
            let channel = match self.handle.channel_open_session().await {
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
            let input = Input { write: Arc::new(write) };
            let mut running = Running {
                read,
                told: Arc::clone(&self.told),
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
                    "cannot run a command: the host did not start it in {}. Look whether it is overloaded",
                    seconds(limit)
                ),
            )),
        }
    }
}

/// Where a command reads; the channel is closed with it.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) write: Arc<ChannelWriteHalf<Msg>>,
}

impl Drop for Input {
    fn drop(&mut self) {
        let write = Arc::clone(&self.write);
        // It ends at once where the session has ended, which closes its channels anyway.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = write.close().await;
            });
        }
    }
}

/// What a command writes.
#[derive(Debug)]
pub(super) struct Running {
    read: ChannelReadHalf,
    told: Arc<Mutex<Told>>,
    /// What it wrote before the host said that it was started, and while it was sent something.
    early: VecDeque<ChannelMsg>,
    pub(super) end: CommandEnd,
    ended: bool,
    stderr: Vec<u8>,
}

impl Running {
    /// Waits until the host has started the command.
    async fn accepted(&mut self) -> Result<(), HostFailure> {
        loop {
            match self.read.wait().await {
                Some(ChannelMsg::Success) => return Ok(()),
                Some(ChannelMsg::Failure | ChannelMsg::Close) => {
                    return Err(HostFailure::new(
                        FailureKind::Command,
                        "cannot run a command: the host refuses to start any. Look at its sshd_config (ForceCommand, \
                         ChrootDirectory) and the user's shell",
                    ));
                }
                Some(message) => self.early.push_back(message),
                None => return Err(self.disconnected()),
            }
        }
    }

    /// Takes what it wrote, for [`Running::next`] later.
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

    /// The next that it writes to its standard output; nothing once it has ended.
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

    async fn collect(&mut self, most_bytes: usize) -> Result<CommandOutput, HostFailure> {
        let mut stdout = Vec::new();
        while let Some(data) = self.next().await? {
            if stdout.len() + data.len() > most_bytes {
                return Err(HostFailure::new(
                    FailureKind::Protocol,
                    format!("the command wrote more than {most_bytes} bytes. Run it there, and see what it writes"),
                ));
            }
            stdout.extend_from_slice(&data);
        }
        Ok(CommandOutput { end: self.end.clone(), stdout, stderr: self.stderr() })
    }

    /// Keeps the last of what it says on its standard error.
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
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        disconnected(told.ended.as_deref().unwrap_or("its channel ended"))
    }
}

/// A command for a message.
fn shortened(command: &str) -> String {
    genv_core::text::shortened(command, 60)
}
