//! What the kernel says of the programs under test.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::patience;
use crate::tools::build_folder;

/// The path of a program of this workspace: beside the test program, where cargo builds it.
pub fn program(name: &str) -> Result<PathBuf> {
    let built = build_folder().join(name);
    ensure!(
        built.exists(),
        "{} does not exist: run scripts/test, which builds it, or cargo build --workspace",
        built.display()
    );
    Ok(built)
}

/// Copies a program of this workspace to where everybody may run it. Another process writes the copy: one
/// that this process had open, a child which another test starts meanwhile would keep busy.
pub fn copy_program(name: &str, to: &Path) -> Result<()> {
    let mut install = Command::new("install");
    let install = install.arg("--mode=755").arg(program(name)?).arg(to);
    let status = install.status().context("install, of the package coreutils")?;
    ensure!(status.success(), "install ended with {status}");
    Ok(())
}

/// A folder that every user can read, with the program `genv`, and with a state directory, `state`, that every user can
/// write.
pub fn shared_folder() -> Result<TempDir> {
    let mode = fs::Permissions::from_mode;
    let folder = tempfile::Builder::new().permissions(mode(0o755)).tempdir()?;
    copy_program("genv", &folder.path().join("genv"))?;
    let state = folder.path().join("state");
    fs::create_dir(&state)?;
    fs::set_permissions(state, mode(0o777))?;
    Ok(folder)
}

/// Writes a program for `sh` or another interpreter, which may replace one that is just started. As [`copy_program`] does
/// it, by another process.
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    let mut sh = Command::new("sh");
    sh.args(["-c", r#"printf %s "$1" >"$2.new" && chmod 755 "$2.new" && mv -f "$2.new" "$2""#, "sh", text]);
    let status = sh.arg(path).status()?;
    ensure!(status.success(), "{}: sh ended with {status}", path.display());
    Ok(())
}

pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(pid)?).context("pid 0")?;
    Ok(kill_process(pid, signal)?)
}

pub fn resident_bytes(pid: u32) -> Result<u64> {
    status_kibibytes(pid, "VmRSS:").map(|kibibytes| kibibytes * 1024)
}

/// Resident memory that is not backed by a file, in bytes: `RssAnon` of `/proc/PID/status`. Unlike the
/// whole it does not depend on how much of a program's text happens to be in memory.
pub fn anonymous_bytes(pid: u32) -> Result<u64> {
    status_kibibytes(pid, "RssAnon:").map(|kibibytes| kibibytes * 1024)
}

/// Resident memory that no other process maps, in bytes: `Private_Clean` and `Private_Dirty` of `/proc/PID/smaps_rollup`.
pub fn private_bytes(pid: u32) -> Result<u64> {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let private =
        all.lines().filter_map(|line| line.strip_prefix("Private_")).filter(|line| !line.starts_with("Hugetlb"));
    let kibibytes = private.map(|line| Ok(line.split_whitespace().nth(1).context("no amount")?.parse::<u64>()?));
    Ok(kibibytes.sum::<Result<u64>>()? * 1024)
}

/// CPU time of a process so far, in seconds, with threads and children that have ended, and of all that it started and
/// that still runs. Of each process it is cut off to a clock tick.
pub fn tree_cpu_seconds(pid: u32) -> Result<f64> {
    let mut ticks = 0;
    for field in 14..=17 {
        ticks += stat_field(pid, field)?;
    }
    let mut seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    for child in children(pid) {
        // One that ended meanwhile counts when it is waited for.
        seconds += tree_cpu_seconds(child).unwrap_or_default();
    }
    Ok(seconds)
}

/// The children of all threads of a process that have not been waited for.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let listed = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    listed
        .flat_map(|pids| {
            let pids = pids.split_whitespace().map(str::parse);
            pids.filter_map(Result::ok).collect::<Vec<u32>>()
        })
        .collect()
}

/// A field of `/proc/PID/stat`, numbered as in proc(5).
fn stat_field(pid: u32, number: usize) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("no name in stat")?;
    let field = after_name.split_whitespace().nth(number - 3);
    Ok(field.context("too few fields in stat")?.parse()?)
}

fn status_kibibytes(pid: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.with_context(|| format!("no {field}"))?.parse()?)
}

/// Whether a process has ever started another one than these, by the kernel's own account: it has such a child now, or the
/// page faults of children that ended were added to its own (`cminflt`, field 11 of `/proc/PID/stat`; no
/// program starts without any). That account is not kept for a process which ignores SIGCHLD: an error.
pub fn has_started_a_process_besides(these: &[u32], pid: u32) -> Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.context("no SigIgn")?.trim(), 16)?;
    let child_signal = 1 << (Signal::CHILD.as_raw() - 1);
    ensure!(ignored & child_signal == 0, "{pid} ignores SIGCHLD");

    Ok(stat_field(pid, 11)? > 0 || children(pid).iter().any(|child| !these.contains(child)))
}

/// A program that was started; it is killed with the value.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.spawn();
        let child = child.with_context(|| format!("starting {}", command.get_program().display()));
        Ok(Self(child?))
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Gives a process that names an environment but no state directory one that no test has. Commands of genv find the jobs
/// of an environment among all processes of its user, so those of a test that runs at the same time, too.
pub(crate) fn keep_from_other_tests(command: &mut Command) {
    let sets = |variable: &str| {
        let mut variables = command.get_envs();
        variables.any(|(name, value)| name == variable && value.is_some())
    };
    if sets("GENV_ENVIRONMENT_ID") && !sets("GENV_TMPDIR") {
        command.env("GENV_TMPDIR", "/nonexistent");
    }
}

/// A process that is no child of the test, such as a job whose shell has ended; it is killed with the value.
#[derive(Debug)]
pub struct Orphan(pub u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = signal(self.0, Signal::KILL);
    }
}

#[derive(Debug)]
pub struct Sleeper(Running);

impl Sleeper {
    /// Starts one with these environment variables. One that names an environment names a state directory too:
    /// `/nonexistent` unless `GENV_TMPDIR` is given.
    pub fn start(environment: &[(&str, &str)]) -> Result<Self> {
        let mut command = Command::new("sleep");
        command.env_clear().envs(environment.iter().copied());
        Self::spawn(command.arg("1000000"))
    }

    pub fn spawn(command: &mut Command) -> Result<Self> {
        keep_from_other_tests(command);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(Running::spawn(quiet)?))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn ended(&mut self) -> Result<ExitStatus> {
        patience::ended(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            while !has_started_a_process_besides(&[], busy.id()).unwrap() {
                std::thread::yield_now();
            }
        }
        assert!(!has_started_a_process_besides(&[], quiet.id()).unwrap());
        assert!(!has_started_a_process_besides(&children(waits.id()), waits.id()).unwrap());
        for child in [&mut quiet, &mut waits, &mut waited] {
            child.stdin.take();
            child.wait().unwrap();
        }
    }
}
