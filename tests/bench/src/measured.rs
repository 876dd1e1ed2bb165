//! Measurements that need a process of their own: this program starts itself again for each, so that
//! none is touched by what another left behind, and reads one line of JSON from it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_core::collect::{self, CollectOptions};
use genv_simulator::{GpuSourceKind, SourceOptions};
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::{children, private_bytes, resident_bytes};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::floor::{Driver, Files};

/// Between two collections.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
const CYCLES: u32 = 50;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// CPU of a collection with this state directory, and of its reader.
    Collection(PathBuf),
    /// The same without a reader: this process calls the driver.
    CollectionInProcess(PathBuf),
    /// CPU of the same calls, and reads of these processes.
    Floor(PathBuf, Vec<u32>),
    /// Memory that the library takes when it is initialized.
    Library,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// CPU of one cycle, all threads.
    pub(crate) cpu_seconds: f64,
    /// Devices, processes and environments that were seen, so that an empty measurement is noticed.
    pub(crate) devices: usize,
    pub(crate) processes: usize,
    pub(crate) environments: usize,
    pub(crate) bytes: u64,
}

impl Task {
    /// Runs this in a process of its own.
    pub(crate) fn run(&self, simulation: &Simulation) -> Result<Outcome> {
        let output = Command::new(std::env::current_exe()?)
            .arg("--measure")
            .arg(simulation.library())
            .arg(serde_json::to_string(self)?)
            .env("GENV_SCENARIO", simulation.scenario())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "measuring ended with {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Measures in this process.
    pub(crate) fn measure(self, library: &Path) -> Result<Outcome> {
        match self {
            Self::Collection(state_directory) => collection(library, state_directory, true),
            Self::CollectionInProcess(state_directory) => collection(library, state_directory, false),
            Self::Floor(state_directory, pids) => floor(library, &state_directory, pids),
            Self::Library => {
                let before = resident_bytes(std::process::id())?;
                let _driver = Driver::open(library)?;
                Ok(Outcome { bytes: resident_bytes(std::process::id())?.saturating_sub(before), ..Outcome::default() })
            }
        }
    }
}

/// CPU so far of all threads of a process and of its children, to the nanosecond, with threads that have ended.
pub(crate) fn cpu_with_children(process: u32) -> Result<f64> {
    let mut seconds = 0.0;
    for process in children(process).into_iter().chain([process]) {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(process)?))?;
        seconds += Duration::from(clock.now()?).as_secs_f64();
    }
    Ok(seconds)
}

/// Resident memory of an exporter and its reader beyond the library: what the reader shares with the exporter counts once, and
/// so does the library of an exporter that calls it itself.
pub(crate) fn beyond_library(exporter: u32, library_bytes: u64) -> Result<u64> {
    let readers = children(exporter);
    let mut bytes = resident_bytes(exporter)?;
    for reader in &readers {
        bytes += private_bytes(*reader)?;
    }
    Ok(bytes.saturating_sub(library_bytes * readers.len().max(1) as u64))
}

fn collection(library: &Path, state_directory: PathBuf, in_reader: bool) -> Result<Outcome> {
    let options = SourceOptions {
        gpu: GpuSourceKind::Nvml,
        nvml_library: Some(library.to_owned()),
        state_directory: Some(state_directory),
        in_reader,
        ..SourceOptions::default()
    };
    let stream = collect::spawn(options.open()?, CollectOptions { interval: INTERVAL, ..CollectOptions::default() })?;
    let own = std::process::id();
    // The first cycles open what later ones use.
    std::thread::sleep(INTERVAL * 5);
    let (sequence, cpu) = (stream.latest().sequence, cpu_with_children(own)?);
    std::thread::sleep(INTERVAL * CYCLES);
    let cpu = cpu_with_children(own)? - cpu;
    let last = stream.latest();
    let cycles = last.sequence - sequence;
    ensure!(cycles + 2 >= u64::from(CYCLES), "only {cycles} of {CYCLES} cycles were done in time");
    let host = last.hosts.first().context("no host")?;
    let snapshot = host.snapshot.as_ref().context("no snapshot")?;
    for (collector, status) in &snapshot.collectors {
        ensure!(status.success, "{collector} failed: {:?}", status.error);
    }
    Ok(Outcome {
        cpu_seconds: cpu / cycles as f64,
        devices: snapshot.devices.len(),
        processes: snapshot.processes.len(),
        environments: snapshot.environments.len(),
        ..Outcome::default()
    })
}

fn floor(library: &Path, state_directory: &Path, pids: Vec<u32>) -> Result<Outcome> {
    let mut driver = Driver::open(library)?;
    let mut files = Files::of(pids, state_directory)?;
    let mut buffer = Vec::new();
    let (own, began) = (std::process::id(), Instant::now());
    let mut listed = 0;
    let mut cpu = 0.0;
    for cycle in 0..CYCLES + 5 {
        if cycle == 5 {
            cpu = cpu_with_children(own)?;
        }
        listed = driver.sweep()?;
        let bytes = files.read(cycle, &mut buffer)?;
        ensure!(bytes > 0, "nothing was read");
        let next = INTERVAL * (cycle + 1);
        std::thread::sleep(next.saturating_sub(began.elapsed()));
    }
    Ok(Outcome {
        cpu_seconds: (cpu_with_children(own)? - cpu) / f64::from(CYCLES),
        processes: listed,
        ..Outcome::default()
    })
}
