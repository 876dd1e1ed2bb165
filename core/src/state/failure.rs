//! Why the state was not changed.

use std::path::PathBuf;

use super::host::StateError;
use crate::files::LockError;

/// Why the state was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The lock could not be acquired.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The state cannot be read.
    #[error(transparent)]
    Read(#[from] StateError),
    /// Simulated devices would enter a state of real ones, or real devices a state of simulated ones.
    #[error(
        "cannot change {}: its devices are {kind}, and those that this command knows are not: set GENV_TMPDIR to another \
         directory, or {remedy}", .path.display()
    )]
    OtherDevices {
        /// The state directory.
        path: PathBuf,
        /// The kind of the recorded devices.
        kind: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// A file cannot be written; the old files stay.
    #[error("cannot write {path}: {why}: {remedy}", path = .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        why: String,
        /// The remedy.
        remedy: &'static str,
    },
}
