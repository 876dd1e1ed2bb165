//! Errors of commands, and their exit codes.

use genv_core::state::allocate::AllocateError;
use genv_core::state::{LockError, Refusal, StoreError};
use genv_simulator::SourceError;

use crate::machine::NoSample;
use crate::shell::ResumeError;

/// The exit codes, in help texts.
pub(crate) const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not in an active environment, 4 not enough devices, 5 some hosts failed, \
6 timeout of the lock or the queue, 126 a command cannot be run, 127 it was not found.";

/// Errors of commands. Errors of the core have other types, see [`exit_code`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Wrong usage.
    #[error("{0}")]
    Usage(String),
    /// The command needs an active environment.
    #[error("cannot {0}: not in an active environment. 'genv activate' starts one")]
    NotActive(&'static str),
    /// The active environment has ended.
    #[error("cannot {task}: environment {} has ended, so this shell is not in an active environment. \
             'genv deactivate' clears the shell, 'genv activate' starts a new one", .eid.escape_debug())]
    Ended {
        /// The attempted task.
        task: &'static str,
        /// The environment.
        eid: String,
    },
    /// The requested devices are not available.
    #[error("{0}")]
    NotEnoughDevices(String),
    /// A time limit is over.
    #[error("{0}")]
    NotInTime(String),
    /// A program was not found.
    #[error("{0}")]
    NotFound(String),
    /// A program was found, and cannot be run.
    #[error("{0}")]
    CannotRun(String),
    /// The message has been printed, or another command has printed it: only the exit code counts.
    #[error("exit code {0}")]
    Silent(u8),
}

impl Failure {
    /// The exit code of an output without some failed hosts.
    pub(crate) const SOME_HOSTS: u8 = 5;

    const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::NotActive(_) | Self::Ended { .. } => 3,
            Self::NotEnoughDevices(_) => NOT_ENOUGH,
            Self::NotInTime(_) => NOT_IN_TIME,
            Self::CannotRun(_) => 126,
            Self::NotFound(_) => 127,
            Self::Silent(code) => *code,
        }
    }
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_ENOUGH: u8 = 4;
const NOT_IN_TIME: u8 = 6;

pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    error.chain().find_map(code).unwrap_or(FAILED)
}

fn code(error: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Some(failure.exit_code());
    }
    let source = error.downcast_ref::<SourceError>();
    let source = source.or(match error.downcast_ref() {
        Some(NoSample::Source(error)) => Some(error),
        _ => None,
    });
    if matches!(source, Some(SourceError::Usage(_))) {
        return Some(USAGE);
    }
    if error.downcast_ref().is_some_and(Refusal::is_shortage) || error.is::<AllocateError>() {
        return Some(NOT_ENOUGH);
    }
    let store = error.downcast_ref::<StoreError>();
    let store = store.or(match error.downcast_ref() {
        Some(ResumeError::Store(error)) => Some(error),
        _ => None,
    });
    match store {
        Some(StoreError::Lock(LockError::TimedOut { .. })) => Some(NOT_IN_TIME),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn an_error_with_context_keeps_its_exit_code() {
        let timed_out = || {
            StoreError::from(LockError::TimedOut {
                what: "genv's state".to_owned(),
                path: "/state/genv.lock".into(),
                waited: Duration::from_secs(10),
                holder: None,
            })
        };
        let no_device = || AllocateError::NoSuchDevice { index: 9, total: 2 };
        let usage = || SourceError::Usage("GENV_DEVICES is 'x'".to_owned());
        let missing = Refusal::NoSuchEnvironment { eid: "7".to_owned() };
        let others_wait = || Refusal::OthersWait(Vec::new());
        let cases: [(anyhow::Error, u8); 10] = [
            (others_wait().into(), 4),
            (Refusal::from(no_device()).into(), 4),
            (Failure::Silent(77).into(), 77),
            (Failure::NotActive("attach").into(), 3),
            (timed_out().into(), 6),
            (ResumeError::from(timed_out()).into(), 6),
            (no_device().into(), 4),
            (usage().into(), 2),
            (NoSample::from(usage()).into(), 2),
            (missing.into(), 1),
        ];
        for (error, code) in cases {
            let message = error.to_string();
            assert_eq!(exit_code(&error), code, "{message}");
            let error = Err::<(), _>(error).context("cannot do it").unwrap_err();
            assert_eq!(exit_code(&error), code, "{message}");
        }
    }
}
