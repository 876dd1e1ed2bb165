//! genv-enforcer as a process: started on a free port, waited for, asked, told, stopped.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::http::{self, Response, free_port};
use crate::metrics::Scrape;
use crate::patience::{self, DRIVER_PATIENCE, until};
use crate::process::{self, Running};
pub use crate::victim::{
    as_victim, copy_of_sleep, ends, is_alive, process_of_another, sleeper, sleeper_of, target, terminate, victim,
};

/// A configuration that enforces these rules (a YAML list), also against a single user.
pub fn enforcing(rules: &str) -> String {
    format!("version: 1\nmode: enforce\ninterval: 100ms\nbreaker: {{share_of_users: 1}}\nrules:\n{rules}")
}

/// A configuration of one rule, which ends processes outside of environments, with these keys of its times.
pub fn ends_outsiders(mode: &str, when: &str) -> String {
    format!(
        "version: 1\nmode: {mode}\nbreaker: {{share_of_users: 1}}\n\
         rules:\n- {{kind: non-env-processes, action: terminate, {when}}}\n"
    )
}

#[derive(Debug)]
pub struct Setup {
    folder: tempfile::TempDir,
    port: u16,
    interval: &'static str,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Enforcer {
    child: Running,
    setup: Setup,
}

impl Setup {
    /// An enforcer of this scenario with these rules (YAML), an interval of 100 ms and a state directory of genv that does
    /// not exist.
    pub fn new(scenario: &str, config: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let setup = Self { folder, port: free_port()?, interval: "100ms", flags: Vec::new(), variables: Vec::new() };
        fs::create_dir(setup.state_directory())?;
        // Whatever the umask.
        fs::set_permissions(setup.state_directory(), fs::Permissions::from_mode(0o755))?;
        setup.rewrite_scenario(scenario)?;
        setup.rewrite_config(config)?;
        Ok(setup)
    }

    pub fn interval(mut self, interval: &'static str) -> Self {
        self.interval = interval;
        self
    }

    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn state_directory(&self) -> PathBuf {
        self.folder.path().join("enforcer")
    }

    pub fn genv_directory(&self) -> PathBuf {
        self.folder.path().join("genv")
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("enforcer.yaml")
    }

    pub fn config_flag(&self) -> String {
        format!("--config={}", self.config().display())
    }

    /// Replaces the configuration at once.
    pub fn rewrite_config(&self, text: &str) -> Result<()> {
        self.replace("enforcer.yaml", text)
    }

    pub fn rewrite_scenario(&self, text: &str) -> Result<()> {
        self.replace("scenario.yaml", text)
    }

    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let new = self.folder.path().join(format!("{name}.new"));
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.folder.path().join(name))?)
    }

    pub fn command(&self, words: &[&str]) -> Result<Command> {
        self.program("genv-enforcer", words)
    }

    /// A command of a program of this workspace in these surroundings.
    pub fn program(&self, name: &str, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(process::program(name)?);
        for name in ["GENV_DEVICES", "GENV_NVML_LIBRARY", "NOTIFY_SOCKET", "JOURNAL_STREAM", "GENV_TERMINATE_PROCESSES"]
        {
            command.env_remove(name);
        }
        command
            .args(words)
            .env("GENV_TMPDIR", self.genv_directory())
            .env("GENV_SCENARIO", self.folder.path().join("scenario.yaml"))
            .env("STATE_DIRECTORY", self.state_directory())
            .env("TZ", "UTC")
            .envs([DRIVER_PATIENCE])
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// A bash with genv set up, in these surroundings and no others, which runs a line. Every user may run its genv, which
    /// is a copy: the repository may lie in a folder of root's.
    pub fn shell(&self, line: &str) -> Result<Command> {
        let genv = self.program("genv", &[])?;
        let programs = self.folder().join("bin");
        if !programs.exists() {
            fs::create_dir(&programs)?;
            process::copy_program("genv", &programs.join("genv"))?;
        }
        let mut command = Command::new("bash");
        command
            .env_clear()
            .envs(genv.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
            .env("HOME", self.folder())
            .current_dir(self.folder())
            .args(["-c", &format!("eval \"$(genv shell --init)\"; {line}")]);
        Ok(command)
    }

    pub fn output(&self, words: &[&str]) -> Result<Output> {
        patience::output(&mut self.command(words)?)
    }

    /// As [`Setup::output`], which must succeed; what it printed.
    pub fn said(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?} failed: {stderr}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// As [`Setup::output`], which must end with this code; what it complained of.
    pub fn ended(&self, words: &[&str], code: i32) -> Result<String> {
        let output = self.output(words)?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(code), "{words:?}: {}: {stderr}", output.status);
        Ok(stderr)
    }

    /// Starts the daemon and waits until a cycle has ended.
    pub fn start(self) -> Result<Enforcer> {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"))?;
        let listen = format!("--web.listen-address=127.0.0.1:{}", self.port);
        let interval = format!("--interval={}", self.interval);
        let mut command = self.command(&["run", &listen, &interval, &self.config_flag()])?;
        command.args(&self.flags).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let chosen = |flag: &String| flag.starts_with("--host=") || flag.starts_with("--gpu.source=");
        if !self.flags.iter().any(chosen) {
            command.arg("--gpu.source=simulated");
        }
        let child = Running::spawn(&mut command)?;
        let mut enforcer = Enforcer { child, setup: self };
        let port = enforcer.setup.port;
        until("a first cycle has ended", || {
            if let Some(status) = enforcer.child.try_wait()? {
                anyhow::bail!("genv-enforcer ended with {status}: {}", enforcer.log());
            }
            Ok(matches!(http::get(port, "/metrics"), Ok(answer) if answer.status == 200))
        })
        .with_context(|| enforcer.log())?;
        Ok(enforcer)
    }
}

impl Enforcer {
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    pub const fn port(&self) -> u16 {
        self.setup.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.setup.folder().join("log")).unwrap_or_default()
    }

    pub fn audit(&self) -> Result<Vec<Value>> {
        let path = self.setup.state_directory().join("audit.jsonl");
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
        lines.collect()
    }

    pub fn status(&self) -> Result<Value> {
        let said = self.setup.said(&["status", "--json"])?;
        Ok(serde_json::from_str(&said)?)
    }

    pub fn get(&self, path: &str) -> Result<Response> {
        http::get(self.setup.port, path).with_context(|| self.log())
    }

    pub fn scrape(&self) -> Result<Scrape> {
        Scrape::parse(&self.get("/metrics")?.text()?)
    }

    pub fn wait_for_status(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut status = Value::Null;
        until(what, || {
            status = self.status()?;
            Ok(is_so(&status))
        })
        .with_context(|| format!("{status:#}; log: {}", self.log()))?;
        Ok(status)
    }

    pub fn wait_for_metrics(&self, what: &str, is_so: impl Fn(&Scrape) -> bool) -> Result<Scrape> {
        let mut scrape = Scrape::default();
        until(what, || {
            scrape = self.scrape()?;
            Ok(is_so(&scrape))
        })
        .with_context(|| self.log())?;
        Ok(scrape)
    }

    /// Waits until it has had facts of each host, and so remembers the records that are there now. Cycles also end without
    /// the facts of a host that has not answered yet.
    pub fn wait_for_facts(&self) -> Result<()> {
        self.wait_for_metrics("it has fresh facts", |scrape| {
            let blind = scrape.all("genv_enforcer_blind", &[]);
            !blind.is_empty() && blind.iter().all(|(_, value)| *value == 0.0)
        })
        .map(drop)
    }

    /// Waits until so many more cycles have ended, each seen.
    pub fn wait_for_cycles(&self, cycles: usize) -> Result<()> {
        let when = |status: &Value| status["updated_timestamp_seconds"].as_f64();
        for _ in 0..cycles {
            let last = when(&self.status()?);
            self.wait_for_status("a cycle ends", |status| when(status) > last)?;
        }
        Ok(())
    }

    /// Asks it to end with SIGTERM, and waits; what it was started with can be started again.
    pub fn terminate(mut self) -> Result<(ExitStatus, Setup)> {
        process::signal(self.pid(), Signal::TERM)?;
        let status = patience::ended(&mut self.child)?;
        Ok((status, self.setup))
    }

    /// Kills it, so that it can do nothing more; what it was started with can be started again.
    pub fn kill(mut self) -> Result<Setup> {
        self.child.kill()?;
        patience::ended(&mut self.child)?;
        Ok(self.setup)
    }
}
