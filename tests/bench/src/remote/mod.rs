//! The cost of reading many hosts over SSH: here, and on each host.

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::http;
use genv_tests::process::{resident_bytes, tree_cpu_seconds};
use genv_tests::ssh::SshClient;

use crate::load::Change;
use crate::table::{Table, mebibytes, milliseconds, verdict};
use fleet::{Fleet, Sends};

mod fleet;
mod real;
mod scenario;

pub(crate) use real::pair;

/// Numbers of hosts, with the time between two snapshots.
const SIZES: [(usize, Duration); 4] = [
    (1, Duration::from_secs(1)),
    (32, Duration::from_secs(1)),
    (256, Duration::from_secs(5)),
    (1000, Duration::from_secs(10)),
];

/// The number of hosts with which all [`KINDS`] are measured; others with the first alone.
const COMPARED: usize = 256;

/// What changes at each host from cycle to cycle, besides all that is measured of devices and all counters, and what is sent of it.
const KINDS: [(Change, Sends, &str); 3] = [
    (Change::OneInTen, Sends::Changes, "one process in ten"),
    (Change::Everybody, Sends::Changes, "every process"),
    (Change::OneInTen, Sends::Whole, "one process in ten, in whole snapshots as older hosts send them"),
];

/// How long each is watched, but for some cycles at least.
const WATCHED: Duration = Duration::from_secs(30);

/// Of one host and cycle, where the hosts are read.
const HERE_BUDGET_SECONDS: f64 = 1e-3;
/// Of one cycle, on a host.
const THERE_BUDGET_SECONDS: f64 = 3e-3;

/// How long hosts may take until all of them are there.
const PATIENCE: Duration = Duration::from_secs(300);

/// The cost of reading some hosts.
struct Cost {
    until_up: Duration,
    /// CPU until all are there, and of a cycle after that.
    connecting_seconds: f64,
    cycle_seconds: f64,
    /// Age of the oldest snapshot of a host when all are scraped.
    oldest_seconds: f64,
    resident: u64,
    metrics: usize,
    gzip: usize,
}

/// Measures simulated hosts, and then real ones.
pub(crate) fn tables() -> Result<Vec<Table>> {
    let only = std::env::var("GENV_BENCH_HOSTS").ok();
    let only: Option<usize> = only.map(|only| only.parse()).transpose()?;
    let mut table = Table::new(&[
        "hosts",
        "interval",
        "what changes and is sent",
        "CPU here, per host and cycle",
        "budget",
        "holds",
        "of two cores",
        "CPU to connect, per host",
        "all up after",
        "oldest of all hosts, when scraped",
        "resident memory",
        "/metrics",
        "of it gzip",
    ]);
    let mut sent = Table::new(&["what a host sends", "size"]);
    for (change, sends, what) in KINDS {
        let fleet = Fleet::start(change, sends)?;
        for (hosts, interval) in SIZES {
            let is_asked_for = only.is_none_or(|only| hosts == only);
            // Unusual hosts are measured once.
            if !is_asked_for || (what != KINDS[0].2 && hosts != COMPARED) {
                continue;
            }
            let cost = cost(&fleet, hosts, interval)?;
            let each = cost.cycle_seconds / hosts as f64;
            table.row(&[
                &hosts,
                &format!("{} s", interval.as_secs()),
                &what,
                &milliseconds(each),
                &milliseconds(HERE_BUDGET_SECONDS),
                &verdict(each <= HERE_BUDGET_SECONDS),
                &format!("{:.1} %", cost.cycle_seconds / interval.as_secs_f64() / 2.0 * 100.0),
                &milliseconds(cost.connecting_seconds / hosts as f64),
                &format!("{:.1} s", cost.until_up.as_secs_f64()),
                &format!("{:.1} s", cost.oldest_seconds),
                &mebibytes(cost.resident),
                &mebibytes(cost.metrics as u64),
                &mebibytes(cost.gzip as u64),
            ]);
        }
        let bytes = match sends {
            Sends::Whole => fleet.snapshot_bytes(),
            Sends::Changes => fleet.changes_bytes(),
        };
        sent.row(&[&what, &format!("{} KiB", bytes >> 10)]);
    }
    Ok(vec![table, sent, real::there()?])
}

/// An exporter of these hosts.
fn exporter(client: &SshClient, hosts: &[String], interval: Duration) -> Result<Exporter> {
    let setup = Setup::new()?;
    let list = setup.folder().join("hosts");
    fs::write(&list, hosts.join("\n"))?;
    let path = std::env::var("PATH")?;
    setup
        .env("PATH", format!("{}:{path}", client.bin().display()))
        .flag(&format!("--interval={}ms", interval.as_millis()))
        .flag(&format!("--hostfile={}", list.display()))
        .start()
}

fn wait_until_up(exporter: &Exporter, hosts: usize) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let up = scrape(exporter)?
            .text
            .lines()
            .filter(|line| line.starts_with("genv_host_up{") && line.ends_with(" 1"))
            .count();
        if up == hosts {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "only {up} of {hosts} hosts are up: {}", exporter.log());
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn cost(fleet: &Fleet, hosts: usize, interval: Duration) -> Result<Cost> {
    let names: Vec<String> = (0..hosts).map(|number| format!("gpu{number:04}")).collect();
    let began = Instant::now();
    let exporter = exporter(fleet.client(), &names, interval)?;
    wait_until_up(&exporter, hosts)?;
    let until_up = began.elapsed();
    let connecting_seconds = tree_cpu_seconds(exporter.pid())?;
    // The allocations of the start are no longer needed.
    watch(&exporter, interval, 2)?;
    let cycles = (WATCHED.as_secs_f64() / interval.as_secs_f64()).ceil() as u32;
    let before = tree_cpu_seconds(exporter.pid())?;
    let last = watch(&exporter, interval, cycles.max(3))?;
    let cycle_seconds = (tree_cpu_seconds(exporter.pid())? - before) / f64::from(cycles.max(3));
    let resident = resident_bytes(exporter.pid())?;
    wait_until_up(&exporter, hosts)?;
    Ok(Cost {
        until_up,
        connecting_seconds,
        cycle_seconds,
        oldest_seconds: last.oldest_seconds()?,
        resident,
        metrics: last.text.len(),
        gzip: last.gzip_bytes,
    })
}

/// The page that Prometheus gets from an exporter.
struct Scrape {
    at: SystemTime,
    text: String,
    gzip_bytes: usize,
}

impl Scrape {
    /// Age of the snapshot of the host that was heard longest ago.
    fn oldest_seconds(&self) -> Result<f64> {
        let samples = self.text.lines().filter_map(|line| {
            let sample = line.strip_prefix("genv_snapshot_timestamp_seconds{")?;
            sample.rsplit_once(' ')?.1.parse::<f64>().ok()
        });
        let oldest = samples.reduce(f64::min).context("no host was heard")?;
        Ok(self.at.duration_since(UNIX_EPOCH)?.as_secs_f64() - oldest)
    }
}

fn scrape(exporter: &Exporter) -> Result<Scrape> {
    let at = SystemTime::now();
    let answer = http::get_with(exporter.port(), "/metrics", &[("Accept-Encoding", "gzip")])?;
    ensure!(answer.status == 200, "/metrics answered {}", answer.status);
    let mut text = String::new();
    GzDecoder::new(&answer.body[..]).read_to_string(&mut text)?;
    Ok(Scrape { at, text, gzip_bytes: answer.body.len() })
}

/// Scrapes once each cycle, as Prometheus does; returns the last answer.
fn watch(exporter: &Exporter, interval: Duration, cycles: u32) -> Result<Scrape> {
    let began = Instant::now();
    let mut last = None;
    for cycle in 1..=cycles {
        std::thread::sleep((interval * cycle).saturating_sub(began.elapsed()));
        last = Some(scrape(exporter)?);
    }
    last.context("no cycle was watched")
}
