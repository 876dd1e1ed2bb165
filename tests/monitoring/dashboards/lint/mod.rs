//! What every dashboard must hold, whatever the data: the rules of Grafana's dashboard-linter
//! (<https://github.com/grafana/dashboard-linter/blob/main/docs/index.md>), all of them errors, and rules of our own.

mod layout;
mod links;
mod panels;
mod targets;
mod templates;
mod whole;

pub(crate) use links::ABOUT_ONE_HOST;

use std::collections::BTreeSet;

use genv_tests::dashboard::{Dashboard, Panel};

/// Something that a rule refuses.
#[derive(Debug)]
pub(crate) struct Fault {
    panel: Option<String>,
    what: String,
}

type Rule = (&'static str, fn(&Dashboard) -> Vec<Fault>);

const RULES: &[Rule] = &[
    ("uneditable", whole::uneditable),
    ("uid", whole::uid),
    ("links", whole::links),
    ("template-datasource", templates::datasource),
    ("template-job", templates::job),
    ("template-hostname", templates::hostname),
    ("template-shared", templates::shared),
    ("template-label-promql", templates::label_promql),
    ("template-on-time-change-reload", templates::on_time_change_reload),
    ("template-order", templates::order),
    ("template-unused", templates::unused),
    ("link-target", links::lead_somewhere),
    ("link-host", links::hosts),
    ("panel-type", panels::core_type),
    ("panel-datasource", panels::datasource),
    ("panel-title-description", panels::title_description),
    ("panel-title-unique", panels::title_unique),
    ("panel-units", panels::units),
    ("panel-no-targets", panels::no_targets),
    ("panel-no-value", panels::no_value),
    ("panel-span-nulls", panels::span_nulls),
    ("panel-id", layout::ids),
    ("panel-columns", layout::columns),
    ("panel-overlap", layout::overlaps),
    ("panel-hole", layout::holes),
    ("target-reference", targets::references),
    ("target-query-type", targets::query_types),
    ("target-promql", targets::promql),
    ("target-job", targets::job_matchers),
    ("target-rate-interval", targets::rate_intervals),
    ("target-counter", targets::counters),
    ("target-hourly", targets::hourly),
    ("target-vector-zero", targets::vector_zero),
];

/// Everything that any rule refuses, each on a line that names the dashboard, the panel and the rule.
pub(crate) fn lint(dashboard: &Dashboard) -> Vec<String> {
    RULES.iter().flat_map(|(rule, check)| lines(dashboard, rule, check(dashboard))).collect()
}

/// Everything that the rule about matchers of hostname refuses, where these metrics have that label.
pub(crate) fn hostname(dashboard: &Dashboard, with_hostname: &BTreeSet<String>) -> Vec<String> {
    let faults = targets::hostname_matchers(dashboard, with_hostname);
    lines(dashboard, "target-hostname", faults)
}

fn lines(dashboard: &Dashboard, rule: &str, faults: Vec<Fault>) -> Vec<String> {
    let line = |fault: Fault| {
        let panel = fault.panel.map_or_else(String::new, |panel| format!(", panel '{panel}'"));
        format!("dashboard '{}'{panel}: {rule}: {}", dashboard.title(), fault.what)
    };
    faults.into_iter().map(line).collect()
}

impl Fault {
    fn dashboard(what: impl Into<String>) -> Self {
        Self { panel: None, what: what.into() }
    }

    fn panel(panel: Panel<'_>, what: impl Into<String>) -> Self {
        Self { panel: Some(panel.name()), what: what.into() }
    }
}

/// A fault of the dashboard unless `holds`.
fn unless(holds: bool, what: impl Into<String>) -> Vec<Fault> {
    if holds { Vec::new() } else { vec![Fault::dashboard(what)] }
}
