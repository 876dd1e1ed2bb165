//! What a cycle leaves for the next one, also after a crash.

use super::Cycle;
use crate::directory::FileError;
use crate::plan::words;
use crate::plan::{Plan, Step};
use crate::recovery;
use crate::remote_steps::dispatcher::Dispatcher;

impl Cycle {
    /// Settles what an earlier daemon was in the middle of; why that cannot be done yet.
    pub(super) fn recover(&mut self, now_seconds: f64, faults: &mut Vec<String>) -> Option<FileError> {
        if self.recovered {
            return None;
        }
        let history = &mut self.history;
        match recovery::take_up(&self.directory, &mut self.executor, history, now_seconds) {
            Ok(found) => {
                self.recovered = true;
                faults.extend(found.iter().cloned());
                self.lasting_faults.extend(found);
                None
            }
            Err(error) => Some(error),
        }
    }

    /// Writes down what is about to be done before anything is, so that none is done twice if this program is killed in
    /// between.
    pub(super) fn write_ahead(&mut self, plan: &Plan) -> Option<FileError> {
        let is_deed = |step: &&Step| words::deed(&step.kind).is_some();
        let planned: Vec<Step> = plan.steps.iter().filter(is_deed).cloned().collect();
        if !self.executor.acts() || planned.is_empty() {
            return None;
        }
        let (position, mut deeds) = self.in_flight();
        for step in planned {
            if !deeds.contains(&step) {
                deeds.push(step);
            }
        }
        recovery::begin(&self.directory, &self.history, position, deeds).err()
    }

    /// Writes down what is remembered, as far as it must be.
    pub(super) fn remember(&mut self, plan: &Plan, now_seconds: f64) -> Result<(), FileError> {
        self.on_disk.follow(&self.directory, &self.history, plan, now_seconds)?;
        // Steps in flight are still to be settled.
        if self.recovered && self.dispatcher.as_ref().is_none_or(Dispatcher::is_idle) {
            recovery::end(&self.directory)?;
        }
        Ok(())
    }
}
