//! A host that is asked through its stdin.

use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use genv_core::model::{SentChanges, Snapshot};
use genv_remote::protocol::{Hello, Reply};
use genv_tests::patience::{Lines, ended};
use genv_tests::process::{Running, program};
use serde_json::Value;
use tempfile::TempDir;

/// A machine with two simulated devices and a state directory of its own.
pub(crate) fn machine(program: &Path, folder: &TempDir) -> Command {
    let mut command = Command::new(program);
    for name in ["GENV_SCENARIO", "GENV_NVML_LIBRARY"] {
        command.env_remove(name);
    }
    command.arg("remote-serve").env("GENV_DEVICES", "2").env("GENV_TMPDIR", folder.path().join("state"));
    command
}

pub(crate) struct Serving {
    child: Running,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) output: Option<Lines>,
    complaints: Lines,
    pub(crate) hello: Hello,
    _folder: TempDir,
}

impl Serving {
    pub(crate) fn start(flags: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = machine(&program("genv")?, &folder);
        command.args(flags);
        Self::of(command, folder)
    }

    pub(crate) fn of(mut command: Command, folder: TempDir) -> Result<Self> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Running::spawn(piped.stderr(Stdio::piped()))?;
        let output = Lines::of(child.stdout.take().context("no stdout")?);
        Ok(Self {
            hello: serde_json::from_str(&output.next_line()?)?,
            input: child.stdin.take(),
            output: Some(output),
            complaints: Lines::of(child.stderr.take().context("no stderr")?),
            child,
            _folder: folder,
        })
    }

    pub(crate) fn send(&mut self, line: &[u8]) -> Result<()> {
        let input = self.input.as_mut().context("no stdin")?;
        input.write_all(line)?;
        Ok(input.write_all(b"\n")?)
    }

    pub(crate) fn ask(&mut self, request: Value) -> Result<()> {
        self.send(request.to_string().as_bytes())
    }

    pub(crate) fn reply(&self) -> Result<Reply> {
        let output = self.output.as_ref().context("no stdout")?;
        Ok(serde_json::from_str(&output.next_line()?)?)
    }

    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        match self.reply()? {
            Reply::Snapshot { snapshot } => Ok(*snapshot),
            other => bail!("{other:?}"),
        }
    }

    pub(crate) fn changes(&self) -> Result<SentChanges> {
        match self.reply()? {
            Reply::Changes { changes } => Ok(changes),
            other => bail!("{other:?}"),
        }
    }

    pub(crate) fn error(&self) -> Result<(Option<u64>, String)> {
        match self.reply()? {
            Reply::Error { id, message } => Ok((id, message)),
            other => bail!("{other:?}"),
        }
    }

    /// Waits for its end, which is none by an error, and returns what it said to people.
    pub(crate) fn end(&mut self) -> Result<String> {
        let status = ended(&mut self.child)?;
        let complaints: Vec<String> = std::iter::from_fn(|| self.complaints.next_line().ok()).collect();
        let complaints = complaints.join("\n");
        ensure!(status.success(), "it ended with {status}: {complaints}");
        Ok(complaints)
    }
}
