//! More environments of a user that hold or use a device than the limit.

use super::{Finding, counted, environment_unit, too_many};
use crate::config::{Limits, Scope};
use crate::plan::facts::EnvironmentId;
use crate::plan::left_behind::Contexts;
use crate::plan::selector::View;
use crate::plan::words::count;

pub(super) fn findings<'a>(
    view: &View<'_, 'a>,
    contexts: &Contexts<'_, '_>,
    limits: &'a Limits<u64>,
    scope: Scope,
) -> Vec<Finding> {
    let facts = view.facts;
    let of = |id: EnvironmentId| &facts.environments[id];
    let ids = facts.environments_by_user.iter().copied();
    let ids: Vec<EnvironmentId> = ids.filter(|&id| view.sees_environment(id)).collect();
    let place = |&id: &EnvironmentId| (of(id).user, of(id).host);
    let counted = counted(view, limits, scope, &ids, place);
    let findings = counted.iter().filter_map(|counted| {
        // Most have no more of any kind.
        if counted.items.len() as u64 <= counted.limit.value {
            return None;
        }
        let units = counted.items.iter();
        let units = units.filter_map(|&id| environment_unit(view, contexts, id));
        too_many(facts, counted, units.collect(), |number, excess| {
            (
                format!("has {} that hold or use a device", count(number, "environment")),
                format!("deactivate {}, or give back the devices", count(excess, "environment")),
            )
        })
    });
    findings.collect()
}
