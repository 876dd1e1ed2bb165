//! Listed processes that have ended: `/proc` has been without them for long enough to be certain.

use genv_core::attribute::reason;
use genv_core::model::{Attribution, Process, Snapshot};
use serde::{Deserialize, Serialize};

use super::{HostHistory, ObservedTime};
use crate::plan::freshness::{Freshness, HostFreshness};

/// A process has ended if `/proc` lacks it for this time, in two successive readings at least.
const SURELY_GONE_SECONDS: f64 = 10.0;

/// The time for which `/proc` has lacked a pid that the driver lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gone {
    time: ObservedTime,
}

impl HostHistory {
    /// Whether a process that the driver lists has ended. If `/proc` has none of the listed pids, the pids may belong
    /// to another pid namespace.
    pub(in crate::plan) fn has_ended(
        &self,
        process: &Process,
        snapshot: &Snapshot,
        freshness: &HostFreshness,
        now_seconds: f64,
    ) -> bool {
        if !is_missing(process) {
            return false;
        }
        // `/proc` had the process when the signal was sent.
        if self.was_signalled(process.pid) {
            return true;
        }
        let Some(Gone { time }) = self.gone.get(&process.pid) else {
            return false;
        };
        let seconds = match freshness.gpu {
            Freshness::New => time.at(now_seconds, freshness.longest_gap_seconds),
            Freshness::Repeated | Freshness::Missing => time.seconds,
        };
        let mut listed = snapshot.processes.iter();
        seconds >= SURELY_GONE_SECONDS && listed.any(|it| is_found(it))
    }

    fn was_signalled(&self, pid: u32) -> bool {
        let known = self.processes.get(&pid).filter(|it| !it.rehearsed);
        known.is_some_and(|it| it.terminated_seconds.is_some() || it.killed_seconds.is_some())
    }

    /// Notes the listed processes that `/proc` lacks, on a host with newly read devices and processes.
    pub(super) fn follow_gone(&mut self, snapshot: &Snapshot, freshness: &HostFreshness, now_seconds: f64) {
        let missing = snapshot.processes.iter().filter(|it| is_missing(it));
        let mut last = std::mem::take(&mut self.gone);
        for process in missing {
            let begun = || Gone { time: ObservedTime::begin(now_seconds) };
            let mut gone = last.remove(&process.pid).unwrap_or_else(begun);
            gone.time.observe(now_seconds, freshness.longest_gap_seconds);
            self.gone.insert(process.pid, gone);
        }
    }
}

/// Whether `/proc` lacks a process that the driver lists.
fn is_missing(process: &Process) -> bool {
    matches!(&process.attribution, Attribution::Unknown { reason } if reason == reason::VANISHED)
}

/// Whether `/proc` has a process that the driver lists.
fn is_found(process: &Process) -> bool {
    let was_read = !matches!(&process.attribution, Attribution::Unknown { reason } if reason == reason::NOT_READ);
    was_read && !is_missing(process)
}
