//! What the kernel says of the programs under test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::tools::build_folder;

/// The path of a program of this workspace: beside the test program, where cargo builds it.
///
/// # Errors
/// It was not built.
pub fn program(name: &str) -> Result<PathBuf> {
    let built = build_folder().join(name);
    ensure!(
        built.exists(),
        "{} does not exist: run scripts/test, which builds it, or cargo build --workspace",
        built.display()
    );
    Ok(built)
}

/// Sends a signal.
///
/// # Errors
/// There is no such process, or it may not be signalled.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    Ok(kill_process(pid, signal)?)
}

/// Resident memory in bytes: `VmRSS` of `/proc/PID/status`.
///
/// # Errors
/// There is no such process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    status_kibibytes(pid, "VmRSS:").map(|kibibytes| kibibytes * 1024)
}

/// Resident memory that is not backed by a file, in bytes: `RssAnon` of `/proc/PID/status`. Unlike the
/// whole it does not depend on how much of a program's text happens to be in memory.
///
/// # Errors
/// There is no such process.
pub fn anonymous_bytes(pid: u32) -> Result<u64> {
    status_kibibytes(pid, "RssAnon:").map(|kibibytes| kibibytes * 1024)
}

fn status_kibibytes(pid: u32, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("no {field}"))?.parse()?)
}

/// Whether a process has ever started another one, by the kernel's own account: it has a child now, or the
/// page faults of children that ended were added to its own (`cminflt`, field 11 of `/proc/PID/stat`; no
/// program starts without any). That account is not kept for a process which ignores SIGCHLD: an error.
///
/// # Errors
/// There is no such process, or it ignores SIGCHLD.
pub fn has_started_a_process(pid: u32) -> Result<bool> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.context("no SigIgn")?.trim(), 16)?;
    let child_signal = 1 << (Signal::CHILD.as_raw() - 1);
    ensure!(ignored & child_signal == 0, "{pid} ignores SIGCHLD");

    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("no name in stat")?;
    let faults_of_children: u64 = after_name
        .split_whitespace()
        .nth(8)
        .context("no cminflt")?
        .parse()?;
    if faults_of_children > 0 {
        return Ok(true);
    }
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while the list is read.
        let children = std::fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        if !children.trim().is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A process that sleeps, to be seen using a device; it ends with the value.
#[derive(Debug)]
pub struct Sleeper(Child);

impl Sleeper {
    /// Starts one with exactly these environment variables.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new("sleep");
        command.env_clear().envs(environment.iter().copied());
        Self::spawn(command.arg("1000000"))
    }

    /// Starts one from a command that was prepared otherwise.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(quiet.spawn().context("starting a process")?))
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that runs `script`, and then reads a line that never comes; it ends with its input.
    fn shell(script: &str) -> Child {
        let mut shell = Command::new("sh");
        let child = shell.args(["-c", &format!("{script}; read line")]);
        child.stdin(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_process_that_ran_a_program_is_told_from_one_that_did_not() {
        let mut quiet = shell("true");
        let mut waits = shell("cat");
        let mut waited = shell("env true");
        for busy in [&waits, &waited] {
            while !has_started_a_process(busy.id()).unwrap() {
                std::thread::yield_now();
            }
        }
        assert!(!has_started_a_process(quiet.id()).unwrap());
        for child in [&mut quiet, &mut waits, &mut waited] {
            child.stdin.take();
            child.wait().unwrap();
        }
    }
}
