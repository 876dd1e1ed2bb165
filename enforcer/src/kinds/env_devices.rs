//! Processes on devices that their environment does not hold. Contexts that a detach left behind, and list entries
//! without use, do not count.

use std::borrow::Cow;
use std::time::Duration;

use super::finding::{Finding, ViolationFact};
use super::processes::{is_seen, process_finding};
use super::{Check, EndedBy, JudgedProcesses, Kind, KindDefinition};
use crate::plan::left_behind::Busy;
use crate::plan::words;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "env-devices",
    keys: &[],
    limit: None,
    measures_time: false,
    ended_by: EndedBy::EndingProcesses {
        not_detach: "the environment is not attached to the device that its process uses: choose terminate or kill",
    },
    read: |_| Ok(EnvDevices.into()),
};

#[derive(Debug, PartialEq)]
pub(crate) struct EnvDevices;

impl Kind for EnvDevices {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let Check { view, contexts, .. } = check;
        let facts = view.facts;
        let busy = view.rule.busy();
        let mut positions = facts.unattached_uses.clone();
        positions.sort_unstable();
        let process_of = |position: usize| facts.uses[position].process;
        let by_process = positions.chunk_by(|&a, &b| process_of(a) == process_of(b));
        let findings = by_process.filter_map(|positions| {
            let id = process_of(positions[0]);
            if !is_seen(view, id) {
                return None;
            }
            let uses = positions.iter().map(|&position| &facts.uses[position]);
            let uses = uses.filter(|used| used.shows_use && view.sees_gpu(used.gpu));
            let uses = uses.filter(|used| contexts.left_behind(used, busy).is_none());
            let gpus: Vec<u32> = uses.map(|used| used.gpu).collect();
            if gpus.is_empty() {
                return None;
            }
            let process = &facts.processes[id];
            let attached = process.environment.map_or(&[][..], |id| facts.attachments_of(id));
            let fact = UnattachedUse {
                pid: process.process.pid,
                comm: process.process.comm.clone(),
                gpus,
                attached: attached.iter().map(|attachment| attachment.gpu).collect(),
            };
            Some(process_finding(view, id, fact))
        });
        findings.collect()
    }

    fn summary(&self) -> String {
        "processes that use a device to which their environment is not attached".to_owned()
    }

    fn kept(&self) -> &'static str {
        "its environment is attached to what it uses"
    }

    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::InEnvironments
    }

    fn judges_each_process(&self) -> bool {
        true
    }

    fn forbids_unattached_use(&self) -> bool {
        true
    }

    fn busy(&self, for_duration: Duration) -> Busy {
        Busy::recently(for_duration)
    }
}

#[derive(Debug, PartialEq)]
struct UnattachedUse {
    pid: u32,
    comm: Option<String>,
    gpus: Vec<u32>,
    attached: Vec<u32>,
}

impl ViolationFact for UnattachedUse {
    fn found(&self) -> String {
        let process = words::process(self.pid, self.comm.as_deref());
        let devices = words::devices(self.gpus.iter().copied());
        format!("{process} uses {devices}, which its environment is not attached to")
    }

    fn allowed(&self) -> String {
        words::devices(self.attached.iter().copied())
    }

    fn advice(&self) -> Cow<'static, str> {
        let commands: Vec<String> = self.gpus.iter().map(|gpu| format!("genv attach --index {gpu}")).collect();
        format!("attach what it uses ('{}'), or end it", commands.join("; ")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tests::*;
    use crate::plan::tests::lab::*;

    #[test]
    fn processes_on_devices_that_their_environment_is_not_attached_to() {
        let lab = Lab::new(1, 3)
            .holder("e1", "alice", &[(0, 60.0)])
            .runs(10, "alice", Some("e1"), &[(0, GIB)])
            .runs(11, "alice", Some("e1"), &[(0, GIB), (2, GIB)])
            .runs(12, "bob", None, &[(1, GIB)]);
        assert_eq!(
            terminated(EnvDevices, &lab),
            ["alice: process 11 (python) uses device 2, which its environment is not attached to | device 0 | 11"]
        );
    }
}
