//! The HTTP server: accepts connections, answers requests within the limits, and stops.

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

use crate::basic_auth::PasswordChecker;
use crate::connection::{ConnectionState, TrackedBody, drive, linger};
use crate::connections::{Connections, OpenConnection};
use crate::instruments::RequestMetrics;
use crate::listen::inherited;
use crate::rate_limit::RateLimiter;
use crate::{InheritedSocketError, ListenAddress, ListenError, Request, Response, WebConfig};

/// Limits of a [`Server`] on its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Requests in flight, from a complete head until the kernel has the answer. One more is answered 503 at once.
    /// 0: no limit. Paths below `/-/` (health) are not counted.
    pub max_requests: usize,
    /// Open connections. One more closes the connection that has waited longest for its client's next request. If all are
    /// being answered, the new connection waits.
    pub max_connections: usize,
    /// The timeout of a TLS handshake, and of a request's head from its first byte (or from the opening of the connection).
    pub head_timeout: Duration,
    /// The timeout of sign-in, handler and writing of the answer together.
    pub response_timeout: Duration,
    /// How long a connection may wait for its next request.
    pub idle_timeout: Duration,
    /// How long requests in flight may take to finish after the server stops.
    pub drain_timeout: Duration,
    /// The maximal size of a request's head. A larger one is answered 431.
    pub max_head_bytes: usize,
}

impl Limits {
    /// Limits for a server that Prometheus scrapes, with `--web.max-requests`.
    pub fn new(max_requests: usize) -> Self {
        Self {
            max_requests,
            // Far below the usual limit of 1,024 open files, as the daemon needs descriptors for other purposes too.
            max_connections: max_requests.saturating_mul(2).max(512),
            head_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
            // Prometheus' own timeout of idle connections.
            idle_timeout: Duration::from_secs(5 * 60),
            drain_timeout: Duration::from_secs(5),
            max_head_bytes: 16 * 1024,
        }
    }
}

impl Default for Limits {
    /// With 40 requests in flight, as in node_exporter.
    fn default() -> Self {
        Self::new(40)
    }
}

/// Answers requests. It runs on the threads of all other clients, so it must be quick and must not wait.
pub trait Handler: Send + Sync + 'static {
    /// The answer to a `GET` or `HEAD` request; for an unknown path, [`Response::not_found`].
    fn handle(&self, request: &Request<'_>) -> Response;
}

impl<F: Fn(&Request<'_>) -> Response + Send + Sync + 'static> Handler for F {
    fn handle(&self, request: &Request<'_>) -> Response {
        self(request)
    }
}

/// A server that listens, and answers from [`Self::serve`] on.
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
    password_checker: PasswordChecker,
    /// Any client can make handshakes fail, so their log is limited.
    handshake_log: RateLimiter,
    limits: Limits,
    /// `None`: unlimited.
    in_flight: Option<Arc<Semaphore>>,
    connections: Arc<Connections>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    /// Listens on every address, with TLS and sign-in by `config`.
    ///
    /// # Errors
    /// An address cannot be listened on. The sockets that were opened before are closed.
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
    /// There is no socket, or a socket is not a TCP listener.
    pub fn inherit(config: Option<WebConfig>, limits: Limits) -> Result<Self, InheritedSocketError> {
        Ok(Self { listeners: inherited()?, config, limits })
    }

    /// The addresses of the sockets, with the ports that the kernel chose.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.listeners.iter().map(TcpListener::local_addr);
        addresses.filter_map(Result::ok).collect()
    }

    /// Answers and counts requests until `shutdown` is ready. Then the server stops listening, closes idle connections,
    /// finishes the requests in flight, and drops those that take longer than [`Limits::drain_timeout`].
    pub async fn serve(self, handler: impl Handler, metrics: RequestMetrics, shutdown: impl Future<Output = ()>) {
        let limits = self.limits;
        let shared = Arc::new(Shared {
            in_flight: (limits.max_requests > 0)
                .then(|| Arc::new(Semaphore::new(limits.max_requests.min(Semaphore::MAX_PERMITS)))),
            connections: Connections::new(limits.max_connections),
            handler,
            metrics,
            config: self.config,
            password_checker: PasswordChecker::new(),
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
                        // The client has left, or no file descriptor is free. The next attempt may succeed; the pause
                        // avoids a busy loop.
                        tracing::warn!(%error, "cannot accept a connection; trying again");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(accepting).await;
    }

    async fn serve_connection(&self, stream: TcpStream, client: SocketAddr, connection: &OpenConnection) {
        // Answers are written whole, so Nagle's algorithm would only delay them. The option fails only on a closed
        // connection.
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
        let state = &connection.state;
        let service = service_fn(|request| self.answer(request, state));
        drive(stream, Arc::clone(state), service, &connection.stop).await;
    }

    /// The TLS handshake, by the current configuration.
    async fn handshake(
        &self,
        config: &WebConfig,
        mut stream: TcpStream,
        client: SocketAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await.ok()? == 0 {
            // A port scan, or a check whether the port is open.
            return None;
        }
        // A TLS record begins with its type, 22 for a handshake; a request begins with a method.
        if first[0].is_ascii_uppercase() {
            let answer = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n\
                          This port serves HTTPS: use https://.\n";
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
        state: &Arc<ConnectionState>,
    ) -> Result<hyper::Response<TrackedBody>, Infallible> {
        state.request_begins();
        let mut in_flight = self.metrics.begin(request.uri().path());
        let response = match &self.config {
            None => self.respond(&request, state),
            Some(config) => self.respond_as_configured(config, &request, state).await,
        };
        in_flight.answered(response.status);
        let body = TrackedBody::new(response.body, Arc::clone(state), in_flight);
        let mut answer = hyper::Response::new(body);
        *answer.status_mut() = response.status;
        *answer.headers_mut() = response.headers;
        Ok(answer)
    }

    async fn respond_as_configured(
        &self,
        config: &WebConfig,
        request: &hyper::Request<Incoming>,
        state: &ConnectionState,
    ) -> Response {
        let Some(settings) = config.settings() else {
            return Response::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The web configuration file is broken: the log has the error.",
            );
        };
        let limiter = settings.rate_limiter.as_ref();
        let mut response = if limiter.is_some_and(|limiter| !limiter.allow(Instant::now())) {
            let words = "Not answered: requests come faster than rate_limit allows. Try again later.";
            Response::text(StatusCode::TOO_MANY_REQUESTS, words)
        } else if settings.users.is_empty() || self.password_checker.admits(&settings.users, request.headers()).await {
            self.respond(request, state)
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

    fn respond(&self, request: &hyper::Request<Incoming>, state: &ConnectionState) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Response::text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD are answered here.")
                .with_header(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        if let Some(in_flight) = &self.in_flight {
            // A busy server is healthy.
            let counts = !request.uri().path().starts_with("/-/");
            let acquire = || Arc::clone(in_flight).try_acquire_owned().ok();
            if counts && !state.count_in_flight(acquire) {
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
