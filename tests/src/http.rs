//! A small blocking HTTP client: each request on a connection of its own.

use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write};
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

pub fn read_response(stream: impl Read) -> Result<Response> {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let length = stream.read_until(b'\n', &mut head).context("reading an answer")?;
        ensure!(length > 0, "an answer without an end of its head: {:?}", String::from_utf8_lossy(&head));
    }
    let mut response = parse_head(&head).with_context(|| format!("an answer: {:?}", String::from_utf8_lossy(&head)))?;
    let told = response.header("content-length").map(str::parse::<u64>).transpose().context("a Content-Length")?;
    let mut body = Vec::new();
    // Not to the end of the connection, which some servers leave open.
    match stream.take(told.unwrap_or(u64::MAX)).read_to_end(&mut body) {
        // A TLS server may end the connection without saying so first.
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error).context("reading an answer"),
        _ => {}
    }
    if let Some(told) = told {
        let length = body.len();
        ensure!(length as u64 == told, "an answer ended after {length} bytes of its body, of which it has {told}");
    }
    response.body = match response.header("transfer-encoding") {
        Some("chunked") => join_chunks(&body).with_context(|| format!("{:?}", String::from_utf8_lossy(&body)))?,
        _ => body,
    };
    Ok(response)
}

/// An answer without its body.
fn parse_head(head: &[u8]) -> Result<Response> {
    let mut lines = std::str::from_utf8(head)?.split("\r\n");
    let status_line = lines.next().context("without a status line")?;
    let Some(status) = status_line.split(' ').nth(1) else {
        bail!("with the status line {status_line:?}");
    };
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Ok(Response { status: status.parse()?, headers, body: Vec::new() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_where_its_head_tells_and_an_earlier_end_is_an_error() {
        let body = |text: &str| read_response(text.as_bytes()).map(|response| response.text().unwrap());
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd").unwrap(), "abc");
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nabcd").unwrap(), "abcd");
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(body(chunked).unwrap(), "abc");
        let error = body("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab").unwrap_err();
        assert_eq!(error.to_string(), "an answer ended after 2 bytes of its body, of which it has 3");
    }
}
