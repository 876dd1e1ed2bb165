//! The devices that an attempt added to an environment, and notes about them.

use std::collections::BTreeSet;

use genv_core::state::{EditableState, Waiting, first_and_others};

use super::{ATTACH_USED, is_set};
use crate::machine::Survey;
use crate::output::{harmless, print_note};

/// The devices that an attempt added to an environment.
pub(super) struct Added {
    pub(super) devices: Vec<u32>,
    /// The models of all devices of the environment, if a number of devices was requested and some were added.
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
            print_note(&format!("passed in the queue: {passed}"));
        }
        if self.models.len() > 1 {
            let models = self.models.iter().map(|it| harmless(it));
            print_note(&format!(
                "the environment has devices of different models: {}. 'genv devices' shows them",
                models.collect::<Vec<_>>().join(", ")
            ));
        }
        if is_set(ATTACH_USED) {
            return;
        }
        let assigned = &self.devices;
        for index in assigned {
            if let Some(first) = survey.usage.outside.get(index).and_then(|uses| uses.first()) {
                print_note(&format!(
                    "device {index} is used by {first}, which does not hold it: its memory and its time are shared with that process. \
                 'genv who {index}' shows more"
                ));
            }
        }
        let unknown: Vec<String> =
            assigned.iter().filter(|index| survey.usage.unknown.contains(index)).map(u32::to_string).collect();
        if !unknown.is_empty() {
            let why = match &survey.silence {
                Some(why) => harmless(why),
                None => "not all its processes are known".to_owned(),
            };
            let unknown = unknown.join(", ");
            print_note(&format!(
                "it is unknown whether other users use device {unknown}, which was attached nevertheless: {why}"
            ));
        }
    }
}
