//! More hosts on which a user holds a device than the limit.

use std::borrow::Cow;

use super::count::too_many_attachments;
use super::finding::{Finding, ViolationFact};
use super::{Check, EndedBy, Kind, KindDefinition, Limits, MaxDevicesPerUser, Quantity, RuleKind, Scope};
use crate::plan::limits::OwnedLimit;
use crate::plan::words::count;

pub(super) const DEFINITION: KindDefinition = KindDefinition {
    word: "max-hosts-per-user",
    keys: &["limit"],
    limit: Some(Quantity::Number("host")),
    measures_time: false,
    ended_by: EndedBy::TakingDevices,
    read: |keys| Ok(MaxHostsPerUser { limits: keys.limits()? }.into()),
};

#[derive(Debug, PartialEq)]
pub(crate) struct MaxHostsPerUser {
    pub(crate) limits: Limits<u64>,
}

impl Kind for MaxHostsPerUser {
    fn definition(&self) -> &'static KindDefinition {
        &DEFINITION
    }

    fn findings(&self, check: &Check<'_, '_, '_>) -> Vec<Finding> {
        too_many_attachments(
            check.view,
            &self.limits,
            Scope::AllHosts,
            |a, b| a.host == b.host,
            |number, limit| TooManyHosts { number, limit },
        )
    }

    fn summary(&self) -> String {
        "users who hold devices on more hosts".to_owned()
    }

    fn limits(&self) -> Option<&Limits<u64>> {
        Some(&self.limits)
    }

    fn with_limits(&self, limits: Limits<u64>) -> Option<RuleKind> {
        Some(Self { limits }.into())
    }

    fn scope(&self) -> Scope {
        Scope::AllHosts
    }

    fn needs_processes(&self) -> bool {
        false
    }

    fn counting_all(&self) -> Option<RuleKind> {
        Some(MaxDevicesPerUser::no_device().into())
    }
}

#[derive(Debug, PartialEq)]
struct TooManyHosts {
    number: u64,
    limit: OwnedLimit,
}

impl ViolationFact for TooManyHosts {
    fn found(&self) -> String {
        format!("holds devices on {}", count(self.number, "host"))
    }

    fn allowed(&self) -> String {
        self.limit.number()
    }

    fn advice(&self) -> Cow<'static, str> {
        format!("give back the devices of {}", count(self.number - self.limit.value, "host")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::daemon::*;

    #[test]
    fn more_hosts_on_which_a_user_holds_a_device() {
        let kind = RuleKind::from(MaxHostsPerUser { limits: limit(1) });
        let lab = Lab::new(3, 2)
            .holder("a", "alice", &[(0, 50.0)])
            .environment("gpu02", "b", "alice")
            .environment("gpu03", "c", "alice")
            .attach("gpu02", "b", 0, 20.0)
            .attach("gpu02", "b", 1, 30.0)
            .process("gpu03", 10, "alice", Some("c"), &[(0, GIB)]);
        assert_eq!(detached(kind, &lab), ["alice: holds devices on 2 hosts | 1 by default | b:0, b:1"]);
    }
}
