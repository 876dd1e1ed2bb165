//! How a reader failed, and the number of readers that were started again.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::gpu::current_call::CurrentCall;

/// Why a reader is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A signal ended it.
    Signal,
    /// It ended by itself.
    Exit,
    /// A call does not return.
    Hang,
    /// Its answer cannot be read.
    Answer,
}

/// The end of a reader, or of its use.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    /// The call that went on; its name is empty between calls.
    pub(super) call: CurrentCall,
    /// What happened to the process, as in "the process was ended by SIGSEGV". Empty for a hang.
    pub(super) what: String,
    /// The process, if it is left to end by itself, since a thread of it is in state D.
    pub(super) left: Option<u32>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, call, what, left } = self;
        match (reason, &*call.name) {
            (Reason::Hang, "") => f.write_str("the process that reads the GPUs does not answer")?,
            (_, "") => write!(f, "the process that reads the GPUs {what}")?,
            (Reason::Hang, name) => write!(f, "{name} does not answer")?,
            (_, name) => write!(f, "{name}: the process that called it {what}")?,
        }
        match left {
            Some(pid) => write!(f, "; process {pid} waits in state D, and is left to end by itself"),
            None => Ok(()),
        }
    }
}

/// The names of the reasons, as the metric has them.
const REASONS: [(&str, Reason); 4] =
    [("answer", Reason::Answer), ("exit", Reason::Exit), ("hang", Reason::Hang), ("signal", Reason::Signal)];

static RESTARTS: [AtomicU64; REASONS.len()] = [const { AtomicU64::new(0) }; REASONS.len()];

/// The number of readers of this process that were replaced, by reason: `signal` (one ended it), `exit` (it ended by
/// itself), `hang` (a call did not return) and `answer` (its answer could not be read).
pub fn restarts() -> [(&'static str, u64); REASONS.len()] {
    std::array::from_fn(|at| (REASONS[at].0, RESTARTS[at].load(Ordering::Relaxed)))
}

pub(super) fn count(reason: Reason) {
    for ((_, counted), number) in REASONS.iter().zip(&RESTARTS) {
        number.fetch_add(u64::from(*counted == reason), Ordering::Relaxed);
    }
}
