//! What the Overview has to hold beyond what every dashboard must.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use genv_tests::dashboard::{Dashboard, Panel};
use genv_tests::history::RulesFile;
use promql_parser::parser::{Expr, LabelModifier};

use crate::promql;

/// The panels of genv 1.4.3's Overview, and those that answer the same here: of all, and of each.
const COUNTERPARTS: [(&str, &[&str]); 11] = [
    ("Cluster Installation", &["genv installed"]),
    ("Environments", &["Environments"]),
    ("Users", &["Users"]),
    ("Devices", &["Attached GPUs"]),
    ("Processes", &["Processes on GPUs"]),
    (
        "Cluster Compute Utilization",
        &["Utilization", "Utilization of each GPU"],
    ),
    ("Device Compute Utilization", &["Utilization of each GPU"]),
    (
        "Cluster Memory Utilization",
        &["Memory", "Memory of each GPU"],
    ),
    ("Device Memory Utilization", &["Memory of each GPU"]),
    (
        "Cluster Temperature",
        &["Temperature", "Temperature of each GPU"],
    ),
    ("Device Temperature", &["Temperature of each GPU"]),
];

fn overview() -> Result<Dashboard> {
    let shipped = Dashboard::shipped()?.into_iter();
    let mut overviews = shipped.filter(|dashboard| dashboard.file == "overview");
    overviews.next().context("no Overview")
}

fn panel<'a>(dashboard: &'a Dashboard, title: &str) -> Result<Panel<'a>> {
    let mut panels = dashboard.queried_panels();
    let found = panels.find(|panel| panel.title() == title);
    found.with_context(|| format!("the Overview has no panel {title:?}"))
}

#[test]
fn every_panel_of_the_older_overview_has_a_counterpart() -> Result<()> {
    let overview = overview()?;
    for (older, counterparts) in COUNTERPARTS {
        for title in counterparts {
            panel(&overview, title).with_context(|| format!("{older} has no counterpart"))?;
        }
    }
    Ok(())
}

#[test]
fn what_fires_now_has_a_line_for_each_alert_that_is_counted() -> Result<()> {
    let overview = overview()?;
    let table = panel(&overview, "What fires now")?;
    let target = table.targets().next().context("no query")?;
    let expression = promql::parse(target.expression(), &overview).map_err(anyhow::Error::msg)?;
    let Expr::Aggregate(lines) = &expression else {
        anyhow::bail!("no aggregation: {expression}");
    };
    let Some(LabelModifier::Include(columns)) = &lines.modifier else {
        anyhow::bail!("not by labels: {expression}");
    };
    let mut kept: BTreeSet<&str> = columns.labels.iter().map(String::as_str).collect();
    promql::visit(&expression, None, &mut |part, _| {
        if let Expr::Call(call) = part
            && call.func.name == "label_join"
        {
            kept.extend(
                call.args
                    .args
                    .iter()
                    .skip(3)
                    .filter_map(|label| match &**label {
                        Expr::StringLiteral(label) => Some(label.val.as_str()),
                        _ => None,
                    }),
            );
        }
    });
    let alerts = RulesFile::shipped("genv-alerts.yml")?.groups;
    for rule in alerts.iter().flat_map(|group| &group.rules) {
        for text in rule.annotations.values() {
            for after in text.split("$labels.").skip(1) {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let label = &after[..end.unwrap_or(after.len())];
                ensure!(
                    kept.contains(label),
                    "the table drops {label} of {}",
                    rule.alert
                );
            }
        }
    }
    Ok(())
}
