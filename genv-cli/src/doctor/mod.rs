//! Checks of genv on this machine with remedies. Nothing is repaired.

mod gpus;
mod host;
mod measurements;
mod programs;
mod state;

use genv_core::model::machine_time_zone;
use genv_core::state::State;
use serde::Serialize;

use crate::machine::Machine;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// No problem.
    Ok,
    /// A problem that does not prevent use.
    Warn,
    /// A part of genv does not work.
    Fail,
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    /// The findings, in words.
    pub(crate) found: String,
    /// The remedy of a problem.
    pub(crate) remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, found, remedy) }
    }
}

/// Runs all checks.
pub(crate) fn examine(machine: &mut Machine) -> Vec<Check> {
    let mut checks = state::directory(machine.state_directory());
    checks.extend(state::lock(machine));
    let (state, files) = state::files(machine);
    checks.extend(files);
    checks.extend(state::earlier_genv(machine.state_directory()));
    let state: State = state.unwrap_or_default();
    checks.push(programs::shell());
    checks.extend(programs::shims());
    checks.extend(gpus::examine(machine, &state));
    checks.push(host::clock(&state, &machine_time_zone()));
    checks.push(host::processes());
    checks.push(host::exporter());
    checks.extend(measurements::examine(machine));
    checks
}
