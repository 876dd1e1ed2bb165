//! Runs the real program and changes its output.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::destination::Destination;
use crate::outcome::{FAILED, ProgramOutcome, Refusal};
use crate::program::RealProgram;

/// Finds the environment's processes among the given ones. `None`: they are unknown, and the output stays unchanged.
pub(crate) trait ProcessOwnership: FnMut(&[u32]) -> Option<HashSet<u32>> {}

impl<F: FnMut(&[u32]) -> Option<HashSet<u32>>> ProcessOwnership for F {}

/// A change of an output, line by line.
pub(crate) trait OutputFilter {
    /// Takes the next line, with its line break, and appends the finished text to `out`.
    fn line(&mut self, line: &[u8], out: &mut Vec<u8>);

    /// Whether this line occurs only in an answer, and not in an error.
    fn is_answer(&self, line: &[u8]) -> bool;

    /// Appends the rest at the end of the output.
    fn end(&mut self, out: &mut Vec<u8>);
}

/// Runs the real program, with its output changed by the filter if there is one, and returns its end.
pub(crate) fn run(
    real: &RealProgram,
    mut command: Command,
    output: Option<(&mut dyn OutputFilter, Destination)>,
) -> Result<ProgramOutcome, Refusal> {
    let signals = caught_signals();
    if output.is_some() {
        command.stdout(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|error| real.cannot_run(&error))?;
    if let Some(signals) = signals {
        hand_on(signals, &child);
    }
    let copied = child.stdout.take().zip(output).map(|(stdout, (filter, mut to))| {
        let unasked = copy(stdout, filter, &mut to);
        (unasked, to)
    });
    let status = child.wait().map_err(|error| real.cannot_run(&error))?;
    if let Some((unasked, mut to)) = copied {
        let name = to.name();
        let written = unasked.and_then(|unasked| {
            if !status.success() {
                to = Destination::Stdout;
            }
            to.write_all(&unasked)?;
            to.flush()
        });
        match written {
            // After the reader has left, the pipe is closed, so that the real program ends as on a closed pipe.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                return Err(Refusal::new(
                    FAILED,
                    format!("cannot write to {name}: {error}: see that there is space, or name another file with -f"),
                ));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(status.into())
}

/// Catches the signals that end a program. Signals that the caller ignores, as nohup does, stay ignored.
fn caught_signals() -> Option<Signals> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let ignored = u64::from_str_radix(ignored.trim(), 16).ok()?;
    let ending = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    Signals::new(ending.iter().filter(|signal| ignored & (1 << (**signal - 1)) == 0)).ok()
}

/// Forwards every signal to the real program, until the shim ends after it.
fn hand_on(mut signals: Signals, child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(child) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    thread::spawn(move || {
        for signal in signals.forever() {
            if let Some(signal) = Signal::from_named_raw(signal) {
                // A terminal sends its signals to both, so the program may have ended already.
                let _ = pidfd_send_signal(&child, signal);
            }
        }
    });
}

/// Copies what a filter makes of an output. What the real program prints before it answers, such as a refusal, is
/// nothing for a file: if there is never an answer that comes back.
fn copy(stdout: ChildStdout, filter: &mut dyn OutputFilter, to: &mut Destination) -> std::io::Result<Vec<u8>> {
    let mut reader = BufReader::with_capacity(64 << 10, stdout);
    let mut line = Vec::new();
    let mut out = Vec::new();
    let mut is_answered = matches!(to, Destination::Stdout);
    loop {
        line.clear();
        let ended = reader.read_until(b'\n', &mut line)? == 0;
        if ended {
            filter.end(&mut out);
        } else {
            is_answered = is_answered || filter.is_answer(&line);
            filter.line(&line, &mut out);
        }
        if is_answered && !out.is_empty() && (ended || reader.buffer().is_empty()) {
            to.write_all(&out)?;
            to.flush()?;
            out.clear();
        }
        if ended {
            return Ok(out);
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Says that these processes are the environment's own, and no others.
    pub(in super::super) fn own(own: &[u32]) -> impl ProcessOwnership {
        move |pids: &[u32]| Some(pids.iter().copied().filter(|pid| own.contains(pid)).collect())
    }

    pub(in super::super) fn filtered(filter: &mut dyn OutputFilter, output: &[u8]) -> String {
        let mut out = Vec::new();
        for line in output.split_inclusive(|byte| *byte == b'\n') {
            filter.line(line, &mut out);
        }
        filter.end(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }
}
