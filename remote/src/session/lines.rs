//! A command on a host with lines as input and output.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::time::timeout;

use super::Session;
use super::command::{CommandInput, RunningCommand};
use super::failures::seconds;
use crate::lines::PartialLine;
use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

impl Session {
    /// Starts a command. The channel ends with the session at the latest.
    ///
    /// # Errors
    /// The command cannot be started, or the session ends.
    pub async fn open(&self, command: &str) -> Result<LineChannel, HostFailure> {
        let (running, input) = self.start(command).await?;
        Ok(LineChannel {
            running,
            input,
            answer: self.timeouts.answer,
            chunk: Bytes::new(),
            partial: PartialLine::default(),
            failed: None,
        })
    }
}

/// A running command with lines as input and output. Its drop closes the channel.
#[derive(Debug)]
pub struct LineChannel {
    running: RunningCommand,
    input: CommandInput,
    answer: Duration,
    /// Received bytes that are not split yet.
    chunk: Bytes,
    partial: PartialLine,
    /// The error after which the beginning of the next line is unknown.
    failed: Option<HostFailure>,
}

impl LineChannel {
    /// The next line, without its line feed; absent after the end of the command. There is no time limit. If the future is
    /// dropped before it is ready, no byte is lost.
    ///
    /// # Errors
    /// The session has ended, or the line is longer than [`LONGEST_LINE_BYTES`]. The channel cannot be used after an error.
    pub async fn next_line(&mut self) -> Result<Option<Vec<u8>>, HostFailure> {
        self.next_line_within(LONGEST_LINE_BYTES).await
    }

    /// As [`LineChannel::next_line`], with this limit of length.
    pub(crate) async fn next_line_within(&mut self, max_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        loop {
            let taken = self.partial.take(&self.chunk, max_bytes);
            let (used, line) = taken.inspect_err(|failure| {
                self.chunk = Bytes::new();
                self.failed = Some(failure.clone());
            })?;
            self.chunk.advance(used);
            if self.chunk.is_empty() {
                // An empty `Bytes` still owns the memory of its packet.
                self.chunk = Bytes::new();
            }
            if line.is_some() {
                return Ok(line);
            }
            match self.running.next().await? {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(self.partial.last()),
            }
        }
    }

    /// The received part of an incomplete line.
    pub(crate) fn partial_line(&self) -> &[u8] {
        self.partial.partial_line()
    }

    /// Sends a line with a line feed. If the future is dropped before it is ready, a part of the line may have been sent.
    ///
    /// # Errors
    /// The session or the command has ended, or the host does not accept the line in time.
    pub async fn send_line(&mut self, line: &[u8]) -> Result<(), HostFailure> {
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line);
        bytes.push(b'\n');
        let Self { running, input, .. } = self;
        let send = async {
            let sending = input.write.data_bytes(bytes);
            tokio::pin!(sending);
            loop {
                tokio::select! {
                    sent = &mut sending => return sent.map_err(|_| running.disconnected()),
                    // russh learns that the host accepts more data only while messages are received.
                    received = running.take_early(), if running.early_bytes() < LONGEST_LINE_BYTES => received?,
                }
            }
        };
        match timeout(self.answer, send).await {
            Ok(result) => result,
            Err(_) => Err(HostFailure::new(
                FailureKind::TimedOut,
                format!("it did not read a request in {}. See whether it hangs", seconds(self.answer)),
            )),
        }
    }

    /// The end of the command's stderr, as far as it arrived before the last line of [`LineChannel::next_line`].
    pub fn stderr(&self) -> String {
        self.running.stderr()
    }
}
