//! The output of `genv usage snapshot` of genv 1.x.
//!
//! The output has the environment that the environ of each process names. A process without an environment either names none,
//! or has an environ that genv 1.x could not read: the output is the same in both cases.

use std::collections::HashMap;

use genv_core::proc::Claim;
use genv_core::state::{State, Usage, UsageProcess, read_usage};
use jiff::tz::TimeZone;

use super::processes::{PolledProcess, UNREADABLE};
use super::sections::Section;
use crate::failure::quoted_last_line;
use crate::sudo;

/// The parsed output of genv 1.x.
pub(super) struct Genv1 {
    pub(super) state: State,
    /// The environment that each process claims, by pid.
    claims: HashMap<u32, Option<String>>,
    /// Whether genv ran as root, and so could read every environ.
    as_root: bool,
}

impl Genv1 {
    /// Parses the output. `stderr` is the stderr of the script.
    pub(super) fn parse(usage: Section<'_>, stderr: &str, zone: &TimeZone, as_root: bool) -> Result<Self, String> {
        if usage.code != 0 {
            let refusal = sudo::refusal(&String::from_utf8_lossy(usage.text), stderr);
            return Err(refusal.unwrap_or_else(|| {
                format!(
                    "'genv usage snapshot' ended with exit code {} and printed {}: run it on this host",
                    usage.code,
                    quoted_last_line(stderr).unwrap_or_else(|| "nothing".to_owned())
                )
            }));
        }
        let Usage { state, processes } = read_usage(usage.text, zone).map_err(|error| error.to_string())?;
        let claim = |process: UsageProcess| (process.pid, process.eid);
        Ok(Self { state, claims: processes.into_iter().map(claim).collect(), as_root })
    }

    /// The claim of a process.
    pub(super) fn claim(&self, pid: u32, facts: &PolledProcess) -> Claim {
        match self.claims.get(&pid) {
            Some(Some(eid)) => Claim::Named(eid.clone()),
            Some(None) if self.as_root || facts.environ_readable => Claim::Absent,
            // The process started after genv read the processes, or its environ is unreadable.
            Some(None) | None => UNREADABLE,
        }
    }
}
