//! Waiting for programs, and never for ever: a test that waits in vain fails and says for what.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// How long anything may take to happen before a test is given up: much longer than it takes, also on a machine that is busy
/// with other tests.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The variable with which commands of genv wait for the driver about as long as tests do, also where another source would be
/// enough for them. A test of a driver that never answers sets [`NO_PATIENCE`].
pub const DRIVER_PATIENCE: (&str, &str) = ("GENV_DRIVER_TIMEOUT", "100s");

/// The variable with which commands of genv give up the driver at once.
pub const NO_PATIENCE: (&str, &str) = ("GENV_DRIVER_TIMEOUT", "100ms");

/// How long a program may take to its end: a whole script may, on a machine that is busy with other tests.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(300);

const POLL: Duration = Duration::from_millis(5);

pub fn until(what: &str, is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    within(PATIENCE, what, is_so)
}

fn within(patience: Duration, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !is_so().with_context(|| what.to_owned())? {
        ensure!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(POLL);
    }
    Ok(())
}

/// Waits until a program has ended; one that does not is killed.
pub fn ended(child: &mut Child) -> Result<ExitStatus> {
    let mut status = None;
    let waited = within(END_PATIENCE, "a program has ended", || {
        status = child.try_wait()?;
        Ok(status.is_some())
    });
    match status {
        Some(status) => Ok(status),
        None => {
            child.kill()?;
            child.wait()?;
            waited?;
            bail!("it was killed")
        }
    }
}

pub fn output(command: &mut Command) -> Result<Output> {
    let command = command.stdin(Stdio::null());
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = started.spawn().with_context(|| format!("starting {command:?}"))?;
    let stdout = all(child.stdout.take().context("no stdout")?);
    let stderr = all(child.stderr.take().context("no stderr")?);
    let status = ended(&mut child).with_context(|| format!("{command:?}"))?;
    let read = |of: &Receiver<Vec<u8>>| {
        let read = of.recv_timeout(PATIENCE);
        read.with_context(|| format!("{command:?} left its output open"))
    };
    Ok(Output { status, stdout: read(&stdout)?, stderr: read(&stderr)? })
}

fn all(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut content = Vec::new();
        // What came before an error is what there is; the test may have gone away.
        let _ = from.read_to_end(&mut content);
        let _ = sender.send(content);
    });
    receiver
}

#[derive(Debug)]
pub struct Lines(Receiver<String>);

impl Lines {
    pub fn of(from: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        thread::spawn(move || {
            for line in BufReader::new(from).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(receiver)
    }

    pub fn come(&self) -> impl Iterator<Item = String> {
        self.0.try_iter()
    }

    pub fn next_line(&self) -> Result<String> {
        let line = self.0.recv_timeout(PATIENCE);
        line.context("waited in vain for a line")
    }
}
