//! The daemon on the busy host.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use genv_core::enforcement::{ENFORCEMENT_FILE, Enforcement};
use genv_tests::enforcer::Setup;
use genv_tests::patience::until;
use genv_tests::process::Running;
use rustix::param::clock_ticks_per_second;

use super::busy::Busy;
use super::{CYCLES, CYCLES_BEFORE, INTERVAL};

/// A running `genv-enforcer run`; it ends with the value.
pub(super) struct Daemon(Running);

/// CPU of one cycle.
pub(super) struct CycleCpu {
    pub(super) collecting_seconds: f64,
    pub(super) own_seconds: f64,
}

impl Daemon {
    /// Starts it, and waits until its windows are full.
    pub(super) fn start(setup: &Setup, busy: &Busy) -> Result<Self> {
        let log = fs::File::create(setup.folder().join("log"))?;
        let config = format!("--config={}", setup.config().display());
        let library = format!("--gpu.nvml-library={}", busy.simulation.library().display());
        let words =
            ["run", "--web.listen-address=127.0.0.1:0", "--interval=100ms", "--gpu.source=nvml", &config, &library];
        let mut command = setup.command(&words)?;
        command
            .env("GENV_SCENARIO", busy.simulation.scenario())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let daemon = Self(Running::spawn(&mut command)?);
        let log = || fs::read_to_string(setup.folder().join("log")).unwrap_or_default();
        until("the enforcer saw the whole load", || Ok(setup.state_directory().join(ENFORCEMENT_FILE).exists()))
            .with_context(log)?;
        sleep(INTERVAL * CYCLES_BEFORE as u32);
        Ok(daemon)
    }

    /// Its published status.
    pub(super) fn status(&self, setup: &Setup) -> Result<Enforcement> {
        let status = Enforcement::read(&setup.state_directory());
        status.map_err(anyhow::Error::msg)?.context("no status")
    }

    /// Measures over some cycles, each of which replaces the status.
    pub(super) fn measure(&mut self, setup: &Setup) -> Result<CycleCpu> {
        let status = setup.state_directory().join(ENFORCEMENT_FILE);
        let written = || -> Result<_> {
            let file = fs::metadata(&status)?;
            Ok((file.ino(), file.mtime(), file.mtime_nsec()))
        };
        let before = self.cpu_seconds()?;
        let deadline = Instant::now() + INTERVAL * CYCLES as u32 * 10;
        let (mut last, mut cycles) = (written()?, 0);
        while cycles < CYCLES {
            ensure!(Instant::now() < deadline, "only {cycles} of {CYCLES} cycles were done in time");
            sleep(INTERVAL / 20);
            let now = written()?;
            cycles += u64::from(now != last);
            last = now;
        }
        let after = self.cpu_seconds()?;
        let part = |before: f64, after: f64| (after - before) / cycles as f64;
        Ok(CycleCpu { collecting_seconds: part(before.0, after.0), own_seconds: part(before.1, after.1) })
    }

    /// CPU so far of the threads that collect, those that have ended included, and of all others.
    fn cpu_seconds(&self) -> Result<(f64, f64)> {
        let mut own = 0.0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let thread = thread?.path();
            let name = fs::read_to_string(thread.join("comm"))?;
            let used = fs::read_to_string(thread.join("schedstat"));
            if ["genv-enforcer", "cycle", "groups", "serve"].contains(&name.trim_end()) {
                let nanoseconds = used?;
                let nanoseconds = nanoseconds.split(' ').next().context("no CPU is told")?;
                own += nanoseconds.parse::<f64>()? / 1e9;
            }
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let (_, fields) = stat.rsplit_once(')').context("no name")?;
        // utime and stime, fields 14 and 15 of proc_pid_stat(5).
        let fields = fields.split_ascii_whitespace().skip(11).take(2);
        let ticks: u64 = fields.map(str::parse::<u64>).sum::<Result<_, _>>()?;
        let collecting = ticks as f64 / clock_ticks_per_second() as f64 - own;
        ensure!(own > 0.0 && collecting > 0.0, "no CPU was used: does the kernel count it?");
        Ok((collecting, own))
    }
}
