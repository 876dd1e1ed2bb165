//! More processes of an environment that use a device than the limit.

use std::borrow::Cow;

use super::finding::{Finding, SharedFact, ViolationFact};
use super::units::{by_process, process_unit};
use super::{Check, EndedBy, JudgedProcesses, Kind, KindDefinition, Limits, Quantity, RuleKind};
use crate::plan::Subject;
use crate::plan::limits::OwnedLimit;
use crate::plan::words;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "max-processes-per-environment",
    keys: &["limit", "overrides"],
    limit: Some(Quantity::Number("process")),
    measures_time: false,
    ended_by: EndedBy::EndingProcesses {
        not_detach: "processes are too many or too large, not devices: choose terminate or kill",
    },
    read: |keys| Ok(MaxProcessesPerEnvironment { limits: keys.limits()? }.into()),
};

#[derive(Debug, PartialEq)]
pub(crate) struct MaxProcessesPerEnvironment {
    pub(crate) limits: Limits<u64>,
}

impl Kind for MaxProcessesPerEnvironment {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let view = check.view;
        let facts = view.facts;
        let lowest = self.limits.lowest();
        let mut findings = Vec::new();
        for (id, environment) in facts.environments.iter().enumerate() {
            if environment.uses.len() as u64 <= lowest {
                continue;
            }
            if !view.sees_user(environment.user) || !view.sees_host(environment.host) {
                continue;
            }
            let Some(limit) = view.limit(environment.user, Some(environment.host)) else {
                continue;
            };
            if environment.uses.len() as u64 <= limit.value {
                continue;
            }
            let uses: Vec<_> = facts.uses_of(id).filter(|used| used.shows_use && view.sees_gpu(used.gpu)).collect();
            let processes = by_process(&uses);
            let number = processes.len() as u64;
            if number <= limit.value {
                continue;
            }
            let units = processes.iter().map(|(process, _)| process_unit(facts, *process, 1));
            let eid = &environment.environment.eid;
            findings.push(Finding {
                subject: Subject::Environment {
                    hostname: facts.hosts[environment.host].hostname.to_owned(),
                    eid: eid.clone(),
                },
                user: environment.user,
                host: Some(environment.host),
                fact: SharedFact::new(TooManyProcesses { eid: eid.clone(), number, limit: limit.to_owned() }),
                excess: number - limit.value,
                units: units.collect(),
                held: None,
            });
        }
        findings
    }

    fn summary(&self) -> String {
        "environments with more processes on devices".to_owned()
    }

    fn limits(&self) -> Option<&Limits<u64>> {
        Some(&self.limits)
    }

    fn with_limits(&self, limits: Limits<u64>) -> Option<RuleKind> {
        Some(Self { limits }.into())
    }

    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::InEnvironments
    }
}

#[derive(Debug, PartialEq)]
struct TooManyProcesses {
    eid: String,
    number: u64,
    limit: OwnedLimit,
}

impl ViolationFact for TooManyProcesses {
    fn found(&self) -> String {
        format!("environment {} has {} on devices", words::name(&self.eid), words::count(self.number, "process"))
    }

    fn allowed(&self) -> String {
        self.limit.number()
    }

    fn advice(&self) -> Cow<'static, str> {
        format!("end {}", words::count(self.number - self.limit.value, "process")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::daemon::*;

    #[test]
    fn more_processes_of_an_environment_that_use_a_device() {
        let kind = RuleKind::from(MaxProcessesPerEnvironment { limits: limit(2) });
        let lab = Lab::new(1, 2)
            .environment("gpu01", "e1", "alice")
            .runs(10, "alice", Some("e1"), &[(0, GIB), (1, GIB)])
            .runs(11, "alice", Some("e1"), &[(0, GIB)])
            .runs(12, "alice", Some("e1"), &[(1, GIB)]);
        assert_eq!(terminated(kind, &lab), ["alice: environment e1 has 3 processes on devices | 2 by default | 12"]);
    }
}
