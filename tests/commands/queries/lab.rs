//! A machine with a state directory of its own, about which `genv` is asked.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use genv_tests::patience::{DRIVER_PATIENCE, output};
use genv_tests::process::program;
use genv_tests::state::{self, CREATED_SECONDS};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Lab {
    folder: TempDir,
    scenario: Option<PathBuf>,
    variables: Vec<(String, String)>,
}

pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Lab {
    /// A machine whose driver does not load.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()?, scenario: None, variables: Vec::new() })
    }

    pub(crate) fn simulated(host: &str) -> Result<Self> {
        let mut lab = Self::new()?;
        lab.scenario = Some(lab.folder.path().join("scenario.yaml"));
        lab.simulate(host)?;
        Ok(lab)
    }

    pub(crate) fn simulate(&self, host: &str) -> Result<()> {
        let path = self.scenario.as_ref().context("it has no simulated GPUs")?;
        Ok(fs::write(path, format!("version: 1\nhosts:\n- {host}\n"))?)
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub(crate) fn write(&self, environments: &[Value], devices: &[Value]) -> Result<()> {
        fs::create_dir_all(self.state())?;
        fs::set_permissions(self.state(), fs::Permissions::from_mode(0o777))?;
        state::write(&self.state(), 0, &[])?;
        state::edit(&self.state(), |it| {
            it["environments"] = json!(environments);
            it["devices"] = json!(devices);
            Ok(())
        })?;
        Ok(fs::set_permissions(self.state().join(state::FILE), fs::Permissions::from_mode(0o666))?)
    }

    pub(crate) fn command(&self, program: impl Into<PathBuf>) -> Command {
        let mut command = Command::new(program.into());
        for name in ["GENV_ENVIRONMENT_ID", "GENV_CALLER", "GENV_DEVICES", "GENV_SCENARIO", "NO_COLOR"] {
            command.env_remove(name);
        }
        match &self.scenario {
            Some(scenario) => command.env("GENV_SCENARIO", scenario),
            None => command.env("GENV_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1"),
        };
        command
            .env("GENV_TMPDIR", self.state())
            .env("HOME", self.folder.path())
            .env("TZ", "UTC")
            .env("TERM", "xterm")
            .envs([DRIVER_PATIENCE])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.path());
        command
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<Said> {
        let output = output(self.command(program("genv")?).args(arguments))?;
        Ok(Said {
            code: output.status.code().context("ended by a signal")?,
            stdout: String::from_utf8(output.stdout)?,
            stderr: String::from_utf8(output.stderr)?,
        })
    }

    /// The text that a terminal shows of a line of sh, by script(1).
    pub(crate) fn on_a_terminal(&self, line: &str) -> Result<String> {
        let genv = program("genv")?;
        let folders = genv.parent().into_iter().map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(folders.chain(std::env::split_paths(&path)))?;
        let mut script = self.command("script");
        script.args(["--quiet", "--return", "--command", line, "/dev/null"]).env("PATH", path).env("SHELL", "/bin/sh");
        Ok(String::from_utf8(output(&mut script)?.stdout)?)
    }

    pub(crate) fn genv(&self, line: &str) -> Result<String> {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let said = self.ask(&arguments)?;
        ensure!(said.code == 0, "genv {line}: {} {}", said.code, said.stderr);
        ensure!(said.stderr.is_empty(), "genv {line}: {}", said.stderr);
        Ok(said.stdout)
    }
}

/// An environment that lives as long as the test.
pub(crate) fn environment(eid: &str, name: &Value) -> Value {
    json!({
        "eid": eid, "uid": 1000, "username": "alice", "created_timestamp_seconds": CREATED_SECONDS, "name": name,
        "members": [{"pid": std::process::id()}],
    })
}

/// As [`environment`], of the user who runs the tests, who may change it.
pub(crate) fn own_environment(eid: &str, name: &Value) -> Value {
    let mut own = environment(eid, name);
    own["uid"] = json!(rustix::process::getuid().as_raw());
    own
}

/// A device of 40 GiB, with environments and what they claim.
pub(crate) fn device(index: u32, attachments: &[(&str, Option<&str>)]) -> Value {
    let attachment = |(eid, memory): &(&str, Option<&str>)| -> Value {
        json!({"eid": eid, "gpu_memory": memory, "attached_timestamp_seconds": CREATED_SECONDS})
    };
    let attachments: Vec<Value> = attachments.iter().map(attachment).collect();
    json!({"index": index, "total_memory": "40960mi", "attachments": attachments})
}
