//! The cost of a scrape for its client: latency on one connection, and rate on several.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use genv_tests::http;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scrapes {
    /// Half of them were faster, on one connection.
    pub(crate) median: Duration,
    pub(crate) percentile_99: Duration,
    /// Requests a second on two connections at once.
    pub(crate) per_second: f64,
    pub(crate) bytes: usize,
}

/// Scrapes for some seconds: first one after the other, then on two connections at once.
pub(crate) fn scrapes(port: u16, time: Duration) -> Result<Scrapes> {
    let mut client = Client::new(port)?;
    let bytes = client.fetch()?;
    let mut latencies = Vec::new();
    let began = Instant::now();
    while began.elapsed() < time {
        let asked = Instant::now();
        client.fetch()?;
        latencies.push(asked.elapsed());
    }
    latencies.sort_unstable();
    let at = |part: f64| latencies[(latencies.len() as f64 * part) as usize];

    let fetch_all = || -> Result<usize> {
        let mut client = Client::new(port)?;
        let mut done = 0;
        let began = Instant::now();
        while began.elapsed() < time {
            client.fetch()?;
            done += 1;
        }
        Ok(done)
    };
    let done: usize = std::thread::scope(|scope| {
        let threads = [scope.spawn(fetch_all), scope.spawn(fetch_all)];
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?)
            .sum::<Result<usize>>()
    })?;
    Ok(Scrapes { median: at(0.5), percentile_99: at(0.99), per_second: done as f64 / time.as_secs_f64(), bytes })
}

/// A connection that is kept.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn new(port: u16) -> Result<Self> {
        let stream = http::connect(port)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 1 << 20] })
    }

    /// Fetches once; size of the body.
    pub(crate) fn fetch(&mut self) -> Result<usize> {
        self.stream.write_all(REQUEST)?;
        let mut length = 0;
        let body = loop {
            length += self.read(length)?;
            if let Some(end) = self.buffer[..length].windows(4).position(|at| at == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = std::str::from_utf8(&self.buffer[..body])?.to_ascii_lowercase();
        ensure!(head.starts_with("http/1.1 200 ") && !head.contains("connection: close"), "another answer: {head}");
        let size = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let size: usize = size.context("an answer without its length")?.trim().parse()?;
        while length < body + size {
            length += self.read(length)?;
        }
        Ok(size)
    }

    fn read(&mut self, length: usize) -> Result<usize> {
        let read = self.stream.read(&mut self.buffer[length..])?;
        ensure!(read > 0, "an answer was cut short");
        Ok(read)
    }
}
