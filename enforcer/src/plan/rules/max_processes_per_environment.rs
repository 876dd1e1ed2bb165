//! More processes of an environment that use a device than the limit.

use super::{Finding, by_process, process_unit};
use crate::plan::Subject;
use crate::plan::selector::View;
use crate::plan::words;

pub(super) fn findings(view: &View<'_, '_>) -> Vec<Finding> {
    let facts = view.facts;
    let mut findings = Vec::new();
    for (id, environment) in facts.environments.iter().enumerate() {
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
        let excess = number - limit.value;
        let units = processes.iter().map(|(process, _)| process_unit(facts, *process, 1));
        let eid = &environment.environment.eid;
        findings.push(Finding {
            subject: Subject::Environment {
                hostname: facts.hosts[environment.host].hostname.to_owned(),
                eid: eid.clone(),
            },
            user: environment.user,
            host: Some(environment.host),
            found: format!("environment {} has {} on devices", words::name(eid), words::count(number, "process")),
            allowed: format!("{} {limit}", limit.value),
            advice: format!("end {}", words::count(excess, "process")),
            excess,
            units: units.collect(),
            held: None,
        });
    }
    findings
}
