//! `genv-enforcer notify`: the service behind the socket of notices. It takes one, and has the administrator's command deliver
//! it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _, stdin};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::commands::print;
use crate::flags::NotifyFlags;
use crate::tell::notifier::{Answer, Facts};

/// Bytes of a notice: it fits a pipe, so that writing it to a command waits for nobody.
const MOST_BYTES: u64 = 60 << 10;

/// How often the command is tried, and how long it is waited in between.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// How often it is seen whether the command has ended.
const POLL: Duration = Duration::from_millis(20);

/// Reads a notice from stdin, runs the command with it, and prints whether it was accepted.
pub(crate) fn notify(flags: &NotifyFlags) -> anyhow::Result<()> {
    let notice = read()?;
    let answer = match deliver(&flags.command, &notice, flags.deadline) {
        Ok(()) => Answer { accepted: true, reason: String::new() },
        Err(error) => Answer { accepted: false, reason: format!("{error:#}") },
    };
    print(&format!("{}\n", serde_json::to_string(&answer)?))
}

/// One line that is a notice.
fn read() -> anyhow::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut input = BufReader::new(stdin().lock().take(MOST_BYTES + 1));
    input.read_until(b'\n', &mut line).context("cannot read the notice")?;
    if line.len() as u64 > MOST_BYTES {
        bail!("cannot take the notice: it is longer than {} KiB", MOST_BYTES >> 10);
    }
    let facts = serde_json::from_slice::<Facts>(&line).ok();
    if facts.is_none_or(|facts| facts.version == 0) {
        bail!(
            "cannot take the notice: it is none. Notices come from genv-enforcer, by the socket of genv-notify.socket"
        );
    }
    Ok(line)
}

/// Has the command accept a notice, in some tries.
fn deliver(command: &Path, notice: &[u8], deadline: Duration) -> anyhow::Result<()> {
    let mut tries = 1;
    loop {
        match attempt(command, notice, deadline) {
            Err(_) if tries < TRIES => {
                tries += 1;
                thread::sleep(BETWEEN_TRIES);
            }
            done => return done,
        }
    }
}

fn attempt(command: &Path, notice: &[u8], deadline: Duration) -> anyhow::Result<()> {
    let path = command.display();
    let mut child = Command::new(command)
        .stdin(Stdio::piped())
        // What the answer is written to is not the command's.
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {path}"))?;
    let mut input = child.stdin.take();
    let written = input.as_mut().map(|input| input.write_all(notice));
    drop(input);
    // A command that reads nothing may accept all the same.
    drop(written);
    let until = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the command")? {
            if status.success() {
                return Ok(());
            }
            bail!("{path} ended with {status}");
        }
        if Instant::now() >= until {
            end(&mut child);
            bail!("{path} did not end within {} s, and was killed", deadline.as_secs());
        }
        thread::sleep(POLL);
    }
}

/// Kills a command with all that it started.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}
