//! Accepting connections, answering requests within the limits, and stopping.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::basic_auth::Gatekeeper;
use crate::connection::{Progress, TrackedBody, drive, linger};
use crate::connections::{Connections, OpenConnection};
use crate::instruments::RequestMetrics;
use crate::listen::inherited;
use crate::rate_limit::RateLimiter;
use crate::{InheritedSocketError, ListenAddress, ListenError, Request, Response, WebConfig};

/// What clients may ask of a [`Server`] before it says no.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests in flight, from a complete head until the answer has been handed to the kernel; one
    /// more is answered 503 at once. 0: no such limit. Paths below `/-/` (health) are not counted.
    pub max_requests: usize,
    /// Connections open at once; one more closes that which has waited longest for its client's next
    /// request, or waits itself while all are being answered.
    pub max_connections: usize,
    /// How long a TLS handshake may take, and a request's head from its first byte (or from the opening of the connection).
    pub head_timeout: Duration,
    /// How long sign-in, handling and writing the answer may take together.
    pub response_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How long requests in flight may take to finish once the server is told to stop.
    pub drain_timeout: Duration,
    /// The size of a request's head; a larger one is answered 431.
    pub max_head_bytes: usize,
}

impl Limits {
    /// The limits for a given `--web.max-requests`; the others suit a server that Prometheus scrapes.
    pub fn new(max_requests: usize) -> Self {
        Self {
            max_requests,
            // Far below the usual limit of 1,024 open files, which the daemon needs for other things as well.
            max_connections: max_requests.saturating_mul(2).max(512),
            head_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
            // As long as Prometheus keeps an idle connection itself.
            idle_timeout: Duration::from_secs(5 * 60),
            drain_timeout: Duration::from_secs(5),
            max_head_bytes: 16 * 1024,
        }
    }
}

impl Default for Limits {
    /// With 40 requests in flight, as node_exporter has it.
    fn default() -> Self {
        Self::new(40)
    }
}

/// Answers requests. Runs on the threads that serve every other client: it must be quick and must not wait.
pub trait Handler: Send + Sync + 'static {
    /// The answer to a `GET` or `HEAD` request; for a path it does not know, [`Response::not_found`].
    fn handle(&self, request: &Request<'_>) -> Response;
}

impl<F: Fn(&Request<'_>) -> Response + Send + Sync + 'static> Handler for F {
    fn handle(&self, request: &Request<'_>) -> Response {
        self(request)
    }
}

/// A server that listens and does not yet answer.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<TcpListener>,
    config: Option<WebConfig>,
    limits: Limits,
}

struct Shared<H> {
    handler: H,
    metrics: RequestMetrics,
    config: Option<WebConfig>,
    gatekeeper: Gatekeeper,
    /// Anybody can make handshakes fail: a log that tells of each could be flooded.
    handshake_log: RateLimiter,
    limits: Limits,
    /// `None`: unlimited.
    in_flight: Option<Arc<Semaphore>>,
    connections: Arc<Connections>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Listens on every address, with the TLS and sign-in that `config` asks for. A failure names the address, and closes those that were opened before it.
    pub async fn bind(
        addresses: &[ListenAddress],
        config: Option<WebConfig>,
        limits: Limits,
    ) -> Result<Self, ListenError> {
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            listeners.push(address.listen().await?);
        }
        Ok(Self { listeners, config, limits })
    }

    /// Listens on the sockets that the service manager has opened (socket activation), as exporters do with
    /// `--web.systemd-socket`.
    ///
    /// # Errors
    /// There are none, or they are of another kind.
    pub fn inherit(config: Option<WebConfig>, limits: Limits) -> Result<Self, InheritedSocketError> {
        Ok(Self { listeners: inherited()?, config, limits })
    }

    /// The addresses listened on, with the ports that the kernel chose.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.listeners.iter().map(TcpListener::local_addr);
        addresses.filter_map(Result::ok).collect()
    }

    /// Answers and counts requests until `shutdown` is ready. Then listens no more, closes idle connections, finishes the
    /// requests in flight, and drops those that take longer than [`Limits::drain_timeout`].
    pub async fn serve(self, handler: impl Handler, metrics: RequestMetrics, shutdown: impl Future<Output = ()>) {
        let limits = self.limits;
        let shared = Arc::new(Shared {
            in_flight: (limits.max_requests > 0)
                .then(|| Arc::new(Semaphore::new(limits.max_requests.min(Semaphore::MAX_PERMITS)))),
            connections: Connections::new(limits.max_connections),
            handler,
            metrics,
            config: self.config,
            gatekeeper: Gatekeeper::new(),
            handshake_log: RateLimiter::new(Duration::from_secs(60), 1),
            limits,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        for listener in self.listeners {
            shared.tasks.spawn(Arc::clone(&shared).accept(listener));
        }
        shutdown.await;
        shared.stop.cancel();
        shared.tasks.close();
        if timeout(shared.limits.drain_timeout, shared.tasks.wait()).await.is_err() {
            let connections = shared.tasks.len();
            tracing::warn!(connections, "stopped before every request was answered");
        }
    }
}

impl<H: Handler> Shared<H> {
    async fn accept(self: Arc<Self>, listener: TcpListener) {
        let stop = self.stop.clone();
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, client)) => {
                        let connection = self.connections.open(&self.limits, &self.stop).await;
                        let shared = Arc::clone(&self);
                        self.tasks.spawn(async move {
                            shared.serve_connection(stream, client, &connection).await;
                        });
                    }
                    Err(error) => {
                        // A client that left, or no file descriptor to spare: the next attempt may
                        // succeed, and must not spin until then.
                        tracing::warn!(%error, "cannot accept a connection; trying again");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(accepting).await;
    }

    async fn serve_connection(&self, stream: TcpStream, client: SocketAddr, connection: &OpenConnection) {
        // Answers are whole when they are written: waiting to fill a packet would only delay them. Should the
        // option fail, the connection is gone already.
        let _ = stream.set_nodelay(true);
        match &self.config {
            Some(config) if config.speaks_tls() => {
                let handshake = self.handshake(config, stream, client);
                let handshake = timeout(self.limits.head_timeout, handshake);
                if let Some(Ok(Some(stream))) = connection.stop.run_until_cancelled(handshake).await {
                    self.serve_requests(stream, connection).await;
                }
            }
            _ => self.serve_requests(stream, connection).await,
        }
    }

    async fn serve_requests(&self, stream: impl AsyncRead + AsyncWrite + Unpin, connection: &OpenConnection) {
        let progress = &connection.progress;
        let service = service_fn(|request| self.answer(request, progress));
        drive(stream, Arc::clone(progress), service, &connection.stop).await;
    }

    /// Shakes hands as the file asks now.
    async fn handshake(
        &self,
        config: &WebConfig,
        mut stream: TcpStream,
        client: SocketAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await.ok()? == 0 {
            // Somebody only looked whether the port is open.
            return None;
        }
        // A TLS record begins with its type, 22 for a handshake; a request begins with a method.
        if first[0].is_ascii_uppercase() {
            let answer = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                          This port speaks HTTPS: ask again with https://.\n";
            let _ = stream.write_all(answer.as_bytes()).await;
            linger(stream).await;
            return None;
        }
        let acceptor = TlsAcceptor::from(config.server_config()?);
        match acceptor.accept(stream).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                if self.handshake_log.allow(Instant::now()) {
                    tracing::warn!(%client, %error, "a TLS handshake failed; others are logged at level debug for a minute");
                } else {
                    tracing::debug!(%client, %error, "a TLS handshake failed");
                }
                None
            }
        }
    }

    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        progress: &Arc<Progress>,
    ) -> Result<hyper::Response<TrackedBody>, Infallible> {
        progress.request_begins();
        let mut in_flight = self.metrics.begin(request.uri().path());
        let response = match &self.config {
            None => self.respond(&request, progress),
            Some(config) => self.respond_as_configured(config, &request, progress).await,
        };
        in_flight.answered(response.status);
        let body = TrackedBody::new(response.body, Arc::clone(progress), in_flight);
        let mut answer = hyper::Response::new(body);
        *answer.status_mut() = response.status;
        *answer.headers_mut() = response.headers;
        Ok(answer)
    }

    async fn respond_as_configured(
        &self,
        config: &WebConfig,
        request: &hyper::Request<Incoming>,
        progress: &Progress,
    ) -> Response {
        let Some(settings) = config.settings() else {
            return Response::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The web configuration file is broken: the log says where.",
            );
        };
        let limiter = settings.rate_limiter.as_ref();
        let mut response = if limiter.is_some_and(|limiter| !limiter.allow(Instant::now())) {
            let words = "Not answered: requests come faster than rate_limit allows. Try again later.";
            Response::text(StatusCode::TOO_MANY_REQUESTS, words)
        } else if settings.users.is_empty() || self.gatekeeper.admits(&settings.users, request.headers()).await {
            self.respond(request, progress)
        } else {
            let challenge = HeaderValue::from_static("Basic realm=\"genv\", charset=\"UTF-8\"");
            Response::text(StatusCode::UNAUTHORIZED, "Sign in with a user of basic_auth_users.")
                .with_header(WWW_AUTHENTICATE, challenge)
        };
        for (name, value) in &settings.headers {
            response.headers.insert(name, value.clone());
        }
        response
    }

    fn respond(&self, request: &hyper::Request<Incoming>, progress: &Progress) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Response::text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD are answered here.")
                .with_header(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        if let Some(in_flight) = &self.in_flight {
            // Being busy is no ill health.
            let counts = !request.uri().path().starts_with("/-/");
            let acquire = || Arc::clone(in_flight).try_acquire_owned().ok();
            if counts && !progress.count_in_flight(acquire) {
                return self.too_many_requests();
            }
        }
        self.handler.handle(&Request::new(request.method(), request.uri(), request.headers()))
    }

    fn too_many_requests(&self) -> Response {
        Response::text(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!(
                "Not answered: {} requests are in flight, as many as --web.max-requests allows. Try again.",
                self.limits.max_requests
            ),
        )
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
    }
}
