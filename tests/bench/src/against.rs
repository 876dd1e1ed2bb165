//! The programs of this checkout beside those of another one, measured in turn on the same load.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::process::{children, private_bytes, resident_bytes};
use genv_tests::terminal::DirectTerminal;
use genv_tests::tools::build_folder;

use crate::load::{DEVICES, ENVIRONMENTS, FEW_PROCESSES, Load, PROCESSES};
use crate::measured::{Task, cpu_with_children};
use crate::remote::{self, Fleet};
use crate::scrape::Client;
use crate::table::{Table, mebibytes, median, milliseconds};

const ROUNDS: usize = 5;
const STARTS: usize = 21;

/// The number of hosts, unless `GENV_BENCH_HOSTS` is one.
const REMOTE_HOSTS: usize = 32;
const REMOTE_ROUNDS: usize = 3;

/// The time of one measurement at an interval of 100 ms, and of one at a second.
const WATCHED: Duration = Duration::from_secs(5);
const WATCHED_SLOWLY: Duration = Duration::from_secs(15);

const COLLECTIONS: &str = "genv_exporter_collection_duration_seconds_count";

/// The folder of a checkout's programs.
struct Build(PathBuf);

/// What is measured in the two builds, in turn.
struct Comparison {
    there: Build,
    here: Build,
    table: Table,
}

impl Comparison {
    fn of(other: &Path) -> Result<Self> {
        let there = Build(other.join("target/dist"));
        let has = |name: &str| there.program(name).exists();
        ensure!(
            has("genv-exporter") && has("genv"),
            "{} has no genv and genv-exporter: build them in that checkout with the profile dist",
            there.0.display()
        );
        let table = Table::new(&["what", "there", "here", "here ÷ there", "lowest to highest"]);
        Ok(Self { there, here: Build(build_folder()), table })
    }

    /// Adds a row for each value that `measure` returns.
    fn rows<const N: usize>(
        &mut self,
        rounds: usize,
        whats: [&str; N],
        shown: [fn(f64) -> String; N],
        measure: impl Fn(&Build) -> Result<[f64; N]>,
    ) -> Result<()> {
        let rounds = (0..rounds).map(|_| Ok([measure(&self.there)?, measure(&self.here)?]));
        let rounds = rounds.collect::<Result<Vec<_>>>()?;
        for (at, what) in whats.iter().enumerate() {
            let [before, now] = [0, 1].map(|build| median(rounds.iter().map(|it| it[build][at]).collect()));
            let mut ratios: Vec<f64> = rounds.iter().map(|[before, now]| now[at] / before[at]).collect();
            ratios.sort_by(f64::total_cmp);
            let ratio = format!("{:.2}", ratios[ratios.len() / 2]);
            let spread = format!("{:.2} to {:.2}", ratios[0], ratios[ratios.len() - 1]);
            self.table.row(&[what, &shown[at](before), &shown[at](now), &ratio, &spread]);
        }
        Ok(())
    }
}

/// The exporter that reads many hosts.
pub(crate) fn remote_table(other: &Path) -> Result<Table> {
    let mut comparison = Comparison::of(other)?;
    let hosts = remote::number_asked_for()?.unwrap_or(REMOTE_HOSTS);
    let fleet = Fleet::start(hosts)?;
    comparison.rows(
        REMOTE_ROUNDS,
        [
            &format!("CPU per host and cycle, {hosts} hosts"),
            "time until all are up",
            "CPU to connect one",
            "resident memory",
        ],
        [milliseconds, milliseconds, milliseconds, mebibytes_of],
        |build| {
            let measured = fleet.measure(&build.program("genv-exporter"))?;
            Ok([
                measured.here_seconds,
                measured.until_up.as_secs_f64(),
                measured.connecting_seconds,
                measured.resident_bytes as f64,
            ])
        },
    )?;
    Ok(comparison.table)
}

/// The programs of one machine.
pub(crate) fn table(other: &Path) -> Result<Table> {
    let mut comparison = Comparison::of(other)?;
    let load = Load::start(false)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    load.write_state(&state)?;
    let few = Load::few()?;
    let library = Task::Library.run(&load.simulation)?.bytes;

    let busy = format!("{DEVICES} devices, {ENVIRONMENTS} environments, {PROCESSES} processes on all devices");
    let calm = format!("{DEVICES} devices, {FEW_PROCESSES} processes");
    comparison.rows(
        ROUNDS,
        [&format!("CPU of one collection, not scraped: {busy}"), "the same, scraped once, gzip"],
        [milliseconds; 2],
        |build| collections(&build.busy(&load, &state)?),
    )?;
    let what = format!("CPU of an exporter a second, --interval=1s: {calm}");
    comparison.rows(ROUNDS, [&what], [milliseconds], |build| {
        let exporter = build.exporter(&few)?.flag("--interval=1s").start()?;
        exporter.wait_for("the load", |scrape| {
            scrape.all("genv_processes", &[]).iter().map(|(_, number)| number).sum::<f64>() == FEW_PROCESSES as f64
        })?;
        let (_, cpu) = watched(&exporter, || sleep(WATCHED_SLOWLY))?;
        Ok([cpu / WATCHED_SLOWLY.as_secs_f64()])
    })?;
    let what = format!("resident memory, with the reader, beyond one copy of the library: {busy}");
    comparison.rows(ROUNDS, [&what], [mebibytes_of], |build| {
        let exporter = build.busy(&load, &state)?;
        let mut beyond = resident_bytes(exporter.pid())?;
        let readers = children(exporter.pid());
        for reader in &readers {
            beyond += private_bytes(*reader)?;
        }
        Ok([beyond.saturating_sub(library * readers.len().max(1) as u64) as f64])
    })?;
    let what = format!("`genv devices` on a terminal, wall time: {busy}");
    comparison.rows(STARTS, [&what], [milliseconds], |build| {
        let mut genv = Command::new(build.program("genv"));
        genv.arg("devices")
            .env("GENV_NVML_LIBRARY", load.simulation.library())
            .env("GENV_SCENARIO", load.simulation.scenario())
            .env("GENV_TMPDIR", &state)
            .env("TERM", "xterm");
        let began = Instant::now();
        let mut terminal = DirectTerminal::start(genv)?;
        terminal.wait("H100")?;
        terminal.wait_until_closed();
        Ok([began.elapsed().as_secs_f64()])
    })?;
    Ok(comparison.table)
}

impl Build {
    fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn exporter(&self, load: &Load) -> Result<Setup> {
        Ok(Setup::with_driver(&load.simulation)?.program(&self.program("genv-exporter")))
    }

    /// An exporter that has seen the whole load.
    fn busy(&self, load: &Load, state: &Path) -> Result<Exporter> {
        let exporter = self.exporter(load)?.env("GENV_TMPDIR", state).start()?;
        exporter.wait_for("the load", |scrape| {
            scrape.value("genv_environments", &[]).ok() == Some(ENVIRONMENTS as f64)
                && scrape.value("genv_processes", &[("state", "environment")]).ok() == Some(PROCESSES as f64)
        })?;
        sleep(Duration::from_secs(1));
        Ok(exporter)
    }
}

/// CPU of a collection, alone and with a scrape for each.
fn collections(exporter: &Exporter) -> Result<[f64; 2]> {
    let (alone, cpu_alone) = watched(exporter, || sleep(WATCHED))?;
    let mut client = Client::new(exporter.port())?;
    let mut scraped = Ok(0);
    let (with_scrapes, cpu) = watched(exporter, || {
        let began = Instant::now();
        while began.elapsed() < WATCHED && scraped.is_ok() {
            scraped = client.fetch();
            sleep(Duration::from_millis(100));
        }
    })?;
    scraped?;
    Ok([cpu_alone / alone, cpu / with_scrapes])
}

/// The collections of an exporter while something is done, and its CPU with that of its reader.
fn watched(exporter: &Exporter, act: impl FnOnce()) -> Result<(f64, f64)> {
    let collections = || exporter.scrape()?.value(COLLECTIONS, &[("collector", "gpu")]);
    let (before, cpu) = (collections()?, cpu_with_children(exporter.pid())?);
    act();
    let cpu = cpu_with_children(exporter.pid())? - cpu;
    Ok((collections()? - before, cpu))
}

fn mebibytes_of(bytes: f64) -> String {
    mebibytes(bytes as u64)
}
