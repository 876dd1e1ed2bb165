//! genv-exporter and the exporter of genv 1.4.3, side by side on one load.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::peer::Peer;
use genv_tests::process::{cpu_seconds, program, resident_bytes};

use crate::load::{Change, ENVIRONMENTS, Load, PROCESSES};
use crate::scrape::{Scrapes, scrapes};
use crate::table::{Table, mebibytes, milliseconds};

/// How long each is watched; both collect once a second.
const WATCHED: Duration = Duration::from_secs(20);
const SCRAPED: Duration = Duration::from_secs(3);

const RATE: &str = "scrapes per second";

struct Measured {
    cpu_seconds: f64,
    programs: f64,
    bytes: u64,
    scrapes: Scrapes,
}

/// Measures both.
pub(crate) fn table() -> Result<Table> {
    let load = Load::start(Change::Nobody)?;
    let peer = Peer::new(&load.simulation)?;
    load.write_state(&peer.state_directory())?;

    let ours = {
        let exporter = Setup::with_driver(&load.simulation)?
            .env("GENV_TMPDIR", peer.state_directory())
            .flag("--interval=1s")
            .start()?;
        exporter
            .wait_for("the load", |scrape| scrape.value("genv_environments", &[]).ok() == Some(ENVIRONMENTS as f64))?;
        let mut traced = load.simulation.command(&program("genv-exporter")?);
        traced
            .env("GENV_TMPDIR", peer.state_directory())
            .env("GENV_NVML_LIBRARY", load.simulation.library())
            .args(["--interval=1s", "--gpu.source=nvml"])
            .arg(format!("--web.listen-address=127.0.0.1:{}", genv_tests::http::free_port()?));
        measure(exporter.pid(), exporter.port(), &traced)?
    };
    let theirs = {
        let monitor = peer.monitor()?;
        monitor.wait_for("genv monitor sees the load", |scrape| {
            scrape.value("genv_processes_total", &[]).ok() == Some(PROCESSES as f64)
        })?;
        measure(monitor.pid(), monitor.port(), &peer.monitor_command(genv_tests::http::free_port()?))?
    };

    let mut table = Table::new(&["what", "genv-exporter", "genv 1.4.3", "times better"]);
    let mut row = |what: &str, ours: f64, theirs: f64, show: &dyn Fn(f64) -> String| {
        // Less is better of costs, and more of the rate.
        let (worse, better) = if what == RATE { (theirs, ours) } else { (ours, theirs) };
        let times = if worse > 0.0 { format!("{:.1}", better / worse) } else { String::new() };
        table.row(&[&what, &show(ours), &show(theirs), &times]);
    };
    row(
        "CPU per second, collecting once a second, with programs started",
        ours.cpu_seconds,
        theirs.cpu_seconds,
        &milliseconds,
    );
    row("programs started per second", ours.programs, theirs.programs, &|value| format!("{value:.1}"));
    row("resident memory", ours.bytes as f64, theirs.bytes as f64, &|bytes| mebibytes(bytes as u64));
    row("scrape, median", ours.scrapes.median.as_secs_f64(), theirs.scrapes.median.as_secs_f64(), &milliseconds);
    row(
        "scrape, 99th percentile",
        ours.scrapes.percentile_99.as_secs_f64(),
        theirs.scrapes.percentile_99.as_secs_f64(),
        &milliseconds,
    );
    row(RATE, ours.scrapes.per_second, theirs.scrapes.per_second, &|value| format!("{value:.0}"));
    Ok(table)
}

fn measure(pid: u32, port: u16, traced: &Command) -> Result<Measured> {
    let before = cpu_seconds(pid)?;
    std::thread::sleep(WATCHED);
    let cpu = cpu_seconds(pid)? - before;
    Ok(Measured {
        cpu_seconds: cpu / WATCHED.as_secs_f64(),
        bytes: resident_bytes(pid)?,
        scrapes: scrapes(port, SCRAPED)?,
        programs: programs_per_second(traced)?,
    })
}

/// Runs the program again under strace, and counts what is executed after its first seconds.
fn programs_per_second(program: &Command) -> Result<f64> {
    const START: Duration = Duration::from_secs(5);
    const COUNTED: Duration = Duration::from_secs(10);
    let folder = tempfile::tempdir()?;
    let trace = folder.path().join("trace");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "--seccomp-bpf", "-e", "trace=execve,execveat", "-e", "status=successful", "-o"])
        .arg(&trace)
        .arg(program.get_program())
        .args(program.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    let mut strace = strace.spawn().context("starting strace: install the package strace")?;
    std::thread::sleep(START);
    let before = executed(&trace)?;
    ensure!(before > 0, "strace saw nothing");
    std::thread::sleep(COUNTED);
    let counted = executed(&trace)? - before;
    // strace ends with the program that it started, and not before.
    let traced = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", strace.id()))?;
    for pid in traced.split_whitespace() {
        genv_tests::process::signal(pid.parse()?, rustix::process::Signal::KILL)?;
    }
    strace.wait()?;
    Ok(counted as f64 / COUNTED.as_secs_f64())
}

fn executed(trace: &Path) -> Result<usize> {
    let trace = std::fs::read_to_string(trace)?;
    Ok(trace.lines().filter(|line| line.contains("execve")).count())
}
