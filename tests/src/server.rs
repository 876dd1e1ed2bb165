//! A server that is not ours and runs for a test.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::http;
use crate::patience::until;
use crate::process::Running;

pub(crate) struct Server {
    child: Running,
    /// Holds its log, and what else it writes.
    folder: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(command: &mut Command, port: u16, folder: tempfile::TempDir) -> Result<Self> {
        let log = File::create(folder.path().join("log"))?;
        let command = command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let child = Running::spawn(command.stderr(log))?;
        let mut server = Self { child, folder };
        until("it is ready", || {
            ensure!(server.child.try_wait()?.is_none(), "it has ended");
            Ok(matches!(http::get(port, "/-/ready"), Ok(answer) if answer.status == 200))
        })
        .with_context(|| format!("{}: {}", command.get_program().display(), server.log()))?;
        Ok(server)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}
