//! Environments that are older than the limit and hold or use a device.

use super::{Finding, environment_unit};
use crate::plan::Subject;
use crate::plan::left_behind::Contexts;
use crate::plan::selector::View;
use crate::plan::words;

pub(super) fn findings(
    view: &View<'_, '_>,
    contexts: &Contexts<'_, '_>,
    now_seconds: f64,
) -> Vec<Finding> {
    let facts = view.facts;
    let mut findings = Vec::new();
    for (id, environment) in facts.environments.iter().enumerate() {
        if !view.sees_environment(id) {
            continue;
        }
        let Some(created) = environment.created_seconds else {
            continue;
        };
        let Some(limit) = view.limit(environment.user, Some(environment.host)) else {
            continue;
        };
        // It was created by the clock of its host.
        let freshness = &facts.hosts[environment.host].freshness;
        let age = now_seconds + freshness.clock_ahead_seconds - created;
        if age.is_nan() || age <= limit.value as f64 {
            continue;
        }
        let Some(unit) = environment_unit(view, contexts, id) else {
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
            found: format!(
                "environment {} is {} old and has devices",
                words::name(eid),
                words::duration(age as u64)
            ),
            allowed: format!("{} {limit}", words::duration(limit.value)),
            advice: "give back its devices, and go on in a new environment".to_owned(),
            excess: 1,
            units: vec![unit],
            held: None,
        });
    }
    findings
}
