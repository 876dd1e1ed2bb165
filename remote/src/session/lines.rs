//! A command at a host that goes on talking, in lines.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::time::timeout;

use super::Session;
use super::command::{CommandEnd, Input, Running};
use super::failures::seconds;
use crate::lines::PartialLine;
use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

impl Session {
    /// Starts a command that goes on talking. The channel ends with the session at the latest.
    ///
    /// # Errors
    /// It cannot be started; the session ends.
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

/// A command that goes on talking in lines. Its channel is closed with the value.
#[derive(Debug)]
pub struct LineChannel {
    running: Running,
    input: Input,
    answer: Duration,
    /// What is read and not yet looked at.
    chunk: Bytes,
    partial: PartialLine,
    /// After which nothing that comes can be told from the rest of what came.
    failed: Option<HostFailure>,
}

impl LineChannel {
    /// The next line, without its end; nothing once the command has ended. It waits for as long as the session lives,
    /// and loses nothing when it is dropped before.
    ///
    /// # Errors
    /// The session has ended, or the line is longer than [`LONGEST_LINE_BYTES`]: the channel is of no more use then.
    pub async fn next_line(&mut self) -> Result<Option<Vec<u8>>, HostFailure> {
        self.next_line_within(LONGEST_LINE_BYTES).await
    }

    /// As [`LineChannel::next_line`], of a line that may not be longer than this.
    pub(crate) async fn next_line_within(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        loop {
            let taken = self.partial.take(&self.chunk, most_bytes);
            let (used, line) = taken.inspect_err(|failure| {
                self.chunk = Bytes::new();
                self.failed = Some(failure.clone());
            })?;
            self.chunk.advance(used);
            if line.is_some() {
                return Ok(line);
            }
            match self.running.next().await? {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(self.partial.last()),
            }
        }
    }

    /// What came of a line that has not ended.
    pub(crate) fn begun(&self) -> &[u8] {
        self.partial.begun()
    }

    /// Sends a line, whose end is added. A part of it may be sent if this is dropped before it is done.
    ///
    /// # Errors
    /// The session or the command has ended, or does not take the line in time.
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
                    // While what came is not taken, nobody hears that the host takes more.
                    came = running.take_early(), if running.early_bytes() < LONGEST_LINE_BYTES => came?,
                }
            }
        };
        match timeout(self.answer, send).await {
            Ok(result) => result,
            Err(_) => Err(HostFailure::new(
                FailureKind::TimedOut,
                format!("it did not take what it was sent in {}. Look whether it hangs", seconds(self.answer)),
            )),
        }
    }

    /// Tells the command that its input ends.
    pub async fn end_input(&mut self) {
        // A session that has ended has ended its input too.
        let _ = timeout(self.answer, self.input.write.eof()).await;
    }

    /// The last that it said on its standard error, as far as it was read before what [`LineChannel::next_line`] gave.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.running.stderr()
    }

    /// How it ended, once [`LineChannel::next_line`] has given nothing.
    #[must_use]
    pub fn end(&self) -> &CommandEnd {
        &self.running.end
    }
}
