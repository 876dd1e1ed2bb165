//! Lines through any two streams, as those of a child process.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::Lines;
use crate::lines::PartialLine;
use crate::{FailureKind, HostFailure};

/// A stream to read lines from, and one to write them to.
#[derive(Debug)]
pub struct Pipes<R, W> {
    reader: BufReader<R>,
    writer: W,
    partial: PartialLine,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Pipes<R, W> {
    /// Reads from the one and writes to the other.
    pub fn new(reader: R, writer: W) -> Self {
        Self { reader: BufReader::new(reader), writer, partial: PartialLine::default() }
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> Lines for Pipes<R, W> {
    async fn next_line(&mut self, most_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        loop {
            let read = self.reader.fill_buf().await.map_err(|error| gone(&error))?;
            if read.is_empty() {
                return Ok(self.partial.last());
            }
            let (used, line) = self.partial.take(read, most_bytes)?;
            self.reader.consume(used);
            if line.is_some() {
                return Ok(line);
            }
        }
    }

    fn begun(&self) -> &[u8] {
        self.partial.begun()
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
    HostFailure::new(FailureKind::Disconnected, format!("cannot talk to it any more: {error}"))
}
