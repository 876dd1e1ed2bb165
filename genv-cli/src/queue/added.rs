//! The devices that an attempt added to an environment, and notes about them.

use std::collections::{BTreeMap, BTreeSet};

use genv_core::state::{Attached, EditableState, Reply, Waiting, first_and_others};

use super::{ATTACH_USED, is_set};
use crate::machine::Survey;
use crate::output::{harmless, print_note};

/// The devices that an attempt added to an environment.
pub(super) struct Added {
    devices: Vec<u32>,
    /// The models of all devices of the environment, if a number of devices was requested and some were added.
    models: BTreeSet<String>,
    /// The processes of the queue that were passed.
    passed: Vec<Waiting>,
}

impl Added {
    pub(super) fn new(state: &EditableState, eid: &str, reply: &Reply, models: &BTreeMap<u32, String>) -> Self {
        let attached = match reply {
            Reply::Entered(_, attached) | Reply::Attached(attached) => attached.clone(),
            _ => Attached::default(),
        };
        let is_number = attached.requested.is_some_and(|it| it.gpus.is_some());
        let models = match is_number && !attached.added.is_empty() {
            true => state.attached(eid).iter().filter_map(|it| models.get(it)).cloned().collect(),
            false => BTreeSet::new(),
        };
        Self { devices: attached.added, models, passed: attached.passed }
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
