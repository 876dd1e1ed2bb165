//! Environments that are older than the limit, or whose lease has ended, and that hold or use a device.

use super::{Finding, environment_unit};
use crate::plan::Subject;
use crate::plan::facts::EnvironmentFacts;
use crate::plan::left_behind::Contexts;
use crate::plan::selector::View;
use crate::plan::words;

/// `leases`: an environment is too old once its lease has ended.
pub(super) fn findings(
    view: &View<'_, '_>,
    contexts: &Contexts<'_, '_>,
    leases: bool,
    now_seconds: f64,
) -> Vec<Finding> {
    let facts = view.facts;
    let mut findings = Vec::new();
    for (id, environment) in facts.environments.iter().enumerate() {
        if !view.sees_environment(id) {
            continue;
        }
        // Both times are by the clock of its host.
        let freshness = &facts.hosts[environment.host].freshness;
        let now_seconds = now_seconds + freshness.clock_ahead_seconds;
        let old = too_old(view, environment, leases, now_seconds);
        let Some(found) = old.or_else(|| {
            let leased = leases.then_some(environment);
            leased.and_then(|it| lease_ended(it, now_seconds))
        }) else {
            continue;
        };
        let Some(unit) = environment_unit(view, contexts, id) else {
            continue;
        };
        findings.push(Finding {
            subject: Subject::Environment {
                hostname: facts.hosts[environment.host].hostname.to_owned(),
                eid: environment.environment.eid.clone(),
            },
            user: environment.user,
            host: Some(environment.host),
            found: found.what,
            allowed: found.allowed,
            advice: found.advice.to_owned(),
            excess: 1,
            units: vec![unit],
            held: None,
        });
    }
    findings
}

/// What is wrong, in words.
struct Found {
    what: String,
    allowed: String,
    advice: &'static str,
}

fn too_old(view: &View<'_, '_>, environment: &EnvironmentFacts<'_>, leases: bool, now_seconds: f64) -> Option<Found> {
    let created = environment.created_seconds?;
    let limit = view.limit(environment.user, Some(environment.host))?;
    let age = now_seconds - created;
    if age.is_nan() || age <= limit.value as f64 {
        return None;
    }
    let end = environment.lease_end_seconds.filter(|_| leases);
    let promised = match end.filter(|end| *end > now_seconds) {
        Some(_) => "; its lease is longer than the limit",
        None => "",
    };
    Some(Found {
        what: format!(
            "environment {} is {} old and has devices{promised}",
            words::name(&environment.environment.eid),
            words::duration(age as u64)
        ),
        allowed: format!("{} {limit}", words::duration(limit.value)),
        advice: "give back its devices, and go on in a new environment",
    })
}

fn lease_ended(environment: &EnvironmentFacts<'_>, now_seconds: f64) -> Option<Found> {
    let over = now_seconds - environment.lease_end_seconds?;
    (over > 0.0).then(|| Found {
        what: format!(
            "the lease of environment {} ended {} ago, and it has devices",
            words::name(&environment.environment.eid),
            words::duration(over as u64)
        ),
        allowed: "devices until the end of the lease".to_owned(),
        advice: "give back its devices, or let the lease end later: genv extend 2h",
    })
}
