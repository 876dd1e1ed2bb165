//! The programs of this checkout beside those of another one, measured in turn.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::terminal::DirectTerminal;
use genv_tests::tools::build_folder;

use crate::load::{DEVICES, FEW_PROCESSES, LOAD, Load};
use crate::measured::{INTERVAL, Task, beyond_library, cpu_with_children};
use crate::remote::{self, Fleet};
use crate::scrape::Client;
use crate::table::{Table, mebibytes, median, milliseconds};

const ROUNDS: usize = 5;
const STARTS: usize = 21;

/// The number of hosts, unless `GENV_BENCH_HOSTS` is one.
const REMOTE_HOSTS: usize = 32;
/// The rounds of what takes a minute.
const LONG_ROUNDS: usize = 3;

/// The time of one measurement at an interval of 100 ms.
const WATCHED: Duration = Duration::from_secs(5);
/// The same at an interval of a second.
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
    fn of(other: &Path) -> Self {
        let there = Build(other.join("target/dist"));
        let table = Table::new(&["what", "there", "here", "here ÷ there", "lowest to highest"]);
        Self { there, here: Build(build_folder()), table }
    }

    /// Adds a row for each value that `measure` returns.
    fn rows<const N: usize>(
        &mut self,
        rounds: usize,
        whats: [&str; N],
        shown: [fn(f64) -> String; N],
        measure: impl Fn(&Build) -> Result<[f64; N]>,
    ) -> Result<()> {
        let mut measured = Vec::new();
        for round in 0..rounds {
            // The builds take turns at being first.
            measured.push(match round % 2 {
                0 => [measure(&self.there)?, measure(&self.here)?],
                _ => {
                    let here = measure(&self.here)?;
                    [measure(&self.there)?, here]
                }
            });
        }
        for (at, what) in whats.iter().enumerate() {
            let [there, here] = [0, 1].map(|build| measured.iter().map(|of| of[build][at]).collect::<Vec<_>>());
            let ratios = there.iter().zip(&here).map(|(there, here)| here / there).collect::<Vec<_>>();
            let lowest = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = ratios.iter().copied().fold(0.0, f64::max);
            let (ratio, spread) = (format!("{:.2}", median(ratios)), format!("{lowest:.2} to {highest:.2}"));
            let [there, here] = [there, here].map(|values| shown[at](median(values)));
            self.table.row(&[what, &there, &here, &ratio, &spread]);
        }
        Ok(())
    }
}

/// The exporter that reads many hosts.
pub(crate) fn remote_table(other: &Path) -> Result<Table> {
    let mut comparison = Comparison::of(other);
    let hosts = remote::number_asked_for()?.unwrap_or(REMOTE_HOSTS);
    comparison.rows(
        LONG_ROUNDS,
        [
            &format!("CPU per host and cycle, {hosts} hosts"),
            "time until all are up",
            "CPU until all are up, per host",
            "resident memory",
        ],
        [milliseconds, |seconds| format!("{seconds:.1} s"), milliseconds, mebibytes_of],
        |build| {
            let measured = Fleet::start(hosts, &build.0)?.measure()?;
            Ok([
                measured.here_seconds,
                measured.until_up.as_secs_f64(),
                measured.starting_seconds,
                measured.resident_bytes as f64,
            ])
        },
    )?;
    Ok(comparison.table)
}

/// Checks that another checkout has these programs.
pub(crate) fn require_programs(other: &Path, names: &[&str]) -> Result<()> {
    let there = Build(other.join("target/dist"));
    let missing: Vec<_> = names.iter().filter(|name| !there.program(name).exists()).collect();
    ensure!(
        missing.is_empty(),
        "{} lacks {missing:?}: build them in that checkout with the profile dist",
        there.0.display()
    );
    Ok(())
}

/// The enforcer, by the benchmark of each checkout: its own code makes the plan.
pub(crate) fn enforcer_table(other: &Path) -> Result<Table> {
    let mut comparison = Comparison::of(other);
    let whats = ["CPU of one plan", "CPU of noting what was seen", "CPU of one cycle on a busy host"];
    let load = OnceCell::new();
    comparison.rows(LONG_ROUNDS, whats, [milliseconds; 3], |build| {
        let program = build.program("genv-bench");
        let mut enforcer = Command::new(&program);
        // The programs beside it.
        enforcer.arg("enforcer").env_remove("GENV_TEST_BUILD").stderr(Stdio::inherit());
        let output = enforcer.output().with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(output.status.success(), "{} enforcer failed", program.display());
        let tables = String::from_utf8(output.stdout)?;
        let row = |what: &str| {
            let mut rows = tables.lines().filter_map(|row| row.strip_prefix("| ")?.split_once(" | "));
            let (title, values) = rows.find(|(title, _)| title.starts_with(what))?;
            let (measured, _) = values.split_once(" ms")?;
            Some((title, measured.parse::<f64>().ok()? / 1e3))
        };
        let [Some(plan), Some(noting), Some(cycle)] = whats.map(row) else {
            bail!("{} enforcer printed other tables: {tables}", program.display());
        };
        let titles = format!("{}; {}", plan.0, cycle.0);
        let first = load.get_or_init(|| titles.clone());
        ensure!(titles == *first, "the two benchmarks measure different loads: {first}, and {titles}");
        Ok([plan.1, noting.1, cycle.1])
    })?;
    Ok(comparison.table)
}

/// The programs of one machine.
pub(crate) fn table(other: &Path) -> Result<Table> {
    let mut comparison = Comparison::of(other);
    let load = Load::start(false)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    load.write_state(&state)?;
    let few = Load::few()?;
    let library = Task::Library.run(&load.simulation)?.bytes;

    let calm = format!("{DEVICES} devices, {FEW_PROCESSES} processes");
    comparison.rows(
        ROUNDS,
        [&format!("CPU of one collection, not scraped: {LOAD}"), "the same, scraped once for each, gzip"],
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
    let what = format!("resident memory, with the reader, beyond one copy of the library: {LOAD}");
    comparison.rows(ROUNDS, [&what], [mebibytes_of], |build| {
        Ok([beyond_library(build.busy(&load, &state)?.pid(), library)? as f64])
    })?;
    let what = format!("`genv devices` on a terminal, wall time: {LOAD}");
    comparison.rows(STARTS, [&what], [milliseconds], |build| {
        let genv = load.genv(&build.program("genv"), "devices", &state);
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
        load.wait_until_seen_by(&exporter)?;
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
        for scrape in 1.. {
            scraped = client.fetch();
            if began.elapsed() >= WATCHED || scraped.is_err() {
                break;
            }
            sleep((INTERVAL * scrape).saturating_sub(began.elapsed()));
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
