//! The dashboards that are shipped: whether they keep every rule, and whether a real Prometheus with the demo's data answers
//! everything that they ask, whatever is chosen. Every file in `grafana/dashboards` is checked.

mod drawn;
pub(crate) mod interpolate;
mod lint;
mod mutants;
pub(crate) mod promql;
mod queries;
mod scraped;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use genv_simulator::Engine;
use genv_tests::dashboard::{Dashboard, Target};
use genv_tests::history::{History, RulesFile};
use genv_tests::prometheus::Prometheus;

use interpolate::{Times, interpolate};
use lint::Lint;
use queries::Questions;

/// The dashboard that needs an enforcer: [`scraped`] has one.
const ENFORCEMENT: &str = "genv-enforcement";

/// Time between two scrapes.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(30);

/// Several hours, and so much more that the GPU which is throttled now and then is throttled at the end, and that the last
/// hourly sample is some while ago.
const LASTING: Duration = Duration::from_secs((6 * 60 + 32) * 60);

#[test]
fn shipped_dashboards_keep_every_rule() -> Result<()> {
    let lint = |dashboard| Lint::of(dashboard, &BTreeSet::new()).faults.into_iter().map(|(_, what)| what);
    let wrong: Vec<String> = Dashboard::shipped()?.iter().flat_map(lint).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// What keeps to no choice of hosts, of the metrics that have a hostname.
fn of_any_host(dashboard: &Dashboard, with_hostname: &BTreeSet<String>) -> Vec<String> {
    let faults = Lint::of(dashboard, with_hostname).faults.into_iter();
    faults.filter(|(rule, _)| *rule == "target-hostname").map(|(_, what)| what).collect()
}

/// What a target asks with everything at All.
pub(crate) fn with_all(dashboard: &Dashboard, target: Target<'_>, times: &Times) -> Result<String> {
    let variables = dashboard.variables().into_iter();
    let all = variables.map(|variable| (variable.name().to_owned(), ".+".to_owned())).collect();
    interpolate(target.expression(), &all, times)
}

#[test]
fn prometheus_answers_every_question_of_every_dashboard() -> Result<()> {
    let past = History::new(Engine::demo()?, LASTING, SCRAPE_INTERVAL)?.start("prometheus-3")?;
    let questions = Questions::new(&past.prometheus, (past.from, past.end), SCRAPE_INTERVAL)?;
    let with_hostname = questions.metrics_with_hostname()?;
    let mut faults = Vec::new();
    for dashboard in Dashboard::shipped()?.iter().filter(|dashboard| dashboard.uid() != ENFORCEMENT) {
        faults.extend(of_any_host(dashboard, &with_hostname));
        faults.extend(questions.faults(dashboard)?);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn prometheus_2_understands_every_question_of_every_dashboard() -> Result<()> {
    let prometheus = Prometheus::start_configured("prometheus", "{}", &[])?;
    let times = Times::new((0, 86_400), 1000, SCRAPE_INTERVAL, None);
    for dashboard in Dashboard::shipped()? {
        for panel in dashboard.queried_panels() {
            for target in panel.targets() {
                prometheus.query(&with_all(&dashboard, target, &times)?).with_context(|| panel.name())?;
            }
        }
    }
    Ok(())
}

fn is_no_part_of_a_name(c: char) -> bool {
    !c.is_ascii_alphanumeric() && c != '_'
}

#[test]
fn what_fires_now_has_a_line_for_each_alert_that_is_counted() -> Result<()> {
    let shipped = Dashboard::shipped()?;
    let mut panels = shipped.iter().flat_map(|dashboard| dashboard.queried_panels());
    let table = panels.find(|panel| panel.title() == "What fires now").context("no such table")?;
    let target = table.targets().next().context("no query")?;
    // A label that a selector names is not one by which lines are told apart.
    let parts = target.expression().split('{').map(|part| part.rsplit('}').next().unwrap_or(part));
    let kept: BTreeSet<&str> = parts.flat_map(|part| part.split(is_no_part_of_a_name)).collect();
    let alerts = RulesFile::shipped("genv-alerts.yml")?.groups;
    for rule in alerts.iter().flat_map(|group| &group.rules) {
        let named = rule.annotations.values().flat_map(|text| text.split("$labels.").skip(1));
        for label in named.filter_map(|after| after.split(is_no_part_of_a_name).next()) {
            ensure!(kept.contains(label), "the table drops {label} of {}", rule.alert);
        }
    }
    Ok(())
}
