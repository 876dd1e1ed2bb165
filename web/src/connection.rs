//! One HTTP/1 connection: where it stands, until when it may stand there, and how it ends.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::Limits;
use crate::instruments::RequestInFlight;

/// How long a closed connection may keep sending before it is reset. Closing a socket with unread bytes resets
/// it, and a reset destroys the answer that told the client what was wrong.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two requests.
    Idle,
    /// A request is expected at once (the connection is new), or has begun to arrive.
    Head,
    /// A request is being answered.
    Responding,
    /// The answer is in hyper's buffer, not yet all in the kernel's.
    Flushing,
}

/// Where a connection stands. Its bytes ([`Tracked`]), its requests (the service) and its answers
/// ([`TrackedBody`]) each report what they see; its clock ([`drive`]) ends what takes too long.
#[derive(Debug)]
pub(crate) struct Progress {
    limits: Limits,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
struct Standing {
    phase: Phase,
    since: Instant,
    deadline: Instant,
    /// No deadline lies beyond this: set when the server stops.
    last_deadline: Option<Instant>,
    /// This connection's place among the requests in flight, from the request's head until its answer is written.
    in_flight: Option<OwnedSemaphorePermit>,
}

impl Progress {
    /// A connection that has just been opened.
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            limits: limits.clone(),
            standing: Mutex::new(Standing {
                phase: Phase::Head,
                since: now,
                deadline: now + limits.head_timeout,
                last_deadline: None,
                in_flight: None,
            }),
        })
    }

    /// A request's head has arrived.
    pub(crate) fn request_begins(&self) {
        self.standing().enter(Phase::Responding, self.limits.response_timeout);
    }

    /// Counts the request as in flight until its answer is written. `acquire` is not asked when a
    /// pipelined predecessor's place can be taken over.
    pub(crate) fn count_in_flight(&self, acquire: impl FnOnce() -> Option<OwnedSemaphorePermit>) -> bool {
        let mut standing = self.standing();
        if standing.in_flight.is_none() {
            standing.in_flight = acquire();
        }
        standing.in_flight.is_some()
    }

    /// Since when the client is waited for; absent while it waits itself.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let standing = self.standing();
        matches!(standing.phase, Phase::Idle | Phase::Head).then_some(standing.since)
    }

    fn bytes_arrived(&self) {
        let mut standing = self.standing();
        if standing.phase == Phase::Idle {
            standing.enter(Phase::Head, self.limits.head_timeout);
        }
    }

    fn answer_buffered(&self) {
        let mut standing = self.standing();
        if standing.phase == Phase::Responding {
            // The time to answer runs on.
            standing.phase = Phase::Flushing;
        }
    }

    fn all_written(&self) {
        let mut standing = self.standing();
        if standing.phase == Phase::Flushing {
            standing.enter(Phase::Idle, self.limits.idle_timeout);
            standing.in_flight = None;
        }
    }

    /// The server stops. Returns what it finds the connection at.
    fn stop(&self) -> Phase {
        let mut standing = self.standing();
        let last = Instant::now() + self.limits.drain_timeout;
        standing.last_deadline = Some(last);
        standing.deadline = standing.deadline.min(last);
        standing.phase
    }

    fn deadline(&self) -> Instant {
        self.standing().deadline
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        // Nothing in a critical section of this file can panic half way.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    fn enter(&mut self, phase: Phase, time_allowed: Duration) {
        self.phase = phase;
        self.since = Instant::now();
        self.deadline = self.since + time_allowed;
        if let Some(last) = self.last_deadline {
            self.deadline = self.deadline.min(last);
        }
    }
}

/// Serves requests on `stream` until the client leaves, a deadline passes, or `stop` is cancelled and
/// the request in progress is answered.
pub(crate) async fn drive<T, S>(stream: T, progress: Arc<Progress>, service: S, stop: &CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = TrackedBody> + Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limits = &progress.limits;
    let tracked = Tracked { stream, progress: Arc::clone(&progress) };
    let mut connection = http1::Builder::new()
        // One clock for every phase, below, instead of hyper's for one of them.
        .header_read_timeout(None)
        .max_header_size(limits.max_head_bytes)
        .max_buf_size(limits.max_head_bytes.max(8 * 1024))
        // A client that sends no more still gets its answer, as from Go's servers.
        .half_close(true)
        // Ready-made bodies are queued, never copied into a buffer.
        .writev(true)
        .serve_connection(TokioIo::new(tracked), service);

    let mut stopped = pin!(stop.cancelled());
    let mut stopping = false;
    let mut answered = true;
    let mut alarm = pin!(sleep_until(progress.deadline()));
    let lingers = poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended early");
                }
                return Poll::Ready(answered);
            }
            if stopping || stopped.as_mut().poll(cx).is_pending() {
                break;
            }
            stopping = true;
            match progress.stop() {
                // There is no request, and may never be one.
                Phase::Head => return Poll::Ready(false),
                // There is no answer that could get lost.
                Phase::Idle => answered = false,
                Phase::Responding | Phase::Flushing => {}
            }
            Pin::new(&mut connection).graceful_shutdown();
        }
        // Deadlines move with every request, mostly later: the alarm follows when it rings, or
        // at once when it would ring too late.
        loop {
            let deadline = progress.deadline();
            if deadline < alarm.deadline() {
                alarm.as_mut().reset(deadline);
            }
            ready!(alarm.as_mut().poll(cx));
            if deadline <= Instant::now() {
                tracing::debug!("a connection took too long and was dropped");
                return Poll::Ready(false);
            }
            alarm.as_mut().reset(deadline);
        }
    })
    .await;
    if lingers {
        linger(connection.into_parts().io.into_inner().stream).await;
    }
}

/// Reads what a client still sends after the last answer, so that the answer reaches it: see [`LINGER`].
pub(crate) async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    // Whether that succeeds, the client leaves or the time runs out, the connection ends.
    let rest = async {
        let mut scrap = [0; 4096];
        stream.shutdown().await?;
        while stream.read(&mut scrap).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, rest).await;
}

/// The bytes of a connection.
struct Tracked<T> {
    stream: T,
    progress: Arc<Progress>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Tracked<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.progress.bytes_arrived();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Tracked<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes the stream only when its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.progress.all_written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The bytes of an answer. hyper drops it once they are in its buffer, or when there is nothing to send (`HEAD`).
pub(crate) struct TrackedBody {
    bytes: Bytes,
    progress: Arc<Progress>,
    _request: RequestInFlight,
}

impl TrackedBody {
    pub(crate) fn new(bytes: Bytes, progress: Arc<Progress>, request: RequestInFlight) -> Self {
        Self { bytes, progress, _request: request }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.progress.answer_buffered();
    }
}
