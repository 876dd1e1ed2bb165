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
use crate::scrape::Client;
use crate::table::{Table, mebibytes, median, milliseconds};

const ROUNDS: usize = 5;

/// The time of one measurement at an interval of 100 ms, and of one at a second.
const WATCHED: Duration = Duration::from_secs(5);
const WATCHED_SLOWLY: Duration = Duration::from_secs(15);

const COLLECTIONS: &str = "genv_exporter_collection_duration_seconds_count";

/// The folder of a checkout's programs.
struct Build(PathBuf);

pub(crate) fn table(other: &Path) -> Result<Table> {
    let there = Build(other.join("target/dist"));
    ensure!(
        there.program("genv-exporter").exists() && there.program("genv").exists(),
        "{} has no programs: build them in that checkout with the profile dist",
        there.0.display()
    );
    let here = Build(build_folder());
    let load = Load::start(false)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    load.write_state(&state)?;
    let few = Load::few()?;
    let library = Task::Library.run(&load.simulation)?.bytes;

    let busy = format!("{DEVICES} devices, {ENVIRONMENTS} environments, {PROCESSES} processes on all devices");
    let calm = format!("{DEVICES} devices, {FEW_PROCESSES} processes");
    let mut table = Table::new(&["what", "there", "here", "here ÷ there", "lowest to highest"]);
    let mut rows = |whats: &[String], shown: &dyn Fn(f64) -> String, measure: &dyn Fn(&Build) -> Result<Vec<f64>>| {
        let rounds = (0..ROUNDS).map(|_| Ok([measure(&there)?, measure(&here)?])).collect::<Result<Vec<_>>>()?;
        for (at, what) in whats.iter().enumerate() {
            let [before, now] = [0, 1].map(|build| median(rounds.iter().map(|it| it[build][at]).collect()));
            let mut ratios: Vec<f64> = rounds.iter().map(|[before, now]| now[at] / before[at]).collect();
            ratios.sort_by(f64::total_cmp);
            let ratio = format!("{:.2}", median(ratios.clone()));
            let spread = format!("{:.2} to {:.2}", ratios[0], ratios[ROUNDS - 1]);
            table.row(&[what, &shown(before), &shown(now), &ratio, &spread]);
        }
        anyhow::Ok(())
    };
    let seconds = |whats: &[&str], of: &str| whats.iter().map(|what| format!("{what}: {of}")).collect::<Vec<_>>();
    rows(
        &seconds(&["CPU of one collection, not scraped", "the same, scraped once, gzip"], &busy),
        &milliseconds,
        &|build| collections(&build.busy(&load, &state)?),
    )?;
    rows(&seconds(&["CPU of an exporter a second, --interval=1s"], &calm), &milliseconds, &|build| {
        let exporter = build.exporter(&few)?.flag("--interval=1s").start()?;
        exporter.wait_for("the load", |scrape| {
            scrape.all("genv_processes", &[]).iter().map(|(_, number)| number).sum::<f64>() == FEW_PROCESSES as f64
        })?;
        let (_, cpu) = watched(&exporter, || sleep(WATCHED_SLOWLY))?;
        Ok(vec![cpu / WATCHED_SLOWLY.as_secs_f64()])
    })?;
    rows(
        &seconds(&["resident memory of an exporter, with its reader, beyond one copy of the library"], &busy),
        &|bytes| mebibytes(bytes as u64),
        &|build| {
            let exporter = build.busy(&load, &state)?;
            let mut beyond = resident_bytes(exporter.pid())?;
            let readers = children(exporter.pid());
            for reader in &readers {
                beyond += private_bytes(*reader)?;
            }
            Ok(vec![beyond.saturating_sub(library * readers.len().max(1) as u64) as f64])
        },
    )?;
    rows(&seconds(&["`genv devices` on a terminal, wall time"], &busy), &milliseconds, &|build| {
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
        Ok(vec![began.elapsed().as_secs_f64()])
    })?;
    Ok(table)
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
fn collections(exporter: &Exporter) -> Result<Vec<f64>> {
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
    Ok(vec![cpu_alone / alone, cpu / with_scrapes])
}

/// The collections of an exporter while something is done, and its CPU with that of its reader.
fn watched(exporter: &Exporter, act: impl FnOnce()) -> Result<(f64, f64)> {
    let collections = || exporter.scrape()?.value(COLLECTIONS, &[("collector", "gpu")]);
    let (before, cpu) = (collections()?, cpu_with_children(exporter.pid())?);
    act();
    let cpu = cpu_with_children(exporter.pid())? - cpu;
    Ok((collections()? - before, cpu))
}
