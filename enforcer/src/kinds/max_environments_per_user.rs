//! More environments of a user that hold or use a device than the limit.

use std::borrow::Cow;

use super::count::{counted, too_many};
use super::finding::{Finding, ViolationFact};
use super::units::environment_unit;
use super::{Check, EndedBy, Kind, KindDefinition, Limits, Quantity, RuleKind, Scope};
use crate::plan::facts::EnvironmentId;
use crate::plan::limits::OwnedLimit;
use crate::plan::words::count;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "max-environments-per-user",
    keys: &["limit", "overrides", "scope"],
    limit: Some(Quantity::Number("environment")),
    measures_time: false,
    ended_by: EndedBy::TakingDevices,
    read: |keys| Ok(MaxEnvironmentsPerUser { limits: keys.limits()?, scope: keys.scope() }.into()),
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MaxEnvironmentsPerUser {
    pub(crate) limits: Limits<u64>,
    pub(crate) scope: Scope,
}

impl Kind for MaxEnvironmentsPerUser {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        let view = check.view;
        let facts = view.facts;
        let of = |id: EnvironmentId| &facts.environments[id];
        let ids = facts.environments_by_user.iter().copied();
        let ids: Vec<EnvironmentId> = ids.filter(|&id| view.sees_environment(id)).collect();
        let place = |&id: &EnvironmentId| (of(id).user, of(id).host);
        let counted = counted(view, &self.limits, self.scope, &ids, place);
        let findings = counted.iter().filter_map(|counted| {
            // Most have no more of any kind.
            if counted.items.len() as u64 <= counted.limit.value {
                return None;
            }
            let units = counted.items.iter();
            let units = units.filter_map(|&id| environment_unit(check, id));
            too_many(facts, counted, units.collect(), |number, limit| TooManyEnvironments { number, limit })
        });
        findings.collect()
    }

    fn summary(&self) -> String {
        format!("users with more environments that hold or use a device, {}", self.scope.place())
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

    fn counting_all(&self) -> Option<RuleKind> {
        Some(Self { limits: Limits::nothing(), scope: Scope::Host }.into())
    }
}

#[derive(Debug, PartialEq)]
struct TooManyEnvironments {
    number: u64,
    limit: OwnedLimit,
}

impl ViolationFact for TooManyEnvironments {
    fn found(&self) -> String {
        format!("has {} that hold or use a device", count(self.number, "environment"))
    }

    fn allowed(&self) -> String {
        self.limit.number()
    }

    fn advice(&self) -> Cow<'static, str> {
        let excess = count(self.number - self.limit.value, "environment");
        format!("deactivate {excess}, or give back the devices").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Action, DetachedProcesses, Rule};
    use crate::plan::tests::daemon::*;

    #[test]
    fn more_environments_of_a_user_that_hold_or_use_a_device() {
        let kind = |number| RuleKind::from(MaxEnvironmentsPerUser { limits: limit(number), scope: Scope::Host });
        let mut lab = Lab::new(1, 4);
        for (eid, age) in [("a", 100.0), ("b", 50.0), ("c", 200.0), ("d", 10.0)] {
            lab = lab.environment("gpu01", eid, "alice");
            lab.eid("gpu01", eid).created_timestamp_seconds = Some(NOON - age);
        }
        // The newest, d, has no device and counts for nothing.
        let lab = lab
            .attach("gpu01", "a", 0, 90.0)
            .attach("gpu01", "b", 1, 40.0)
            .attach("gpu01", "b", 2, 30.0)
            .runs(10, "alice", Some("b"), &[(1, GIB), (2, GIB)])
            .runs(11, "alice", Some("b"), &[(3, GIB)])
            .runs(12, "alice", Some("c"), &[(3, GIB)]);
        assert!(detached(kind(3), &lab).is_empty());
        assert_eq!(
            detached(kind(2), &lab),
            ["alice: has 3 environments that hold or use a device | 2 by default | b:1 (10), b:2 (10), 11"]
        );
        let plan = Daemon::new(vec![rule(kind(2), Action::Detach)]).plan(&lab);
        assert_eq!(actions(&plan), ["detach b:1 (10)", "detach b:2", "terminate 11"]);
        // Where processes may stay, an environment whose processes use a device cannot be ended: a, without any, is.
        let keep = Rule { processes: DetachedProcesses::Keep, ..rule(kind(2), Action::Detach) };
        assert_eq!(said_by(keep, &lab), ["alice: has 3 environments that hold or use a device | 2 by default | a:0"]);
    }

    #[test]
    fn an_environment_with_a_process_that_may_not_be_ended_is_not_taken_apart() {
        let kind = || max_environments_per_user(1, Scope::Host);
        let mut lab = Lab::new(1, 2)
            .holder("a", "alice", &[(0, 60.0)])
            .holder("b", "alice", &[(1, 30.0)])
            .runs(10, "alice", Some("b"), &[(1, GIB)])
            .runs(11, "alice", Some("b"), &[(1, GIB)]);
        lab.eid("gpu01", "a").created_timestamp_seconds = Some(NOON - 7200.0);
        let says =
            |targets| [format!("alice: has 2 environments that hold or use a device | 1 by default | {targets}")];
        assert_eq!(detached(kind(), &lab), says("b:1 (10 11)"));
        // Without b's last process it would still use a device: a is the one that can go.
        lab.pid("gpu01", 11).uid = Some(0);
        assert_eq!(detached(kind(), &lab), says("a:0"));
    }
}
