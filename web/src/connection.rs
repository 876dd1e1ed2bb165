//! One HTTP/1 connection: its phases, their deadlines, and its end.

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

/// How long the client of a closed connection may keep sending before a reset. Closing a socket with unread bytes resets
/// the connection, and a reset destroys the answer with the error.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two requests.
    Idle,
    /// The connection is new, or a request has begun to arrive.
    Head,
    /// A request is being answered.
    Responding,
    /// The answer is in hyper's buffer, and not yet completely in the kernel's.
    Flushing,
}

/// The phase of a connection. Stream ([`TrackedStream`]), service and answers ([`TrackedBody`]) report events;
/// [`drive`] ends a connection after its deadline.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    limits: Limits,
    phase_state: Mutex<PhaseState>,
}

#[derive(Debug)]
struct PhaseState {
    phase: Phase,
    since: Instant,
    deadline: Instant,
    /// Upper bound of all deadlines, set when the server stops.
    last_deadline: Option<Instant>,
    /// The permit of a request in flight, from the request's head until its answer is written.
    in_flight: Option<OwnedSemaphorePermit>,
}

impl ConnectionState {
    /// A connection that has just been opened.
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            limits: limits.clone(),
            phase_state: Mutex::new(PhaseState {
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
        self.phase_state().enter(Phase::Responding, self.limits.response_timeout);
    }

    /// Counts the request as in flight until its answer is written. A pipelined request takes over its predecessor's permit
    /// without a call of `acquire`.
    pub(crate) fn count_in_flight(&self, acquire: impl FnOnce() -> Option<OwnedSemaphorePermit>) -> bool {
        let mut phase_state = self.phase_state();
        if phase_state.in_flight.is_none() {
            phase_state.in_flight = acquire();
        }
        phase_state.in_flight.is_some()
    }

    /// Since when the server waits for the client; absent while the client waits for an answer.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let phase_state = self.phase_state();
        matches!(phase_state.phase, Phase::Idle | Phase::Head).then_some(phase_state.since)
    }

    fn bytes_arrived(&self) {
        let mut phase_state = self.phase_state();
        if phase_state.phase == Phase::Idle {
            phase_state.enter(Phase::Head, self.limits.head_timeout);
        }
    }

    fn answer_buffered(&self) {
        let mut phase_state = self.phase_state();
        if phase_state.phase == Phase::Responding {
            // The deadline of the answer stays.
            phase_state.phase = Phase::Flushing;
        }
    }

    fn all_written(&self) {
        let mut phase_state = self.phase_state();
        if phase_state.phase == Phase::Flushing {
            phase_state.enter(Phase::Idle, self.limits.idle_timeout);
            phase_state.in_flight = None;
        }
    }

    /// Limits the deadlines, as the server stops. Returns the current phase.
    fn stop(&self) -> Phase {
        let mut phase_state = self.phase_state();
        let last = Instant::now() + self.limits.drain_timeout;
        phase_state.last_deadline = Some(last);
        phase_state.deadline = phase_state.deadline.min(last);
        phase_state.phase
    }

    fn deadline(&self) -> Instant {
        self.phase_state().deadline
    }

    fn phase_state(&self) -> MutexGuard<'_, PhaseState> {
        // No critical section of this file can panic between two changes.
        self.phase_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PhaseState {
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
pub(crate) async fn drive<T, S>(stream: T, state: Arc<ConnectionState>, service: S, stop: &CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = TrackedBody> + Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limits = &state.limits;
    let tracked = TrackedStream { stream, state: Arc::clone(&state) };
    let mut connection = http1::Builder::new()
        // The timer below covers every phase, hyper's only this one.
        .header_read_timeout(None)
        .max_header_size(limits.max_head_bytes)
        .max_buf_size(limits.max_head_bytes.max(8 * 1024))
        // A client that has closed its sending side still gets its answer, as from Go's servers.
        .half_close(true)
        // Ready-made bodies are queued, never copied into a buffer.
        .writev(true)
        .serve_connection(TokioIo::new(tracked), service);

    let mut stopped = pin!(stop.cancelled());
    let mut stopping = false;
    let mut answered = true;
    let mut timer = pin!(sleep_until(state.deadline()));
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
            match state.stop() {
                // There is no complete request, and there may never be one.
                Phase::Head => return Poll::Ready(false),
                // No answer can get lost.
                Phase::Idle => answered = false,
                Phase::Responding | Phase::Flushing => {}
            }
            Pin::new(&mut connection).graceful_shutdown();
        }
        // Every request moves the deadline, mostly later. The timer follows when it fires, or at once if it would fire
        // too late.
        loop {
            let deadline = state.deadline();
            if deadline < timer.deadline() {
                timer.as_mut().reset(deadline);
            }
            ready!(timer.as_mut().poll(cx));
            if deadline <= Instant::now() {
                tracing::debug!("a connection took too long and was dropped");
                return Poll::Ready(false);
            }
            timer.as_mut().reset(deadline);
        }
    })
    .await;
    if lingers {
        linger(connection.into_parts().io.into_inner().stream).await;
    }
}

/// Reads the rest of the client's bytes after the last answer, so that the answer reaches the client: see [`LINGER`].
pub(crate) async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    // In every case the connection ends afterwards.
    let rest = async {
        let mut discarded = [0; 4096];
        stream.shutdown().await?;
        while stream.read(&mut discarded).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, rest).await;
}

/// A stream that reports its events to the state of the connection.
struct TrackedStream<T> {
    stream: T,
    state: Arc<ConnectionState>,
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.state.bytes_arrived();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TrackedStream<T> {
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
        self.state.all_written();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer. hyper drops the body once its bytes are in hyper's buffer, or if it sends none (`HEAD`).
pub(crate) struct TrackedBody {
    bytes: Bytes,
    state: Arc<ConnectionState>,
    _request: RequestInFlight,
}

impl TrackedBody {
    pub(crate) fn new(bytes: Bytes, state: Arc<ConnectionState>, request: RequestInFlight) -> Self {
        Self { bytes, state, _request: request }
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
        self.state.answer_buffered();
    }
}
