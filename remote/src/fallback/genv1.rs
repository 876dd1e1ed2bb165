//! What genv 1.x tells of a host: `genv usage snapshot`.
//!
//! Of a process it says which environment its environ names. That it says none may also mean that it could not read the
//! environ, which it does not tell apart.

use std::collections::HashMap;

use genv_core::proc::Claim;
use genv_core::state::{State, Usage, UsageProcess, read_usage};
use jiff::tz::TimeZone;

use super::processes::{Facts, UNREADABLE};
use super::sections::Section;
use crate::failure::quoted_last_line;
use crate::sudo;

/// What genv 1.x told.
pub(super) struct Genv1 {
    pub(super) state: State,
    /// By pid.
    claims: HashMap<u32, Option<String>>,
    /// Whether it ran as root, who may read every environ.
    as_root: bool,
}

impl Genv1 {
    /// Reads what it printed; `stderr` is what it said besides.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub(super) fn parse(usage: Section<'_>, stderr: &str, zone: &TimeZone, as_root: bool) -> Result<Self, String> {
        if usage.code != 0 {
            let refusal = sudo::refusal(&String::from_utf8_lossy(usage.text), stderr);
            return Err(refusal.unwrap_or_else(|| {
                format!(
                    "'genv usage snapshot' ended with exit code {} and said {}: run it on this host",
                    usage.code,
                    quoted_last_line(stderr).unwrap_or_else(|| "nothing".to_owned())
                )
            }));
        }
        let Usage { state, processes } = read_usage(usage.text, zone).map_err(|error| error.to_string())?;
        let claim = |process: UsageProcess| (process.pid, process.eid);
        Ok(Self { state, claims: processes.into_iter().map(claim).collect(), as_root })
    }

    /// What a process claims, by what was told of it.
    pub(super) fn claim(&self, pid: u32, facts: &Facts) -> Claim {
        match self.claims.get(&pid) {
            Some(Some(eid)) => Claim::Named(eid.clone()),
            Some(None) if self.as_root || facts.environ_readable => Claim::Absent,
            // It was started after genv looked, or cannot be read.
            Some(None) | None => UNREADABLE,
        }
    }
}
