//! A transport over two streams, such as the stdin and stdout of a child process.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::LineTransport;
use crate::lines::PartialLine;
use crate::{FailureKind, HostFailure};

/// A stream to read lines from, and a stream to write lines to.
#[derive(Debug)]
pub struct StreamTransport<R, W> {
    reader: BufReader<R>,
    writer: W,
    partial: PartialLine,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> StreamTransport<R, W> {
    /// A transport that reads from `reader` and writes to `writer`.
    pub fn new(reader: R, writer: W) -> Self {
        Self { reader: BufReader::new(reader), writer, partial: PartialLine::default() }
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> LineTransport for StreamTransport<R, W> {
    async fn next_line(&mut self, max_bytes: usize) -> Result<Option<Vec<u8>>, HostFailure> {
        loop {
            let read = self.reader.fill_buf().await.map_err(|error| gone(&error))?;
            if read.is_empty() {
                return Ok(self.partial.last());
            }
            let (used, line) = self.partial.take(read, max_bytes)?;
            self.reader.consume(used);
            if line.is_some() {
                return Ok(line);
            }
        }
    }

    fn partial_line(&self) -> &[u8] {
        self.partial.partial_line()
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
    HostFailure::new(FailureKind::Disconnected, format!("the connection is lost: {error}"))
}
