//! A server that is not ours and runs for a test.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::exporter::PATIENCE;
use crate::http;
use crate::process::Running;

/// A server of the Prometheus project; it ends with the value.
#[derive(Debug)]
pub(crate) struct Server {
    child: Running,
    /// Holds its log, and what else it writes.
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server that listens on `port` of 127.0.0.1, and waits until it is ready.
    ///
    /// # Errors
    /// It ended, or never became ready.
    pub(crate) fn start(
        command: &mut Command,
        port: u16,
        folder: tempfile::TempDir,
    ) -> Result<Self> {
        let log = File::create(folder.path().join("log"))?;
        let command = command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let child = Running::spawn(command.stderr(log))?;
        let mut server = Self { child, folder };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if matches!(http::get(port, "/-/ready"), Ok(answer) if answer.status == 200) {
                return Ok(server);
            }
            let ended = server.child.try_wait()?;
            ensure!(
                ended.is_none() && Instant::now() < deadline,
                "{} never became ready: {}",
                command.get_program().display(),
                server.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// All that it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}
