//! `genv-enforcer notify`: the service behind the socket for notices. It reads one notice, and runs the administrator's command
//! that delivers the notice.

use std::io::{BufRead as _, BufReader, Read as _, Write as _, stdin};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::flags::NotifyFlags;
use crate::notices::notifier::{NotifierMessage, NotifierReply};
use crate::output::print;

/// The largest notice in bytes: it fits a pipe, so that the write to the command does not block.
const MAX_BYTES: u64 = 60 << 10;

/// The number of tries, and the time between two tries.
const TRIES: u32 = 3;
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// The time between two checks whether the command has ended.
const POLL: Duration = Duration::from_millis(20);

/// Reads a notice from stdin, runs the command with it, and prints whether it was accepted.
pub(crate) fn notify(flags: &NotifyFlags) -> anyhow::Result<()> {
    let notice = read()?;
    let reply = match deliver(&flags.command, &notice, flags.deadline) {
        Ok(()) => NotifierReply { accepted: true, reason: String::new() },
        Err(error) => NotifierReply { accepted: false, reason: format!("{error:#}") },
    };
    print(&format!("{}\n", serde_json::to_string(&reply)?))
}

/// Reads a notice, which is one line.
fn read() -> anyhow::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut input = BufReader::new(stdin().lock().take(MAX_BYTES + 1));
    input.read_until(b'\n', &mut line).context("cannot read the notice")?;
    if line.len() as u64 > MAX_BYTES {
        bail!("cannot take the notice: it is longer than {} KiB", MAX_BYTES >> 10);
    }
    let message = serde_json::from_slice::<NotifierMessage>(&line).ok();
    if message.is_none_or(|message| message.version == 0) {
        bail!(
            "cannot take the notice: stdin has no notice. Notices come from genv-enforcer, by the socket of genv-notify.socket"
        );
    }
    Ok(line)
}

/// Runs the command until it accepts the notice, at most [`TRIES`] times.
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
        // stdout carries the reply to the enforcer.
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {path}"))?;
    let mut input = child.stdin.take();
    let written = input.as_mut().map(|input| input.write_all(notice));
    drop(input);
    // A command may accept a notice without reading all of it.
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

/// Kills a command and its children.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}
