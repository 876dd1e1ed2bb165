//! The dashboards that are shipped: whether they keep the rules of Grafana's dashboard-linter and ours, and whether a real
//! Prometheus with the demo's data answers everything that they ask, whatever is chosen.
//!
//! Every file in `grafana/dashboards` is checked. What the demonstration has no data about is listed in `absences`.

mod absences;
mod choices;
mod fields;
mod host;
mod interpolate;
mod lint;
mod mistakes;
mod overview;
mod page;
mod promql;
mod queries;
mod refused;
mod scraped;
mod variables;

use std::time::Duration;

use anyhow::Result;
use genv_tests::dashboard::Dashboard;
use genv_tests::history::{History, Past};
use queries::Questions;

/// Time between two scrapes.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(30);

/// A day, and so much more that the GPU which is throttled now and then is throttled at the end, and that the last hourly
/// sample is some while ago.
const DAY: Duration = Duration::from_secs(86_400 + 32 * 60);

/// Rules that somebody in the demonstration breaks.
const RULES: &str = include_str!("enforcer.yaml");

/// What is left of a history when its enforcer is switched on: enough that everybody is warned and acted on.
const ENFORCED: Duration = Duration::from_secs(4 * 3600);

fn demo(tool: &str, lasting: Duration) -> Result<Past> {
    History::of_demo()?
        .every(SCRAPE_INTERVAL)
        .lasting(lasting)
        .enforced(RULES, lasting.saturating_sub(ENFORCED))?
        .start(tool)
}

#[test]
fn shipped_dashboards_keep_every_rule() -> Result<()> {
    let found: Vec<String> = Dashboard::shipped()?.iter().flat_map(lint::lint).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

fn every_question_is_answered(tool: &str) -> Result<()> {
    let past = demo(tool, DAY)?;
    let questions = Questions::new(&past, SCRAPE_INTERVAL);
    let with_hostname = questions.metrics_with_hostname()?;
    let mut faults = Vec::new();
    for dashboard in Dashboard::shipped()? {
        faults.extend(lint::hostname(&dashboard, &with_hostname));
        faults.extend(questions.faults(&dashboard, absences::SHIPPED)?);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn prometheus_2_answers_every_question_of_every_dashboard() -> Result<()> {
    every_question_is_answered("prometheus")
}

#[test]
fn prometheus_3_answers_every_question_of_every_dashboard() -> Result<()> {
    every_question_is_answered("prometheus-3")
}
