//! The files of a cycle for the next one, also after a crash.

use super::Cycle;
use crate::directory::FileError;
use crate::plan::words;
use crate::plan::{Plan, Step};
use crate::recovery;
use crate::remote_steps::dispatcher::Dispatcher;

impl Cycle {
    /// Settles the interrupted steps of an earlier daemon. Returns an error if this is not possible yet.
    pub(super) fn recover(&mut self, now_seconds: f64, faults: &mut Vec<String>) -> Option<FileError> {
        if self.recovered {
            return None;
        }
        let history = &mut self.history;
        match recovery::recover(&self.directory, &mut self.executor, history, now_seconds) {
            Ok(found) => {
                self.recovered = true;
                faults.extend(found.iter().cloned());
                self.lasting_faults.extend(found);
                None
            }
            Err(error) => Some(error),
        }
    }

    /// Writes the actions of a plan to the disk before the first one, so that after a kill no action is done twice.
    pub(super) fn write_ahead(&mut self, plan: &Plan) -> Option<FileError> {
        let is_action = |step: &&Step| words::deed(&step.kind).is_some();
        let planned: Vec<Step> = plan.steps.iter().filter(is_action).cloned().collect();
        if !self.executor.acts() || planned.is_empty() {
            return None;
        }
        let (position, mut actions) = self.in_flight();
        for step in planned {
            if !actions.contains(&step) {
                actions.push(step);
            }
        }
        recovery::begin(&self.directory, &self.history, position, actions).err()
    }

    /// Writes the history if necessary.
    pub(super) fn save(&mut self, plan: &Plan, now_seconds: f64) -> Result<(), FileError> {
        self.on_disk.follow(&self.directory, &self.history, plan, now_seconds)?;
        // Steps in flight are still to be settled.
        if self.recovered && self.dispatcher.as_ref().is_none_or(Dispatcher::is_idle) {
            recovery::end(&self.directory)?;
        }
        Ok(())
    }
}
