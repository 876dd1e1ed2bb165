//! The end of a shim, and its messages.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// The end of a program, which the shim copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramOutcome {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

impl From<ExitStatus> for ProgramOutcome {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(u8::try_from(code).unwrap_or(FAILED)),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(FAILED),
        }
    }
}

/// Something could not be done.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage.
pub(crate) const USAGE: u8 = 2;
pub(crate) const NOT_ENOUGH_DEVICES: u8 = 4;
/// The real program cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no real program.
pub(crate) const NOT_FOUND: u8 = 127;

/// A refused command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Its exit code.
    pub(crate) code: u8,
    /// The problem, its reason, and the next step.
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Ends the shim as the real program ended, also by the same signal.
pub(crate) fn exit(outcome: Result<ProgramOutcome, Refusal>) -> ExitCode {
    match outcome {
        Ok(ProgramOutcome::Code(code)) => ExitCode::from(code),
        Ok(ProgramOutcome::Signal(signal)) => {
            // This returns only for a signal that does not end a process.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(FAILED))
        }
        Err(refusal) => {
            say(&refusal.message);
            ExitCode::from(refusal.code)
        }
    }
}

/// Writes to stderr, which may be closed.
pub(crate) fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "genv: {message}");
}

/// Writes to stdout, which may be closed.
pub(crate) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
