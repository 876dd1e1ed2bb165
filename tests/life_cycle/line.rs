//! `--wait`: first come, first served.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStderr, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use genv_tests::process::signal;
use genv_tests::shell::Account;
use rustix::process::Signal;

use crate::members::listed;
use crate::running::genv;

/// A job that has devices until its input ends, or waits for them.
struct Job {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Job {
    fn start(account: &Account, words: &[&str]) -> Result<Self> {
        let mut command = genv(account, &["exec"])?;
        command
            .args(words)
            .args(["--", "sh", "-c", "echo runs; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let said = BufReader::new(child.stderr.take().context("no stderr")?);
        Ok(Self { child, said })
    }

    /// What it says next.
    fn says(&mut self) -> Result<String> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        Ok(line)
    }

    /// Waits until it has its devices.
    fn runs(&mut self) -> Result<()> {
        let out = self.child.stdout.as_mut().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        ensure!(line == "runs\n", "it ended: {}", self.says()?);
        Ok(())
    }

    fn ends(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.code() == Some(1));
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const NEXT: &str = "genv: waiting for devices: next in line. Ctrl-C leaves the line\n";
const SECOND: &str = "genv: waiting for devices: one before you. Ctrl-C leaves the line\n";

/// Two of four devices are taken, one waits for all, and another one behind for one, which is free.
fn line(account: &Account) -> Result<(Job, Job, Job)> {
    let mut holder = Job::start(account, &["--gpus=2"])?;
    holder.runs()?;
    let mut large = Job::start(account, &["--gpus=4", "--wait"])?;
    ensure!(large.says()? == NEXT);
    let mut small = Job::start(account, &["--gpus=1", "--wait"])?;
    ensure!(small.says()? == SECOND);
    Ok((holder, large, small))
}

#[test]
fn who_came_first_is_served_first() -> Result<()> {
    let account = Account::new()?;
    let (holder, mut large, mut small) = line(&account)?;
    // Nobody passes those who wait, unless the devices are to be shared.
    let refused = genv(&account, &["exec", "--gpus=1", "--", "true"])?.output()?;
    ensure!(refused.status.code() == Some(4), "{refused:?}");
    let said = String::from_utf8(refused.stderr)?;
    ensure!(said.contains("others wait in line"), "{said}");
    let shares = genv(&account, &["exec", "-o", "--gpus=1", "--", "true"])?.output()?;
    ensure!(shares.status.success(), "{shares:?}");
    holder.ends()?;
    large.runs()?;
    // All devices are taken until the first ends.
    let environments = listed(&account, "envs.json", "envs")?;
    ensure!(environments.len() == 1, "{environments:?}");
    large.ends()?;
    small.runs()?;
    small.ends()?;
    ensure!(listed(&account, "genv-members.json", "queue")?.is_empty());
    Ok(())
}

#[test]
fn who_dies_is_interrupted_or_stops_is_passed() -> Result<()> {
    for (way, ends_by) in [
        (Signal::KILL, Some(9)),
        (Signal::INT, Some(2)),
        (Signal::TSTP, None),
    ] {
        let account = Account::new()?;
        let (_holder, mut large, mut small) = line(&account)?;
        signal(large.child.id(), way)?;
        if let Some(number) = ends_by {
            let ended = large.child.wait()?;
            ensure!(ended.signal() == Some(number), "{way:?}: {ended}");
        }
        small.runs()?;
        if ends_by.is_some() {
            ensure!(listed(&account, "genv-members.json", "queue")?.is_empty());
        } else {
            // It goes on at the end of the line.
            signal(large.child.id(), Signal::CONT)?;
            while listed(&account, "genv-members.json", "queue")?.is_empty() {
                thread::yield_now();
            }
        }
    }
    Ok(())
}

#[test]
fn who_waits_for_too_long_leaves_the_line() -> Result<()> {
    let account = Account::new()?;
    let mut holder = Job::start(&account, &["--gpus=4"])?;
    holder.runs()?;
    let late = genv(&account, &["exec", "--gpus=1", "--wait=1ms", "--", "true"])?.output()?;
    ensure!(late.status.code() == Some(6), "{late:?}");
    ensure!(listed(&account, "genv-members.json", "queue")?.is_empty());
    Ok(())
}

#[test]
fn waiting_writes_nothing() -> Result<()> {
    let account = Account::new()?;
    let (_holder, _large, _small) = line(&account)?;
    let files = ["envs.json", "devices.json", "genv-members.json"];
    let versions = || {
        let version = |name| std::fs::metadata(account.state().join(name)).map(|it| it.ino());
        files.map(|name| version(name).ok())
    };
    let before = versions();
    // Several looks of both.
    thread::sleep(Duration::from_secs(1));
    ensure!(versions() == before);
    Ok(())
}
