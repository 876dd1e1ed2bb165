//! The stream below a session, which can be cut whatever its two ends do.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// A stream that fails from the moment on at which its token is cancelled, and once more was read than is allowed.
///
/// Without it, the library's task of a host that is silent in the middle of a key exchange, or does not read what it is
/// sent, would wait for as long as the host does.
pub(super) struct Wire<S> {
    stream: S,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    gate: Arc<Gate>,
    /// What was read while nothing could be written.
    ahead: VecDeque<u8>,
    /// How reading ended behind that.
    ended: Option<io::Result<()>>,
}

/// What is read ahead: more than the windows of all channels together, which the host may fill before it has to read.
const MOST_AHEAD_BYTES: usize = 16 * super::WINDOW_BYTES as usize;

/// What a host may send before it lets in, and how it begins.
#[derive(Debug)]
pub(super) struct Gate {
    /// What may still be read, in bytes; `usize::MAX` is no limit.
    allowance: AtomicUsize,
    beginning: Mutex<Vec<u8>>,
}

/// Of the beginning, so much is kept.
const BEGINNING_BYTES: usize = 80;

impl Gate {
    pub(super) const fn new(allowance_bytes: usize) -> Self {
        Self { allowance: AtomicUsize::new(allowance_bytes), beginning: Mutex::new(Vec::new()) }
    }

    /// Lets through whatever comes from now on.
    pub(super) fn open(&self) {
        self.allowance.store(usize::MAX, Ordering::Relaxed);
    }

    /// Whether more came than is allowed.
    pub(super) fn is_exceeded(&self) -> bool {
        self.allowance.load(Ordering::Relaxed) == 0
    }

    /// The first line that came.
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
        // Who is let in meanwhile has no limit any more.
        let _ = self.allowance.compare_exchange(before, left, Ordering::Relaxed, Ordering::Relaxed);
        let mut beginning = self.beginning.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = BEGINNING_BYTES.saturating_sub(beginning.len());
        beginning.extend(bytes.iter().take(missing));
    }
}

impl<S> Wire<S> {
    pub(super) fn new(stream: S, token: &CancellationToken, gate: &Arc<Gate>) -> Self {
        Self {
            stream,
            cut: Box::pin(token.clone().cancelled_owned()),
            gate: Arc::clone(gate),
            ahead: VecDeque::new(),
            ended: None,
        }
    }

    fn is_cut(&mut self, context: &mut Context<'_>) -> bool {
        self.cut.as_mut().poll(context).is_ready()
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "it was closed here")
}

impl<S: AsyncRead + Unpin> Wire<S> {
    /// Reads what there is. The library reads nothing while it writes; a host on the way, whose channel is full because of
    /// that, would take nothing either, and both would wait for good.
    fn read_ahead(&mut self, context: &mut Context<'_>) {
        let mut chunk = [0; 8192];
        while self.ended.is_none() && self.ahead.len() < MOST_AHEAD_BYTES {
            let mut buffer = ReadBuf::new(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.gate.pass(buffer.filled());
                    self.ahead.extend(buffer.filled());
                }
                Poll::Ready(end) => self.ended = Some(end),
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut()));
        }
        if self.gate.is_exceeded() {
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
        self.gate.pass(buffer.filled().get(before..).unwrap_or_default());
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
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
