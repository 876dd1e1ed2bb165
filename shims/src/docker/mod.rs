//! `docker` within an environment.
use crate::outcome::{Outcome, Refusal};
use crate::program::Program;
use std::ffi::OsString;

/// What the shim stands in for.
pub(crate) const NAME: &str = "docker";

/// Runs as `docker`.
pub(crate) fn run(arguments: &[OsString]) -> Result<Outcome, Refusal> {
    let real = Program::find(NAME)?;
    Err(real.exec(arguments))
}
