//! genv-exporter as a process: started on a free port, waited for, asked, stopped.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};

use crate::http::{self, Response, free_port};
use crate::metrics::Scrape;
use crate::nvml_sim::Simulation;
use crate::patience::{self, until};
use crate::process::{self, Running};

#[derive(Debug)]
pub struct Setup {
    folder: tempfile::TempDir,
    command: Command,
    flags: Vec<String>,
    port: u16,
    guarded: bool,
}

#[derive(Debug)]
pub struct Exporter {
    child: Running,
    port: u16,
    folder: tempfile::TempDir,
}

impl Setup {
    /// An exporter on a free port of 127.0.0.1, at an interval of 100 ms, with a state directory that does
    /// not exist, told nothing else.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let mut command = Command::new(process::program("genv-exporter")?);
        for name in ["GENV_DEVICES", "GENV_NVML_LIBRARY", "GENV_SCENARIO"] {
            command.env_remove(name);
        }
        command.env("GENV_TMPDIR", folder.path().join("state"));
        let listen = format!("--web.listen-address=127.0.0.1:{port}");
        Ok(Self { folder, command, flags: vec![listen, "--interval=100ms".to_owned()], port, guarded: false })
    }

    pub fn with_driver(simulation: &Simulation) -> Result<Self> {
        Ok(Self::new()?
            .flag("--gpu.source=nvml")
            .env("GENV_NVML_LIBRARY", simulation.library())
            .env("GENV_SCENARIO", simulation.scenario()))
    }

    pub fn with_scenario(simulation: &Simulation) -> Result<Self> {
        let scenario = format!("--gpu.scenario={}", simulation.scenario().display());
        Ok(Self::new()?.flag("--gpu.source=simulated").flag(&scenario))
    }

    /// Adds a flag, `--name=value`, in place of an earlier one of that name.
    pub fn flag(mut self, flag: &str) -> Self {
        let name = |flag: &str| flag.split('=').next().map(str::to_owned);
        self.flags.retain(|earlier| name(earlier) != name(flag));
        self.flags.push(flag.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn program(mut self, program: &Path) -> Self {
        let mut copy = Command::new(program);
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => copy.env(name, value),
                None => copy.env_remove(name),
            };
        }
        self.command = copy;
        self
    }

    pub fn user(mut self, uid: u32) -> Self {
        self.command.uid(uid).gid(uid);
        self
    }

    /// Says that the exporter speaks TLS or wants a password, so that readiness is an open port.
    pub fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn start(mut self) -> Result<Exporter> {
        let log = File::create(self.folder.path().join("exporter.log"))?;
        self.command.args(&self.flags).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = Running::spawn(&mut self.command)?;
        let mut exporter = Exporter { child, port: self.port, folder: self.folder };
        until("genv-exporter is ready", || {
            if let Some(status) = exporter.child.try_wait()? {
                bail!("it ended with {status}");
            }
            Ok(if self.guarded {
                http::connect(self.port).is_ok()
            } else {
                matches!(http::get(self.port, "/-/ready"), Ok(answer) if answer.status == 200)
            })
        })
        .with_context(|| exporter.log())?;
        Ok(exporter)
    }

    /// Runs it to its end, which a wrong flag should bring about at once: exit code, and what it said.
    pub fn fails(mut self) -> Result<(Option<i32>, String)> {
        let output = self.command.args(&self.flags).stdin(Stdio::null()).output()?;
        Ok((output.status.code(), String::from_utf8(output.stderr)?))
    }
}

impl Exporter {
    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("exporter.log")).unwrap_or_default()
    }

    pub fn get(&self, path: &str) -> Result<Response> {
        http::get(self.port, path).with_context(|| self.log())
    }

    pub fn scrape(&self) -> Result<Scrape> {
        let response = self.get("/metrics")?;
        ensure!(response.status == 200, "/metrics answered {}", response.status);
        Scrape::parse(&response.text()?)
    }

    pub fn wait_for(&self, what: &str, holds: impl Fn(&Scrape) -> bool) -> Result<Scrape> {
        let mut scrape = Scrape::default();
        until(what, || {
            scrape = self.scrape()?;
            Ok(holds(&scrape))
        })
        .with_context(|| {
            let health = scrape.all("genv_collector_success", &[]);
            format!("collectors {health:?}; log: {}", self.log())
        })?;
        Ok(scrape)
    }

    /// The first scrape of values that `collector` began to read after this call.
    pub fn next_collection(&self, collector: &str) -> Result<Scrape> {
        // One that ends right now began before.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)? + Duration::from_millis(50);
        self.wait_for("the next collection", |scrape| {
            scrape
                .value("genv_collector_timestamp_seconds", &[("collector", collector)])
                .is_ok_and(|timestamp| timestamp > now.as_secs_f64())
        })
    }

    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal_terminate()?;
        patience::ended(&mut self.child).with_context(|| self.log())
    }

    pub fn signal_terminate(&self) -> Result<()> {
        process::signal(self.pid(), rustix::process::Signal::TERM)
    }
}
