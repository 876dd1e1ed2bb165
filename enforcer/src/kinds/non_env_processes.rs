//! Processes outside any environment.

use std::borrow::Cow;

use super::finding::{Finding, ViolationFact};
use super::processes::{is_seen, process_finding};
use super::{Check, EndedBy, JudgedProcesses, Kind, KindDefinition};
use crate::plan::words;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "non-env-processes",
    keys: &[],
    limit: None,
    measures_time: false,
    ended_by: EndedBy::EndingProcesses {
        not_detach: "a process outside all environments is on no device that could be taken from one: choose terminate or \
                     kill",
    },
    read: |_| Ok(NonEnvProcesses.into()),
};

#[derive(Debug, PartialEq)]
pub(crate) struct NonEnvProcesses;

impl Kind for NonEnvProcesses {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let view = check.view;
        let facts = view.facts;
        let processes = 0..facts.processes.len();
        processes
            .filter(|&id| facts.processes[id].environment.is_none() && is_seen(view, id))
            .map(|id| {
                let process = &facts.processes[id];
                let uses = facts.uses[process.uses.clone()].iter();
                let fact = OutsideProcess {
                    pid: process.process.pid,
                    comm: process.process.comm.clone(),
                    gpus: uses.filter(|used| used.shows_use).map(|used| used.gpu).collect(),
                };
                process_finding(view, id, fact)
            })
            .collect()
    }

    fn summary(&self) -> String {
        "processes that use a device outside any environment".to_owned()
    }

    fn kept(&self) -> &'static str {
        "it is in an environment"
    }

    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::OutsideEnvironments
    }

    fn judges_each_process(&self) -> bool {
        true
    }
}

#[derive(Debug, PartialEq)]
struct OutsideProcess {
    pid: u32,
    comm: Option<String>,
    gpus: Vec<u32>,
}

impl ViolationFact for OutsideProcess {
    fn found(&self) -> String {
        let process = words::process(self.pid, self.comm.as_deref());
        format!("{process} uses {} outside any environment", words::devices(self.gpus.iter().copied()))
    }

    fn allowed(&self) -> String {
        "processes in an environment".to_owned()
    }

    fn advice(&self) -> Cow<'static, str> {
        "start it in an environment, as with 'genv exec --gpus 1 -- COMMAND', and end this one".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tests::*;
    use crate::plan::tests::lab::*;

    #[test]
    fn processes_outside_any_environment() {
        let lab = Lab::new(1, 2)
            .environment("gpu01", "e1", "alice")
            .runs(10, "alice", Some("e1"), &[(0, GIB)])
            .runs(11, "bob", None, &[(0, GIB), (1, GIB)])
            .runs(12, "root", None, &[(0, GIB)])
            .runs(13, "admin", None, &[(0, GIB)]);
        assert_eq!(
            terminated(NonEnvProcesses, &lab),
            [
                "bob: process 11 (python) uses devices 0 and 1 outside any environment | processes in an environment | 11"
            ]
        );
    }
}
