//! A server under test, and a client that sends exactly the given bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use genv_web::header::HeaderValue;
use genv_web::instruments::{Registry, RequestMetrics};
use genv_web::{Encoding, Limits, Request, Response, Server, StatusCode, WebConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How long anything may take to happen before a test is given up: much longer than it takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The default limits, with times that no busy machine needs.
pub(crate) fn patient() -> Limits {
    let hour = Duration::from_secs(3600);
    Limits { head_timeout: hour, response_timeout: hour, idle_timeout: hour, drain_timeout: hour, ..Limits::default() }
}

pub(crate) async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited in vain");
        sleep(Duration::from_millis(2)).await;
    }
}

/// More than the kernel buffers of both ends of a connection hold.
const LARGE: usize = 64 << 20;

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    handled: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(crate) async fn start(limits: Limits) -> Self {
        Self::with_config(limits, None).await
    }

    pub(crate) async fn with_config(limits: Limits, config: Option<WebConfig>) -> Self {
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(&[anywhere], config, limits).await.unwrap();
        let address = server.local_addresses()[0];
        let handled = Arc::new(AtomicUsize::new(0));
        let large = Bytes::from(vec![b'x'; LARGE]);
        let counter = Arc::clone(&handled);
        let handler = move |request: &Request<'_>| {
            counter.fetch_add(1, Ordering::SeqCst);
            let text = HeaderValue::from_static("text/plain");
            match request.path() {
                "/" => Response::text(StatusCode::OK, "hello"),
                "/large" => Response::new(StatusCode::OK, text, large.clone()),
                "/gzip" => {
                    let body = match request.encoding() {
                        Encoding::Plain => "plain",
                        Encoding::Gzip => "gzip",
                    };
                    Response::encoded(request.encoding(), text, Bytes::from(body))
                }
                "/panic" => panic!("a handler that panics"),
                "/-/healthy" => Response::text(StatusCode::OK, "healthy"),
                _ => Response::not_found(),
            }
        };
        let metrics = RequestMetrics::register(&Registry::new(), "scrape_duration_seconds", "/", []).unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(server.serve(handler, metrics, async {
            let _ = stopped.await;
        }));
        Self { address, handled, stop: Some(stop), served: Some(served) }
    }

    pub(crate) async fn connect(&self) -> TestClient<TcpStream> {
        TestClient::new(TcpStream::connect(self.address).await.unwrap())
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.connect().await.get(path).await
    }

    pub(crate) async fn until_handled(&self, times: usize) {
        until(async || self.handled() >= times).await;
    }

    pub(crate) fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }

    /// Stops the server. The returned task ends when the server has stopped.
    pub(crate) fn stop(&mut self) -> JoinHandle<()> {
        self.stop.take().unwrap().send(()).unwrap();
        self.served.take().unwrap()
    }
}

pub(crate) struct TestClient<T> {
    stream: T,
    unread: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl TestResponse {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> TestClient<T> {
    pub(crate) fn new(stream: T) -> Self {
        Self { stream, unread: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    pub(crate) async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    pub(crate) async fn end_sending(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    pub(crate) async fn request(&mut self, path: &str, headers: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).await;
    }

    pub(crate) async fn get(&mut self, path: &str) -> TestResponse {
        self.request(path, "").await;
        self.response().await
    }

    pub(crate) async fn get_with(&mut self, path: &str, headers: &str) -> TestResponse {
        self.request(path, headers).await;
        self.response().await
    }

    /// The answer to a request, unless the server closes the connection before.
    pub(crate) async fn try_get(&mut self, path: &str) -> Option<TestResponse> {
        self.try_send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await.ok()?;
        while self.end_of_head().is_none() {
            if !matches!(self.try_read_some().await, Ok(1..)) {
                return None;
            }
        }
        Some(self.response().await)
    }

    /// The next response, which must have a body of declared length.
    pub(crate) async fn response(&mut self) -> TestResponse {
        let mut response = self.head().await;
        let length = response.headers["content-length"].parse().unwrap();
        while self.unread.len() < length {
            assert!(self.read_some().await > 0, "the body ends early: {response:?}");
        }
        response.body = self.unread.drain(..length).collect();
        response
    }

    fn end_of_head(&self) -> Option<usize> {
        self.unread.windows(4).position(|four| four == b"\r\n\r\n")
    }

    pub(crate) async fn head(&mut self) -> TestResponse {
        let end = loop {
            if let Some(end) = self.end_of_head() {
                break end;
            }
            assert!(self.read_some().await > 0, "the connection ended after {:?}", self.unread);
        };
        let head: Vec<u8> = self.unread.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        TestResponse {
            status: status.parse().unwrap(),
            headers: lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect(),
            body: Vec::new(),
        }
    }

    /// Everything until the server closes the connection (or resets it).
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while let Ok(1..) = self.try_read_some().await {}
        std::mem::take(&mut self.unread)
    }

    async fn read_some(&mut self) -> usize {
        self.try_read_some().await.unwrap()
    }

    async fn try_read_some(&mut self) -> std::io::Result<usize> {
        let mut chunk = vec![0; 256 << 10];
        let read = self.stream.read(&mut chunk).await?;
        self.unread.extend_from_slice(&chunk[..read]);
        Ok(read)
    }
}
