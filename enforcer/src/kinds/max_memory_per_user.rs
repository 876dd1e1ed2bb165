//! More device memory used by a user's processes than the limit, in environments or not.

use std::borrow::Cow;

use genv_core::model::DeviceIndex;

use super::count::{Counted, counted};
use super::finding::{Finding, SharedFact, ViolationFact, user_subject};
use super::units::{by_process, process_unit};
use super::{Check, EndedBy, Kind, KindDefinition, Limits, Quantity, RuleKind, Scope};
use crate::plan::Subject;
use crate::plan::facts::{Facts, UseFacts};
use crate::plan::limits::OwnedLimit;
use crate::plan::words;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "max-memory-per-user",
    keys: &["limit", "overrides", "per", "scope"],
    limit: Some(Quantity::Memory),
    measures_time: false,
    ended_by: EndedBy::EndingProcesses {
        not_detach: "processes are too many or too large, not devices: choose terminate or kill",
    },
    read: |keys| {
        let per = keys.entry.per.as_ref().map(|per| per.value).unwrap_or_default();
        let scope = keys.scope();
        if let Some(place) = keys.entry.scope.as_ref().map(|scope| scope.referenced)
            && (scope, per) == (Scope::AllHosts, MemoryPer::Device)
        {
            return keys.refuse(place, "a device is on one host: say per: total, or leave scope out");
        }
        Ok(MaxMemoryPerUser { limits: keys.limits()?, per, scope }.into())
    },
};

/// What memory is summed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MemoryPer {
    /// Each device by itself.
    #[default]
    Device,
    /// All devices of the scope.
    Total,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MaxMemoryPerUser {
    pub(crate) limits: Limits<u64>,
    pub(crate) per: MemoryPer,
    /// Of each device always its host.
    pub(crate) scope: Scope,
}

impl Kind for MaxMemoryPerUser {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let facts = check.view.facts;
        let uses: Vec<&UseFacts> = check.view.uses().collect();
        // The user of each is known, or the view would not show it.
        let place = |used: &&UseFacts| (used.user.unwrap_or_default(), used.host);
        // Devices are each by itself on their host.
        let scope = match self.per {
            MemoryPer::Device => Scope::Host,
            MemoryPer::Total => self.scope,
        };
        let by_device = |a: &&UseFacts, b: &&UseFacts| self.per == MemoryPer::Total || a.gpu == b.gpu;
        let mut findings = Vec::new();
        for counted in counted(check.view, &self.limits, scope, &uses, place) {
            for uses in counted.items.chunk_by(by_device) {
                findings.extend(self.finding(facts, &counted, uses));
            }
        }
        findings
    }

    fn summary(&self) -> String {
        match self.per {
            MemoryPer::Device => "users whose processes use more memory of a device".to_owned(),
            MemoryPer::Total => format!("users whose processes use more device memory {}", self.scope.place()),
        }
    }

    fn limits(&self) -> Option<&Limits<u64>> {
        Some(&self.limits)
    }

    fn with_limits(&self, limits: Limits<u64>) -> Option<RuleKind> {
        Some(Self { limits, ..*self }.into())
    }

    fn scope(&self) -> Scope {
        self.scope
    }

    fn counts_memory(&self) -> bool {
        true
    }

    fn counting_all(&self) -> Option<RuleKind> {
        Some(Self { limits: Limits::nothing(), per: self.per, scope: Scope::Host }.into())
    }

    fn counts_as(&self, other: &dyn Kind) -> bool {
        let other = other.downcast::<Self>();
        other.is_some_and(|other| (self.scope, self.per) == (other.scope, other.per))
    }
}

impl MaxMemoryPerUser {
    fn finding(&self, facts: &Facts<'_>, counted: &Counted<'_, '_, &UseFacts>, uses: &[&UseFacts]) -> Option<Finding> {
        let Counted { user, host, limit, .. } = *counted;
        let used = uses.iter().fold(0_u64, |sum, used| sum.saturating_add(used.memory_bytes));
        if used <= limit.value {
            return None;
        }
        let (subject, gpu) = match (self.per, host) {
            (MemoryPer::Device, Some(host)) => {
                let gpu = uses[0].gpu;
                let subject = Subject::UserDevice {
                    username: facts.users[user].name.to_owned(),
                    hostname: facts.hosts[host].hostname.to_owned(),
                    index: DeviceIndex::gpu(gpu),
                };
                (subject, Some(gpu))
            }
            (_, host) => (user_subject(facts, user, host), None),
        };
        let units = by_process(uses).into_iter();
        Some(Finding {
            subject,
            user,
            host,
            fact: SharedFact::new(TooMuchMemory { used_bytes: used, gpu, limit: limit.to_owned() }),
            excess: used - limit.value,
            units: units.map(|(process, bytes)| process_unit(facts, process, bytes)).collect(),
            held: None,
        })
    }
}

#[derive(Debug, PartialEq)]
struct TooMuchMemory {
    used_bytes: u64,
    /// Absent: in total.
    gpu: Option<u32>,
    limit: OwnedLimit,
}

impl TooMuchMemory {
    fn place(&self) -> String {
        self.gpu.map_or_else(|| "in total".to_owned(), |gpu| format!("on device {gpu}"))
    }
}

impl ViolationFact for TooMuchMemory {
    fn found(&self) -> String {
        format!("uses {} {}", words::memory(self.used_bytes), self.place())
    }

    fn allowed(&self) -> String {
        format!("{} {}", words::memory(self.limit.value), self.limit)
    }

    fn advice(&self) -> Cow<'static, str> {
        format!("free {} {}", words::memory(self.used_bytes - self.limit.value), self.place()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::daemon::*;

    #[test]
    fn more_memory_of_a_user() {
        let lab = Lab::new(2, 2)
            .environment("gpu01", "e1", "alice")
            .runs(10, "alice", Some("e1"), &[(0, 50 * GIB), (1, 10 * GIB)])
            .runs(11, "alice", None, &[(0, 20 * GIB)])
            .process("gpu02", 12, "alice", None, &[(0, 30 * GIB)])
            .runs(13, "bob", None, &[(0, 60 * GIB)]);
        for (gib, per, scope, expected) in [
            (60, MemoryPer::Device, Scope::AllHosts, "alice: uses 70 GiB on device 0 | 60 GiB by default | 11"),
            (60, MemoryPer::Total, Scope::Host, "alice: uses 80 GiB in total | 60 GiB by default | 11"),
            (80, MemoryPer::Total, Scope::AllHosts, "alice: uses 110 GiB in total | 80 GiB by default | 12"),
        ] {
            assert_eq!(terminated(max_memory(gib * GIB, per, scope), &lab), [expected]);
        }
    }
}
