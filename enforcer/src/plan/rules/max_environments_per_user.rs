//! More environments of a user that hold or use a device than the limit.

use super::{Finding, Unit, environment_unit};
use crate::config::{Limits, Scope};
use crate::plan::Subject;
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
    let counted_together = |&a: &EnvironmentId, &b: &EnvironmentId| {
        of(a).user == of(b).user && (scope == Scope::AllHosts || of(a).host == of(b).host)
    };
    let mut findings = Vec::new();
    for environments in ids.chunk_by(counted_together) {
        let first = of(environments[0]);
        let host = (scope == Scope::Host).then_some(first.host);
        let Some(limit) = view.limit(limits, first.user, host) else {
            continue;
        };
        if environments.len() as u64 <= limit.value {
            continue;
        }
        let units: Vec<Unit> = environments
            .iter()
            .filter_map(|&id| environment_unit(view, id))
            .collect();
        let number = units.len() as u64;
        if number <= limit.value {
            continue;
        }
        let excess = number - limit.value;
        findings.push(Finding {
            subject: Subject::User {
                username: facts.users[first.user].name.to_owned(),
                hostname: host.map(|host| facts.hosts[host].hostname.to_owned()),
            },
            user: first.user,
            host,
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
