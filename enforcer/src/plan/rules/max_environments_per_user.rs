//! More environments of a user that hold or use a device than the limit.

use super::{Finding, Unit, counted, environment_unit, user_subject};
use crate::config::{Limits, Scope};
use crate::plan::facts::EnvironmentId;
use crate::plan::selector::View;
use crate::plan::words::count;

pub(super) fn findings<'a>(
    view: &View<'_, 'a>,
    limits: &'a Limits<u64>,
    scope: Scope,
) -> Vec<Finding> {
    let facts = view.facts;
    let mut ids: Vec<EnvironmentId> = (0..facts.environments.len())
        .filter(|&id| view.sees_user(facts.environments[id].user))
        .collect();
    let of = |id: EnvironmentId| &facts.environments[id];
    // Environments are listed by host.
    ids.sort_by_key(|&id| of(id).user);
    let place = |&id: &EnvironmentId| (of(id).user, of(id).host);
    let mut findings = Vec::new();
    for counted in counted(view, limits, scope, &ids, place) {
        let limit = counted.limit;
        if counted.items.len() as u64 <= limit.value {
            continue;
        }
        let units: Vec<Unit> = counted
            .items
            .iter()
            .filter_map(|&id| environment_unit(view, id))
            .collect();
        let number = units.len() as u64;
        if number <= limit.value {
            continue;
        }
        let excess = number - limit.value;
        findings.push(Finding {
            subject: user_subject(facts, counted.user, counted.host),
            user: counted.user,
            host: counted.host,
            found: format!(
                "has {} that hold or use a device",
                count(number, "environment")
            ),
            allowed: format!("{} {limit}", limit.value),
            advice: format!(
                "deactivate {}, or give back the devices",
                count(excess, "environment")
            ),
            excess,
            units,
            held: None,
        });
    }
    findings
}
