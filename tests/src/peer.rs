//! The real genv 1.4.3 from PyPI, with the real nvidia-smi on a simulated driver.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::http::{self, free_port};
use crate::metrics::Scrape;
use crate::nvml_sim::Simulation;
use crate::patience::until;
use crate::process::Running;
use crate::{shell, tools};

/// genv 1.4.3 on a simulated machine, with a state directory of its own.
#[derive(Debug)]
pub struct Peer {
    folder: tempfile::TempDir,
    venv: PathBuf,
    library_folder: PathBuf,
    scenario: PathBuf,
}

impl Peer {
    /// Prepares it; the state directory comes with the first command.
    pub fn new(simulation: &Simulation) -> Result<Self> {
        let build = tools::build_folder();
        let mut places = build.ancestors().map(|folder| folder.join("peer/venv"));
        let venv = places
            .find(|venv| venv.join("bin/genv").exists())
            .context("there is no target/peer/venv: run scripts/peer-venv, which installs genv 1.4.3 from PyPI")?;
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("bin"))?;
        // Of the generations it is this one that cuts used memory off to whole MiB, as all do with
        // processes' memory; 550 rounds it up.
        symlink(tools::program("nvidia-smi-535", "nvidia-smi"), folder.path().join("bin/nvidia-smi"))?;
        Ok(Self { folder, venv, library_folder: simulation.library_folder(), scenario: simulation.scenario() })
    }

    pub fn state_directory(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let (own, venv) = (self.folder.path().join("bin"), self.venv.join("bin"));
        let mut command = Command::new(program);
        command
            .env("PATH", format!("{}:{}:{path}", own.display(), venv.display()))
            .env("LD_LIBRARY_PATH", &self.library_folder)
            .env("GENV_SCENARIO", &self.scenario)
            .env("GENV_TMPDIR", self.state_directory())
            .env_remove("GENV_ENVIRONMENT_ID");
        command
    }

    pub fn genv(&self, arguments: &[&str]) -> Result<String> {
        said(self.command(&self.venv.join("bin/genv").to_string_lossy()).args(arguments))
    }

    /// A program that finds this project's genv instead, in the same state directory and on the same driver.
    pub fn our_command(&self, program: &str) -> Result<Command> {
        let path = std::env::var("PATH").unwrap_or_default();
        let ours = shell::installation()?.join("bin");
        let own = self.folder.path().join("bin");
        let mut command = self.command(program);
        // Where there is a scenario genv would simulate by itself, without the driver.
        command
            .env("PATH", format!("{}:{}:{path}", ours.display(), own.display()))
            .env("GENV_NVML_LIBRARY", self.library_folder.join("libnvidia-ml.so.1"));
        Ok(command)
    }

    pub fn our_genv(&self, arguments: &[&str]) -> Result<String> {
        let program = shell::installation()?.join("bin/genv");
        said(self.our_command(&program.to_string_lossy())?.args(arguments))
    }

    pub fn shell(&self) -> Result<Shell> {
        Shell::start(self.command("bash"))
    }

    pub fn monitor(&self) -> Result<Monitor> {
        let port = free_port()?;
        let mut command = self.command(&self.venv.join("bin/genv").to_string_lossy());
        command
            .args(["monitor", "--interval", "1", "--port", &port.to_string()])
            .arg("--config-dir")
            .arg(self.folder.path().join("metrics"));
        Monitor::start(&mut command, port, self.folder.path())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn said(genv: &mut Command) -> Result<String> {
    let output = genv.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{genv:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// A shell that runs line after line; it ends with the value.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(mut bash: Command) -> Result<Self> {
        let mut child =
            bash.args(["--norc", "-s"]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut shell = Self { child, input, output };
        shell.run(r#"eval "$(genv shell --init)""#)?;
        Ok(shell)
    }

    pub fn run(&mut self, line: &str) -> Result<String> {
        const END: &str = "=== ended with ";
        writeln!(self.input, "{{ {line}\n}} </dev/null\necho '{END}'$?")?;
        let mut printed = String::new();
        loop {
            let mut next = String::new();
            let bytes = self.output.read_line(&mut next)?;
            ensure!(bytes > 0, "the shell ended at {line:?}");
            if let Some(code) = next.strip_prefix(END) {
                ensure!(code.trim() == "0", "{line:?} ended with {code}");
                return Ok(printed);
            }
            printed.push_str(&next);
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with all that it started, so that nothing of it is run any more.
    pub fn kill(&mut self) -> Result<()> {
        let group = Pid::from_raw(i32::try_from(self.child.id())?).context("pid 0")?;
        kill_process_group(group, Signal::KILL)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.kill();
        }
    }
}

#[derive(Debug)]
pub struct Monitor {
    child: Running,
    port: u16,
}

impl Monitor {
    /// Runs a command that serves metrics on this port, until it answers; its log is in `folder`.
    pub fn start(command: &mut Command, port: u16, folder: &Path) -> Result<Self> {
        let path = folder.join("monitor.log");
        let log = File::create(&path)?;
        let command = command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let child = Running::spawn(command.stderr(log))?;
        until("genv monitor answers", || Ok(http::get(port, "/metrics").is_ok()))
            .with_context(|| std::fs::read_to_string(&path).unwrap_or_default())?;
        Ok(Self { child, port })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn wait_for(&self, what: &str, holds: impl Fn(&Scrape) -> bool) -> Result<Scrape> {
        let mut scrape = Scrape::default();
        until(what, || {
            scrape = self.scrape()?;
            Ok(holds(&scrape))
        })
        .with_context(|| format!("{scrape:?}"))?;
        Ok(scrape)
    }

    /// The families of genv that it serves, without those of Python and of the process.
    pub fn scrape(&self) -> Result<Scrape> {
        let mut scrape = Scrape::parse(&http::get(self.port, "/metrics")?.text()?)?;
        scrape.samples.retain(|(name, _), _| name.starts_with("genv_"));
        scrape.types.retain(|name, _| name.starts_with("genv_"));
        Ok(scrape)
    }
}
