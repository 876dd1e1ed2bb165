//! The files of a cycle for the next one, also after a crash.

use std::sync::Arc;

use genv_core::enforcement::DONE_FILE;

use super::Cycle;
use crate::directory::FileError;
use crate::plan::words;
use crate::plan::{Plan, Step};
use crate::recovery;
use crate::reload::InForce;
use crate::remote_steps::dispatcher::Dispatcher;
use crate::user_reports;

/// The file of recent actions on other hosts, in the form of [`DONE_FILE`].
const DONE_ELSEWHERE_FILE: &str = "done-elsewhere.json";

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

    /// The file of the actions. An action on another host must not look like one on a device of this host.
    pub(super) const fn done_file(&self) -> &'static str {
        match self.dispatcher {
            Some(_) => DONE_ELSEWHERE_FILE,
            None => DONE_FILE,
        }
    }

    /// Writes the reports of new actions.
    pub(super) fn keep_reports(&mut self, rules: &InForce, now_seconds: f64) {
        let new = std::mem::take(&mut self.reports);
        if new.is_empty() {
            return;
        }
        let (file, source, actions) = (self.done_file(), rules.source.clone(), Arc::make_mut(&mut self.actions));
        self.report_fault =
            user_reports::add(&self.directory, file, source, &mut actions.reports, new, now_seconds).err();
    }
}
