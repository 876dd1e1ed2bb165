//! Programs that change the state.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::patience::Lines;
use crate::process::Running;
use crate::tools::build_folder;

pub struct StateClient {
    child: Running,
}

impl StateClient {
    pub fn start(directory: &Path, eid: &str, count: u32, memory: Option<&str>) -> Result<Self> {
        let mut command = Command::new(build_folder().join("state_client"));
        command
            .arg(directory)
            .args([eid, &count.to_string()])
            .args(memory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = Running::spawn(&mut command)?;
        Ok(Self { child })
    }

    /// Waits for what it prints: indices, or why it has none.
    pub fn answer(&mut self) -> Result<String> {
        let output = self.child.stdout.take().context("it was asked already")?;
        let line = Lines::of(output).next_line();
        line.context("state_client says nothing")
    }
}
