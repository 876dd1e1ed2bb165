//! Processes that end with a device which was taken, and that the pace put off. Each is verified when its turn comes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::audit::Action;
use super::{Cause, Executor};
use crate::config::Mode;
use crate::directory::{Audience, FileError, RuntimeDirectory};
use crate::plan::{Outcome, ProcessTarget};

/// The file's name.
pub(super) const LEFT_FILE: &str = "left.json";

/// The file of what other machines asked for: a daemon of this host has the other one.
pub(super) const REMOTE_LEFT_FILE: &str = "left-asked.json";

/// One that could not be signalled for so long is let go.
const LONGEST_SECONDS: f64 = 3600.0;

/// A process that is still to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Left {
    rule: String,
    /// What was found, and is allowed.
    why: String,
    /// The device that was taken.
    gpu: u32,
    process: Arc<ProcessTarget>,
    /// When the device was taken, Unix time.
    since_seconds: f64,
}

/// What an earlier program left. A damaged file is set aside: its processes go on.
pub(super) fn load(directory: &RuntimeDirectory, file: &str) -> Result<Vec<Left>, FileError> {
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
    pub(super) fn is_left(&self, process: &ProcessTarget) -> bool {
        self.left.iter().any(|left| *left.process == *process)
    }

    /// Ends the processes of a device that was taken, as fast as the pace allows; the rest when its turn comes.
    pub(super) fn end_with_device(&mut self, processes: &[Arc<ProcessTarget>], gpu: u32, cause: &Cause<'_>) {
        let since_seconds = self.now();
        let before = self.left.len();
        for process in processes {
            if self.pace(&process.username).is_err() {
                self.left.push(Left {
                    rule: cause.rule.to_owned(),
                    why: cause.why.to_owned(),
                    gpu,
                    process: process.clone(),
                    since_seconds,
                });
            } else {
                self.signal_now(Action::Terminate, process, Some(&[gpu].into()), cause);
            }
        }
        let count = self.left.len() - before;
        if count > 0 {
            tracing::info!(count, gpu, "a device was taken; so many of its processes end in later cycles");
            self.save_left();
        }
    }

    /// Lets go of those that their rule would not end now, by its name, the process and the device that was taken: the
    /// administrator has changed the rule since, or the process works on another device.
    pub(crate) fn keep_left(&mut self, ends: impl Fn(&str, &ProcessTarget, u32) -> bool) {
        let before = self.left.len();
        self.left.retain(|left| ends(&left.rule, &left.process, left.gpu));
        let count = before - self.left.len();
        if count > 0 {
            tracing::info!(count, "processes whose device was taken go on: their rule would not end them now");
            self.save_left();
        }
    }

    /// Ends those whose turn has come, but for those that wait by an administrator's word.
    pub(crate) fn end_left(&mut self, waits: impl Fn(&str, &ProcessTarget) -> bool) {
        if self.left.is_empty() || self.policy.mode == Mode::DryRun {
            return;
        }
        let Ok(_lock) = self.lock() else { return };
        if self.breaker.open.is_some() {
            return;
        }
        let now = self.now();
        let before = self.left.len();
        for left in std::mem::take(&mut self.left) {
            if waits(&left.rule, &left.process) || self.pace(&left.process.username).is_err() {
                self.left.push(left);
                continue;
            }
            let gpu: BTreeSet<u32> = [left.gpu].into();
            let cause = Cause { rule: &left.rule, why: &left.why };
            let outcome = self.signal_now(Action::Terminate, &left.process, Some(&gpu), &cause);
            let is_open = matches!(outcome, Outcome::Refused { again: true, .. });
            if is_open && now - left.since_seconds < LONGEST_SECONDS {
                self.left.push(left);
            }
        }
        if self.left.len() != before {
            self.save_left();
        }
    }

    fn save_left(&self) {
        let content = serde_json::to_vec(&self.left).unwrap_or_default();
        let file = match self.requested_by {
            None => LEFT_FILE,
            Some(_) => REMOTE_LEFT_FILE,
        };
        let saved = match self.left.is_empty() {
            true => self.directory.remove(file),
            false => self.directory.replace(file, &content, Audience::Own),
        };
        if let Err(error) = saved {
            tracing::error!(%error, "a restart would forget which processes are still to end");
        }
    }
}
