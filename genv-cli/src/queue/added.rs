//! The devices that an attempt added to an environment, and notes about them.

use std::collections::BTreeSet;

use genv_core::state::{EditableState, Waiting};

use super::{ATTACH_USED, first_and_others, is_set};
use crate::machine::{Survey, tell};
use crate::output::harmless;

/// The devices that an attempt added to an environment.
pub(super) struct Added {
    pub(super) devices: Vec<u32>,
    /// The models of all devices of the environment, if it asked for a number of devices and got some.
    models: BTreeSet<String>,
    /// The processes of the queue that were passed.
    pub(super) passed: Vec<Waiting>,
}

impl Added {
    /// `had`: the devices of the environment before.
    pub(super) fn new(state: &EditableState, eid: &str, had: &[u32], survey: &Survey) -> Self {
        let all = state.attached(eid);
        let is_new = |index: &&u32| !had.contains(index);
        let devices: Vec<u32> = all.iter().filter(is_new).copied().collect();
        let is_number = state.requested().is_some_and(|it| it.gpus.is_some());
        let models = match is_number && !devices.is_empty() {
            true => {
                let models = all.iter().filter_map(|it| survey.usage.models.get(it));
                models.cloned().collect()
            }
            false => BTreeSet::new(),
        };
        Self { devices, models, passed: Vec::new() }
    }

    /// Names the passed processes, and the models if the environment has several. Warns of devices with unknown processes
    /// and of devices that processes use without holding them.
    pub(super) fn note(&self, survey: &Survey) {
        if let Some(passed) = first_and_others(&self.passed) {
            tell(&format!("passed in the queue: {passed}"));
        }
        if self.models.len() > 1 {
            let models = self.models.iter().map(|it| harmless(it));
            tell(&format!(
                "the environment has devices of different models: {}. 'genv devices' tells which",
                models.collect::<Vec<_>>().join(", ")
            ));
        }
        if is_set(ATTACH_USED) {
            return;
        }
        let handed_out = &self.devices;
        for index in handed_out {
            if let Some(first) = survey.usage.outside.get(index).and_then(|uses| uses.first()) {
                tell(&format!(
                    "device {index} is used by {first}, which does not hold it: its memory and its time are shared with that process. \
                 'genv who {index}' tells more"
                ));
            }
        }
        let unknown: Vec<String> =
            handed_out.iter().filter(|index| survey.unknown.contains(index)).map(u32::to_string).collect();
        if !unknown.is_empty() {
            let why = match &survey.silence {
                Some(why) => harmless(why),
                None => "the driver does not tell which processes use it".to_owned(),
            };
            let unknown = unknown.join(", ");
            tell(&format!(
                "it is not known whether other users use device {unknown}, which was attached all the same: {why}"
            ));
        }
    }
}
