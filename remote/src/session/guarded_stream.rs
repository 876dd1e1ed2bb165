//! The stream below a session. It can be cut at any time, and limits the bytes before the login.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A stream that fails after its token is cancelled, or after too many bytes before the login.
///
/// Without this type, the task of russh would wait without limit for a host that is silent during the key exchange or does
/// not read.
pub(super) struct GuardedStream<S> {
    stream: S,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    read_limit: Arc<ReadLimit>,
    /// Bytes that were read while a write had to wait.
    ahead: VecDeque<u8>,
    /// The end of the stream after these bytes.
    ended: Option<io::Result<()>>,
}

/// The largest number of bytes that are read ahead: more than the windows of all channels, which the host may fill before it
/// has to read.
const MOST_AHEAD_BYTES: usize = 16 * super::WINDOW_BYTES as usize;

/// The limit of bytes before the login, and the first bytes.
#[derive(Debug)]
pub(super) struct ReadLimit {
    /// The number of bytes that may still be read; `usize::MAX` for no limit.
    allowance: AtomicUsize,
    beginning: Mutex<Vec<u8>>,
}

/// The number of bytes that are kept of the beginning.
const BEGINNING_BYTES: usize = 80;

impl ReadLimit {
    pub(super) const fn new(allowance_bytes: usize) -> Self {
        Self { allowance: AtomicUsize::new(allowance_bytes), beginning: Mutex::new(Vec::new()) }
    }

    /// Removes the limit.
    pub(super) fn open(&self) {
        self.allowance.store(usize::MAX, Ordering::Relaxed);
    }

    /// Whether the limit was exceeded.
    pub(super) fn is_exceeded(&self) -> bool {
        self.allowance.load(Ordering::Relaxed) == 0
    }

    /// The first line of the host.
    pub(super) fn first_line(&self) -> String {
        let beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&beginning);
        text.lines().next().unwrap_or_default().to_owned()
    }

    fn pass(&self, bytes: &[u8]) {
        let before = self.allowance.load(Ordering::Relaxed);
        if before == usize::MAX {
            return;
        }
        let left = before.saturating_sub(bytes.len());
        // The login may have removed the limit meanwhile.
        let _ = self.allowance.compare_exchange(before, left, Ordering::Relaxed, Ordering::Relaxed);
        let mut beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = BEGINNING_BYTES.saturating_sub(beginning.len());
        beginning.extend(bytes.iter().take(missing));
    }
}

impl<S> GuardedStream<S> {
    pub(super) fn new(stream: S, token: &CancellationToken, read_limit: &Arc<ReadLimit>) -> Self {
        Self {
            stream,
            cut: Box::pin(token.clone().cancelled_owned()),
            read_limit: Arc::clone(read_limit),
            ahead: VecDeque::new(),
            ended: None,
        }
    }

    fn is_cut(&mut self, context: &mut Context<'_>) -> bool {
        self.cut.as_mut().poll(context).is_ready()
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "it was closed by this program")
}

impl<S: AsyncRead + Unpin> GuardedStream<S> {
    /// Reads the available bytes. russh does not read while it writes. A jump host with a full channel would then not read
    /// either, and both ends would wait for ever.
    fn read_ahead(&mut self, context: &mut Context<'_>) {
        let mut chunk = [0; 8192];
        while self.ended.is_none() && self.ahead.len() < MOST_AHEAD_BYTES {
            let mut buffer = ReadBuf::new(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.read_limit.pass(buffer.filled());
                    self.ahead.extend(buffer.filled());
                }
                Poll::Ready(end) => self.ended = Some(end),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut()));
        }
        if self.read_limit.is_exceeded() {
            return Poll::Ready(Err(io::Error::other("it sent too much")));
        }
        if !self.ahead.is_empty() {
            let (first, _) = self.ahead.as_slices();
            let taken = first.len().min(buffer.remaining());
            buffer.put_slice(first.get(..taken).unwrap_or_default());
            self.ahead.drain(..taken);
            if self.ahead.is_empty() {
                self.ahead = VecDeque::new();
            }
            return Poll::Ready(Ok(()));
        }
        if let Some(end) = self.ended.take() {
            return Poll::Ready(end);
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.read_limit.pass(buffer.filled().get(before..).unwrap_or_default());
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut()));
        }
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_pending() {
            self.read_ahead(context);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_pending() {
            self.read_ahead(context);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
