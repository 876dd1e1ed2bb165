//! Environments that are older than the limit, or whose lease has ended, and that hold or use a device.

use std::borrow::Cow;

use super::finding::{Finding, SharedFact, ViolationFact};
use super::units::environment_unit;
use super::{Check, EndedBy, JudgedProcesses, Kind, KindDefinition, Limits, Quantity, RuleKind};
use crate::plan::Subject;
use crate::plan::facts::EnvironmentFacts;
use crate::plan::limits::OwnedLimit;
use crate::plan::selector::View;
use crate::plan::words;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "max-age",
    keys: &["limit", "overrides", "leases"],
    limit: Some(Quantity::Time),
    measures_time: true,
    ended_by: EndedBy::TakingDevices,
    read: |keys| {
        let entry = keys.entry;
        let leases = entry.leases.as_ref().is_some_and(|leases| leases.value);
        let is_unlimited = leases && entry.limit.is_none() && entry.overrides.is_none();
        let limits = if is_unlimited { Limits::none() } else { keys.limits()? };
        Ok(MaxAge { limits, leases }.into())
    },
};

#[derive(Debug, PartialEq)]
pub(crate) struct MaxAge {
    /// Seconds.
    pub(crate) limits: Limits<u64>,
    /// Whether an environment is too old once its lease has ended.
    pub(crate) leases: bool,
}

impl Kind for MaxAge {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let view = check.view;
        let facts = view.facts;
        let lowest_seconds = self.limits.lowest() as f64;
        let mut findings = Vec::new();
        for (id, environment) in facts.environments.iter().enumerate() {
            if !view.sees_environment(id) {
                continue;
            }
            // Both times are by the clock of its host.
            let freshness = &facts.hosts[environment.host].freshness;
            let now_seconds = check.now_seconds + freshness.clock_ahead_seconds;
            let reason = self.too_old(view, environment, now_seconds, lowest_seconds);
            let Some(reason) = reason.or_else(|| self.lease_ended(environment, now_seconds)) else {
                continue;
            };
            let Some(unit) = environment_unit(check, id) else {
                continue;
            };
            let eid = &environment.environment.eid;
            findings.push(Finding {
                subject: Subject::Environment {
                    hostname: facts.hosts[environment.host].hostname.to_owned(),
                    eid: eid.clone(),
                },
                user: environment.user,
                host: Some(environment.host),
                fact: SharedFact::new(TooOld { eid: eid.clone(), reason }),
                excess: 1,
                units: vec![unit],
                held: None,
            });
        }
        findings
    }

    fn summary(&self) -> String {
        match (self.limits == Limits::none(), self.leases) {
            (_, false) => "environments that are older and hold or use a device",
            (true, true) => "environments that hold or use a device after the end of their lease",
            (false, true) => "environments that are older, or whose lease has ended, and that hold or use a device",
        }
        .to_owned()
    }

    fn limits(&self) -> Option<&Limits<u64>> {
        Some(&self.limits)
    }

    fn with_limits(&self, limits: Limits<u64>) -> Option<RuleKind> {
        Some(Self { limits, leases: self.leases }.into())
    }

    fn processes(&self) -> JudgedProcesses {
        JudgedProcesses::InEnvironments
    }

    fn counts_as(&self, other: &dyn Kind) -> bool {
        other.downcast::<Self>().is_some_and(|other| self.leases || !other.leases)
    }
}

impl MaxAge {
    fn too_old(
        &self,
        view: &View<'_, '_>,
        environment: &EnvironmentFacts<'_>,
        now_seconds: f64,
        lowest_seconds: f64,
    ) -> Option<AgeReason> {
        let age = now_seconds - environment.created_seconds?;
        if age.is_nan() || age <= lowest_seconds {
            return None;
        }
        let limit = view.limit(environment.user, Some(environment.host))?;
        if age <= limit.value as f64 {
            return None;
        }
        let lease_end = environment.lease_end_seconds.filter(|_| self.leases);
        Some(AgeReason::Age {
            seconds: age as u64,
            limit: limit.to_owned(),
            has_lease: lease_end.is_some_and(|end| end > now_seconds),
        })
    }

    fn lease_ended(&self, environment: &EnvironmentFacts<'_>, now_seconds: f64) -> Option<AgeReason> {
        let end = environment.lease_end_seconds.filter(|_| self.leases)?;
        let over = now_seconds - end;
        (over > 0.0).then_some(AgeReason::Lease { ended_seconds_ago: over as u64 })
    }
}

#[derive(Debug, PartialEq)]
struct TooOld {
    eid: String,
    reason: AgeReason,
}

#[derive(Debug, PartialEq)]
enum AgeReason {
    Age {
        seconds: u64,
        limit: OwnedLimit,
        /// Whether its lease ends later.
        has_lease: bool,
    },
    Lease {
        ended_seconds_ago: u64,
    },
}

impl ViolationFact for TooOld {
    fn found(&self) -> String {
        let eid = words::name(&self.eid);
        match self.reason {
            AgeReason::Age { seconds, has_lease, .. } => {
                let lease = if has_lease { "; its lease is longer than the limit" } else { "" };
                format!("environment {eid} is {} old and has devices{lease}", words::duration(seconds))
            }
            AgeReason::Lease { ended_seconds_ago } => {
                let ended = words::duration(ended_seconds_ago);
                format!("the lease of environment {eid} ended {ended} ago, and it has devices")
            }
        }
    }

    fn allowed(&self) -> String {
        match &self.reason {
            AgeReason::Age { limit, .. } => format!("{} {limit}", words::duration(limit.value)),
            AgeReason::Lease { .. } => "devices until the end of the lease".to_owned(),
        }
    }

    fn advice(&self) -> Cow<'static, str> {
        match self.reason {
            AgeReason::Age { .. } => "give back its devices, and go on in a new environment",
            AgeReason::Lease { .. } => "give back its devices, or let the lease end later: genv extend 2h",
        }
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::daemon::*;

    #[test]
    fn environments_that_are_too_old_and_have_devices() {
        let kind = RuleKind::from(MaxAge { limits: limit(1800), leases: false });
        let mut lab = Lab::new(1, 2)
            .holder("new", "alice", &[(0, 10.0)])
            .holder("old", "alice", &[(0, 10.0), (1, 20.0)])
            .environment("gpu01", "unused", "alice")
            .runs(10, "alice", Some("old"), &[(0, GIB)]);
        lab.eid("gpu01", "new").created_timestamp_seconds = Some(NOON - 1800.0);
        assert_eq!(
            detached(kind, &lab),
            ["alice: environment old is 1h old and has devices | 30m by default | old:0 (10), old:1"]
        );
    }

    #[test]
    fn environments_of_which_the_lease_has_ended() {
        let kind = |limits| RuleKind::from(MaxAge { limits, leases: true });
        let mut lab = Lab::new(1, 5);
        for (gpu, eid) in (0..).zip(["ended", "goes-on", "none", "too-long", "unused"]) {
            lab = lab.environment("gpu01", eid, "alice");
            if eid != "unused" {
                lab = lab.attach("gpu01", eid, gpu, 10.0);
            }
        }
        let mut lease = |eid: &str, created: f64, end: f64| {
            let environment = lab.eid("gpu01", eid);
            environment.created_timestamp_seconds = Some(NOON + created);
            environment.lease_end_timestamp_seconds = Some(NOON + end);
        };
        lease("ended", -600.0, -300.0);
        lease("goes-on", -600.0, 0.0);
        lease("too-long", -3600.0, 7200.0);
        lease("unused", -600.0, -300.0);
        let ended = "alice: the lease of environment ended ended 5m ago, and it has devices | devices until the end of the lease | ended:0";
        assert_eq!(detached(kind(Limits::none()), &lab), [ended]);
        assert_eq!(
            detached(kind(limit(1800)), &lab),
            [
                ended,
                "alice: environment none is 1h old and has devices | 30m by default | none:2",
                "alice: environment too-long is 1h old and has devices; its lease is longer than the limit | 30m by default | too-long:3",
            ]
        );
        let without = RuleKind::from(MaxAge { limits: limit(7200), leases: false });
        assert_eq!(detached(without, &lab), [""; 0]);
    }
}
