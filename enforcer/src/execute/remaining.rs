//! Processes of detached devices that the pace has put off. Each is verified again before its signal.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::audit::AuditAction;
use super::{Cause, Executor};
use crate::config::Mode;
use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::{Outcome, ProcessTarget};

/// The file's name.
pub(super) const REMAINING_FILE: &str = "left.json";

/// The file for requests of other machines. The daemon of this host has the other file.
pub(super) const REMOTE_REMAINING_FILE: &str = "left-asked.json";

/// After this time without a signal, a process is dropped.
const LONGEST_SECONDS: f64 = 3600.0;

/// A process that is still to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemainingProcess {
    rule: String,
    /// The found and the allowed value.
    why: String,
    /// The detached device.
    gpu: u32,
    process: Arc<ProcessTarget>,
    /// When the device was detached, Unix time.
    since_seconds: f64,
}

/// Reads the processes that an earlier program left. A damaged file is set aside, and its processes are not ended.
pub(super) fn load(directory: &RuntimeDirectory, file: &str) -> Result<Vec<RemainingProcess>, FileError> {
    let Some(content) = directory.read(file)? else {
        return Ok(Vec::new());
    };
    match serde_json::from_slice(&content) {
        Ok(left) => Ok(left),
        Err(error) => {
            let aside = directory.set_aside(file)?;
            tracing::error!(event = "fault", %error, aside, "processes that were to end go on");
            Ok(Vec::new())
        }
    }
}

impl Executor {
    pub(super) fn is_remaining(&self, process: &ProcessTarget) -> bool {
        self.remaining.iter().any(|left| *left.process == *process)
    }

    /// Ends the processes of a detached device as far as the pace permits; later cycles end the rest.
    pub(super) fn end_with_device(&mut self, processes: &[Arc<ProcessTarget>], gpu: u32, cause: &Cause<'_>) {
        let since_seconds = self.now();
        let before = self.remaining.len();
        for process in processes {
            if self.pace(&process.username).is_err() {
                self.remaining.push(RemainingProcess {
                    rule: cause.rule.to_owned(),
                    why: cause.why.to_owned(),
                    gpu,
                    process: process.clone(),
                    since_seconds,
                });
            } else {
                self.signal_now(AuditAction::Terminate, process, Some(&[gpu].into()), cause);
            }
        }
        let count = self.remaining.len() - before;
        if count > 0 {
            tracing::info!(count, gpu, "a device was taken; so many of its processes end in later cycles");
            self.save_remaining();
        }
    }

    /// Drops processes that their rule would not end now: the administrator has changed the rule, or the process works on another
    /// device. `ends` gets the name of the rule, the process and the device.
    pub(crate) fn keep_remaining(&mut self, ends: impl Fn(&str, &ProcessTarget, u32) -> bool) {
        let before = self.remaining.len();
        self.remaining.retain(|left| ends(&left.rule, &left.process, left.gpu));
        let count = before - self.remaining.len();
        if count > 0 {
            tracing::info!(count, "processes whose device was taken go on: their rule would not end them now");
            self.save_remaining();
        }
    }

    /// Ends processes as far as the pace permits, except those for which `waits` is true.
    pub(crate) fn end_remaining(&mut self, waits: impl Fn(&str, &ProcessTarget) -> bool) {
        if self.remaining.is_empty() || self.policy.mode == Mode::DryRun {
            return;
        }
        let Ok(_lock) = self.lock() else { return };
        if self.breaker.open.is_some() {
            return;
        }
        let now = self.now();
        let before = self.remaining.len();
        for left in std::mem::take(&mut self.remaining) {
            if waits(&left.rule, &left.process) || self.pace(&left.process.username).is_err() {
                self.remaining.push(left);
                continue;
            }
            let gpu: BTreeSet<u32> = [left.gpu].into();
            let cause = Cause { rule: &left.rule, why: &left.why };
            let outcome = self.signal_now(AuditAction::Terminate, &left.process, Some(&gpu), &cause);
            let is_pending = matches!(outcome, Outcome::Refused { again: true, .. });
            if is_pending && now - left.since_seconds < LONGEST_SECONDS {
                self.remaining.push(left);
            }
        }
        if self.remaining.len() != before {
            self.save_remaining();
        }
    }

    fn save_remaining(&self) {
        let content = serde_json::to_vec(&self.remaining).unwrap_or_default();
        let file = match self.requested_by {
            None => REMAINING_FILE,
            Some(_) => REMOTE_REMAINING_FILE,
        };
        let saved = match self.remaining.is_empty() {
            true => self.directory.remove(file),
            false => self.directory.replace(file, &content, Audience::Own),
        };
        if let Err(error) = saved {
            tracing::error!(%error, "a restart would forget which processes are still to end");
        }
    }
}
