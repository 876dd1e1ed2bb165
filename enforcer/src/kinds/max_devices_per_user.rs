//! More devices attached to a user's environments than the limit.
//!
//! A device counts once, however many of the user's environments share it, and is taken from all of them.

use std::borrow::Cow;

use super::count::too_many_attachments;
use super::finding::{Finding, ViolationFact};
use super::{Check, EndedBy, Kind, KindDefinition, Limits, Quantity, RuleKind, Scope};
use crate::plan::limits::OwnedLimit;
use crate::plan::words::count;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "max-devices-per-user",
    keys: &["limit", "overrides", "scope"],
    limit: Some(Quantity::Number("device")),
    measures_time: false,
    ended_by: EndedBy::TakingDevices,
    read: |keys| Ok(MaxDevicesPerUser { limits: keys.limits()?, scope: keys.scope() }.into()),
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MaxDevicesPerUser {
    pub(crate) limits: Limits<u64>,
    pub(crate) scope: Scope,
}

impl MaxDevicesPerUser {
    /// Every device that a user holds on a host is one too many.
    pub(super) const fn no_device() -> Self {
        Self { limits: Limits::nothing(), scope: Scope::Host }
    }
}

impl Kind for MaxDevicesPerUser {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        too_many_attachments(
            check.view,
            &self.limits,
            self.scope,
            |a, b| (a.host, a.gpu) == (b.host, b.gpu),
            |number, limit| TooManyDevices { number, limit },
        )
    }

    fn summary(&self) -> String {
        format!("users with more devices {}", self.scope.place())
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

    fn needs_processes(&self) -> bool {
        false
    }

    fn counting_all(&self) -> Option<RuleKind> {
        Some(Self::no_device().into())
    }
}

#[derive(Debug, PartialEq)]
struct TooManyDevices {
    number: u64,
    limit: OwnedLimit,
}

impl ViolationFact for TooManyDevices {
    fn found(&self) -> String {
        format!("holds {}", count(self.number, "device"))
    }

    fn allowed(&self) -> String {
        self.limit.number()
    }

    fn advice(&self) -> Cow<'static, str> {
        format!("detach {}", count(self.number - self.limit.value, "device")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::HostSet;
    use crate::plan::tests::daemon::*;

    #[test]
    fn more_devices_of_a_user_than_the_limit() {
        let by = |scope, limits, lab: &Lab| detached(MaxDevicesPerUser { limits, scope }, lab);
        let lab = Lab::new(2, 4)
            .member("alice", "students")
            .member("alice", "staff")
            .holder("a", "alice", &[(0, 300.0), (1, 100.0)])
            .holder("b", "alice", &[(1, 200.0), (2, 150.0)])
            .environment("gpu02", "c", "alice")
            .holder("x", "bob", &[(1, 10.0)])
            .attach("gpu02", "c", 0, 50.0)
            .runs(10, "alice", Some("b"), &[(2, GIB)])
            .runs(11, "bob", Some("x"), &[(1, GIB)]);
        assert!(by(Scope::Host, limit(3), &lab).is_empty());
        // Device 1 is shared by two of her environments and counts once.
        assert_eq!(by(Scope::Host, limit(2), &lab), ["alice: holds 3 devices | 2 by default | b:2 (10)"]);
        assert_eq!(by(Scope::Host, limit(1), &lab), ["alice: holds 3 devices | 1 by default | b:2 (10), a:1, b:1"]);
        assert_eq!(by(Scope::AllHosts, limit(3), &lab), ["alice: holds 4 devices | 3 by default | c:0"]);
        let mut limits = limit(1);
        limits.base.groups.insert("students".into(), 2);
        assert_eq!(
            by(Scope::Host, limits.clone(), &lab),
            ["alice: holds 3 devices | 2 for members of students | b:2 (10)"]
        );
        limits.base.groups.insert("staff".into(), 8);
        assert!(by(Scope::Host, limits.clone(), &lab).is_empty());
        limits.base.users.insert("alice".into(), 2);
        assert_eq!(by(Scope::Host, limits.clone(), &lab), ["alice: holds 3 devices | 2 for alice | b:2 (10)"]);
        limits.base.users.clear();
        let own = Limit { default: Some(0), groups: [("staff".to_owned(), 2)].into(), users: [].into() };
        limits.overrides.push((HostSet(names(&["gpu01"])), own));
        assert_eq!(
            by(Scope::Host, limits, &lab),
            [
                "alice: holds 3 devices | 2 for members of staff on gpu01 | b:2 (10)",
                "bob: holds 1 device | 0 by default on gpu01 | x:1 (11)",
            ]
        );
    }

    #[test]
    fn what_is_on_a_host_with_its_own_limit_is_held_against_it_besides_the_sum() {
        let mut limits = limit(3);
        let own = Limit { default: Some(1), groups: [].into(), users: [].into() };
        limits.overrides.push((HostSet(names(&["gpu01"])), own));
        let kind = RuleKind::from(MaxDevicesPerUser { limits, scope: Scope::AllHosts });
        let lab = |elsewhere: u32| {
            let lab = Lab::new(2, 4).holder("a", "alice", &[(0, 200.0), (1, 100.0)]);
            let lab = lab.environment("gpu02", "b", "alice");
            (0..elsewhere).fold(lab, |lab, gpu| lab.attach("gpu02", "b", gpu, 50.0))
        };
        let on_host = "alice: holds 2 devices | 1 by default on gpu01 | a:1";
        assert_eq!(detached(kind.clone(), &lab(1)), [on_host]);
        assert_eq!(detached(kind.clone(), &lab(2)), ["alice: holds 4 devices | 3 by default | b:1", on_host]);
        // Four on the other are too many in sum, and no other limit is theirs alone.
        assert_eq!(detached(kind, &lab(4)), ["alice: holds 6 devices | 3 by default | b:3, b:2, b:1", on_host]);
    }
}
