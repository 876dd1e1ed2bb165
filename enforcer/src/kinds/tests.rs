//! Rules of all kinds, for tests that hold for each of them.

pub(crate) use super::idle::Idle;
pub(crate) use super::max_age::MaxAge;
pub(crate) use super::max_environments_per_user::MaxEnvironmentsPerUser;
pub(crate) use super::max_hosts_per_user::MaxHostsPerUser;
pub(crate) use super::max_memory_per_user::MaxMemoryPerUser;
pub(crate) use super::max_processes_per_environment::MaxProcessesPerEnvironment;
pub(crate) use super::unknown_processes::UnknownProcesses;
use super::{KINDS, KindDefinition, Limits, MemoryPer, RuleKind, Scope};
use crate::config::{Action, Config, Rule};
use crate::plan::Violation;
use crate::plan::tests::daemon::{Daemon, rule, targets};
use crate::plan::tests::lab::Lab;

pub(crate) fn example(kind: &KindDefinition) -> String {
    let limit = kind.limit.map(|quantity| format!(", limit: {}", quantity.example()));
    format!("kind: {}{}", kind.word, limit.unwrap_or_default())
}

fn with_values(kind: &KindDefinition, values: &[(&str, &str)]) -> RuleKind {
    let values = values.iter().filter(|(key, _)| kind.keys.contains(key));
    let values: String = values.map(|(key, value)| format!(", {key}: {value}")).collect();
    let text = format!("version: 1\nrules: [{{{}{values}}}]\n", example(kind));
    let config = Config::parse("enforcer.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
    config.rules[0].kind.clone()
}

pub(crate) fn small(kind: &KindDefinition, scope: Scope, per: MemoryPer) -> RuleKind {
    let per_device = per == MemoryPer::Device;
    let values = [
        ("over", "20s"),
        ("per", if per_device { "device" } else { "total" }),
        ("scope", if scope == Scope::Host || per_device && kind.keys.contains(&"per") { "host" } else { "all-hosts" }),
    ];
    with_values(kind, &values)
}

pub(crate) fn strictest() -> Vec<RuleKind> {
    let kinds = KINDS.iter().map(|kind| {
        let kind = with_values(kind, &[("over", "20s"), ("below", "1")]);
        kind.with_limits(Limits::nothing()).unwrap_or(kind)
    });
    kinds.collect()
}

/// What a rule that acts at once finds and does in a lab: `found | allowed | targets` of each violation.
pub(crate) fn said(kind: impl Into<RuleKind>, action: Action, lab: &Lab) -> Vec<String> {
    said_by(rule(kind, action), lab)
}

pub(crate) fn said_by(rule: Rule, lab: &Lab) -> Vec<String> {
    let plan = Daemon::new(vec![rule]).plan(lab);
    let line = |violation: &Violation| {
        let targets = targets(violation).join(", ");
        format!("{}: {} | {} | {targets}", violation.username, violation.found(), violation.allowed())
    };
    plan.violations.iter().map(line).collect()
}

pub(crate) fn terminated(kind: impl Into<RuleKind>, lab: &Lab) -> Vec<String> {
    said(kind, Action::Terminate, lab)
}

pub(crate) fn detached(kind: impl Into<RuleKind>, lab: &Lab) -> Vec<String> {
    said(kind, Action::Detach, lab)
}
