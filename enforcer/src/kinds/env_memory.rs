//! More memory on a device than the environment's attachment has.

use std::borrow::Cow;

use genv_core::model::DeviceIndex;

use super::finding::{Finding, SharedFact, ViolationFact};
use super::units::{by_process, process_unit};
use super::{Check, EndedBy, JudgedProcesses, Kind, KindDefinition};
use crate::plan::Subject;
use crate::plan::words;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "env-memory",
    keys: &[],
    limit: None,
    measures_time: false,
    ended_by: EndedBy::EndingProcesses {
        not_detach: "processes are too many or too large, not devices: choose terminate or kill",
    },
    read: |_| Ok(EnvMemory.into()),
};

#[derive(Debug, PartialEq)]
pub(crate) struct EnvMemory;

impl Kind for EnvMemory {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let facts = check.view.facts;
        let mut findings = Vec::new();
        for attachment in facts.attachments.iter().filter(|attachment| check.view.sees_attachment(attachment)) {
            let environment = &facts.environments[attachment.environment];
            // Another user may have reserved next to nothing.
            if attachment.unconfirmed || environment.moved {
                continue;
            }
            let environment = environment.environment;
            // As genv 1.4.3: what was configured after attaching counts where the attachment has no amount.
            let Some(capacity) = attachment.memory_bytes.or(environment.gpu_memory_bytes) else {
                continue;
            };
            let uses = || facts.uses_on(attachment.environment, attachment.gpu);
            let used = uses().fold(0_u64, |sum, used| sum.saturating_add(used.memory_bytes));
            if used <= capacity {
                continue;
            }
            let units = by_process(&uses().collect::<Vec<_>>())
                .into_iter()
                .map(|(process, bytes)| process_unit(facts, process, bytes));
            findings.push(Finding {
                subject: Subject::EnvironmentDevice {
                    hostname: facts.hosts[attachment.host].hostname.to_owned(),
                    eid: environment.eid.clone(),
                    index: DeviceIndex::gpu(attachment.gpu),
                },
                user: attachment.user,
                host: Some(attachment.host),
                fact: SharedFact::new(MemoryExceeded {
                    eid: environment.eid.clone(),
                    gpu: attachment.gpu,
                    used_bytes: used,
                    capacity_bytes: capacity,
                }),
                excess: used - capacity,
                units: units.collect(),
                held: None,
            });
        }
        findings
    }

    fn summary(&self) -> String {
        "environments that use more memory of a device than they have".to_owned()
    }

    fn kept(&self) -> &'static str {
        "its environment uses no more than it asked for"
    }

    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::InEnvironments
    }

    fn counts_memory(&self) -> bool {
        true
    }
}

#[derive(Debug, PartialEq)]
struct MemoryExceeded {
    eid: String,
    gpu: u32,
    used_bytes: u64,
    capacity_bytes: u64,
}

impl ViolationFact for MemoryExceeded {
    fn found(&self) -> String {
        let (eid, used) = (words::name(&self.eid), words::memory(self.used_bytes));
        format!("environment {eid} uses {used} on device {}", self.gpu)
    }

    fn allowed(&self) -> String {
        format!("{} that it reserved there", words::memory(self.capacity_bytes))
    }

    fn advice(&self) -> Cow<'static, str> {
        let excess = words::memory(self.used_bytes - self.capacity_bytes);
        let gpu = self.gpu;
        format!("free {excess} on device {gpu}, attach it with more memory, or end what uses it").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Action;
    use crate::plan::tests::daemon::*;

    #[test]
    fn more_memory_than_an_attachment_has() {
        let lab = |reserved: u64| {
            Lab::new(1, 2)
                .environment("gpu01", "e1", "alice")
                .attach_memory("gpu01", "e1", 0, 60.0, Some(reserved * GIB))
                .attach("gpu01", "e1", 1, 60.0)
                .runs(10, "alice", Some("e1"), &[(0, 3 * GIB)])
                .runs(11, "alice", Some("e1"), &[(0, 5 * GIB), (1, 70 * GIB)])
                .runs(12, "alice", Some("e1"), &[(0, 2 * GIB)])
        };
        let targets = |reserved| terminated(EnvMemory, &lab(reserved));
        assert!(targets(10).is_empty());
        for (reserved, expected) in [(9, "12"), (8, "12"), (7, "11"), (5, "11"), (4, "12, 11"), (1, "12, 11, 10")] {
            assert_eq!(
                targets(reserved),
                [format!(
                    "alice: environment e1 uses 10 GiB on device 0 | {reserved} GiB that it reserved there | {expected}"
                )]
            );
        }
    }

    #[test]
    fn an_amount_that_was_configured_counts_where_the_attachment_has_none() {
        let lab = |reserved: Option<u64>, configured: Option<u64>| {
            let mut lab = Lab::new(1, 1)
                .environment("gpu01", "e1", "alice")
                .attach_memory("gpu01", "e1", 0, 60.0, reserved.map(|gib| gib * GIB))
                .runs(10, "alice", Some("e1"), &[(0, 3 * GIB)]);
            lab.eid("gpu01", "e1").gpu_memory_bytes = configured.map(|gib| gib * GIB);
            terminated(EnvMemory, &lab).len()
        };
        assert_eq!(lab(None, None), 0);
        assert_eq!(lab(None, Some(2)), 1);
        assert_eq!(lab(None, Some(3)), 0);
        assert_eq!(lab(Some(2), Some(8)), 1);
        assert_eq!(lab(Some(8), Some(2)), 0);
    }

    #[test]
    fn a_process_that_is_ended_for_one_device_is_counted_on_the_other() {
        let lab = Lab::new(1, 2)
            .environment("gpu01", "e1", "alice")
            .attach_memory("gpu01", "e1", 0, 60.0, Some(4 * GIB))
            .attach_memory("gpu01", "e1", 1, 60.0, Some(4 * GIB))
            .runs(10, "alice", Some("e1"), &[(0, 6 * GIB), (1, 3 * GIB)])
            .runs(11, "alice", Some("e1"), &[(1, 2 * GIB)]);
        let plan = Daemon::new(vec![rule(EnvMemory, Action::Terminate)]).plan(&lab);
        assert_eq!(plan.violations.len(), 2);
        assert_eq!(actions(&plan), ["terminate 10"]);
    }
}
