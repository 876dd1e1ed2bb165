//! A small blocking HTTP client: each request on a connection of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};

use crate::patience::PATIENCE;
use crate::reserved::Reserved;

/// A free port of 127.0.0.1. No test that runs meanwhile gets the same, in whatever process.
pub fn free_port() -> Result<u16> {
    static HANDED_OUT: AtomicU32 = AtomicU32::new(0);
    static HELD: Mutex<Vec<Reserved>> = Mutex::new(Vec::new());
    loop {
        let number = HANDED_OUT.fetch_add(1, Ordering::Relaxed);
        let place = (std::process::id().wrapping_mul(61)).wrapping_add(number) % PORTS;
        let port = u16::try_from(FIRST_PORT + place)?;
        ensure!(number < PORTS, "no port is free");
        // Until this process ends: a program of the test may listen, end and listen again.
        let Some(held) = Reserved::attempt(&format!("port-{port}"))? else {
            continue;
        };
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => {
                HELD.lock().unwrap_or_else(PoisonError::into_inner).push(held);
                return Ok(port);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ports that the kernel assigns to no connection by itself (`ip_local_port_range`): no other test gets one meanwhile.
const FIRST_PORT: u32 = 10_000;
const PORTS: u32 = 20_000;

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// The body as sent, chunks joined; still compressed if it was.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> Result<String> {
        String::from_utf8(self.body.clone()).context("a body that is not UTF-8")
    }
}

pub fn get(port: u16, path: &str) -> Result<Response> {
    get_with(port, path, &[])
}

pub fn get_with(port: u16, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
    ask(connect(port)?, "GET", path, headers, &[])
}

pub fn post(port: u16, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Response> {
    let length = body.len().to_string();
    ask(connect(port)?, "POST", path, &[&[("Content-Length", &*length)], headers].concat(), body)
}

pub fn delete(port: u16, path: &str) -> Result<Response> {
    ask(connect(port)?, "DELETE", path, &[], &[])
}

pub fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).with_context(|| format!("connecting to port {port}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<Response> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(&[request.as_bytes(), body].concat()).context("sending a request")?;
    read_response(stream)
}

pub fn read_response(mut stream: impl Read) -> Result<Response> {
    let mut bytes = Vec::new();
    let mut part = [0; 1 << 16];
    while !is_whole(&bytes) {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A TLS server may end the connection without saying so first.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof && !bytes.is_empty() => break,
            Err(error) => return Err(error).context("reading an answer"),
        }
    }
    parse(&bytes).with_context(|| format!("an answer: {:?}", String::from_utf8_lossy(&bytes)))
}

/// Whether an answer has all of the body that its head tells: some servers leave the connection open.
fn is_whole(bytes: &[u8]) -> bool {
    let Ok(response) = parse_head(bytes) else {
        return false;
    };
    let length = response.header("content-length").and_then(|length| length.parse().ok());
    length.is_some_and(|length: usize| length > 0 && response.body.len() >= length)
}

fn parse(bytes: &[u8]) -> Result<Response> {
    let mut response = parse_head(bytes)?;
    if response.header("transfer-encoding") == Some("chunked") {
        response.body = join_chunks(&response.body)?;
    }
    Ok(response)
}

/// An answer with its body as far as it has come.
fn parse_head(bytes: &[u8]) -> Result<Response> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("without an end of its head")?;
    let head = std::str::from_utf8(&bytes[..end])?;
    let mut lines = head.split("\r\n");
    let status_line = lines.next().context("without a status line")?;
    let Some(status) = status_line.split(' ').nth(1) else {
        bail!("with the status line {status_line:?}");
    };
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok(Response { status: status.parse()?, headers, body: bytes[end + 4..].to_vec() })
}

fn join_chunks(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut joined = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n").context("with a chunk of no size")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        if size == 0 {
            return Ok(joined);
        }
        let chunk = rest.get(end + 2..end + 2 + size).context("cut short")?;
        joined.extend_from_slice(chunk);
        rest = rest.get(end + 4 + size..).context("cut short")?;
    }
}
