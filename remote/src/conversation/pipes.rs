//! Lines through any two streams, as those of a child process.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::Lines;
use crate::protocol::LONGEST_LINE_BYTES;
use crate::{FailureKind, HostFailure};

/// A stream to read lines from, and one to write them to.
#[derive(Debug)]
pub struct Pipes<R, W> {
    reader: BufReader<R>,
    writer: W,
    /// The beginning of a line.
    begun: Vec<u8>,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Pipes<R, W> {
    /// Reads from the one and writes to the other.
    pub fn new(reader: R, writer: W) -> Self {
        Self {
            reader: BufReader::new(reader),
            writer,
            begun: Vec::new(),
        }
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Lines for Pipes<R, W> {
    async fn next_line(&mut self) -> Result<Option<Vec<u8>>, HostFailure> {
        loop {
            let read = self.reader.fill_buf().await.map_err(|error| gone(&error))?;
            if read.is_empty() {
                let last = std::mem::take(&mut self.begun);
                return Ok((!last.is_empty()).then_some(last));
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            if self.begun.len() + part.len() > LONGEST_LINE_BYTES {
                return Err(HostFailure::new(
                    FailureKind::Protocol,
                    format!(
                        "it sent a line of more than {LONGEST_LINE_BYTES} bytes: see what answers there"
                    ),
                ));
            }
            self.begun.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.begun)));
            }
        }
    }

    async fn send_line(&mut self, line: &[u8]) -> Result<(), HostFailure> {
        let line = [line, b"\n"].concat();
        let sent = self.writer.write_all(&line).await;
        let sent = match sent {
            Ok(()) => self.writer.flush().await,
            Err(error) => Err(error),
        };
        sent.map_err(|error| gone(&error))
    }

    fn stderr(&self) -> String {
        String::new()
    }
}

fn gone(error: &std::io::Error) -> HostFailure {
    HostFailure::new(
        FailureKind::Disconnected,
        format!("cannot talk to it any more: {error}"),
    )
}
