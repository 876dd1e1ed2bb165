//! What the Overview has to hold beyond what every dashboard must, and that it counts a host once.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use genv_tests::dashboard::{Dashboard, Panel};
use genv_tests::history::RulesFile;
use promql_parser::parser::{Expr, LabelModifier, token};

use crate::dashboards::promql;

/// The panels of genv 1.4.3's Overview, and those that answer the same here: of all, and of each.
const COUNTERPARTS: [(&str, &[&str]); 11] = [
    ("Cluster Installation", &["genv installed"]),
    ("Environments", &["Environments"]),
    ("Users", &["Users"]),
    ("Devices", &["Attached GPUs"]),
    ("Processes", &["Processes on GPUs"]),
    ("Cluster Compute Utilization", &["Utilization", "Utilization of each GPU"]),
    ("Device Compute Utilization", &["Utilization of each GPU"]),
    ("Cluster Memory Utilization", &["Memory", "Memory of each GPU"]),
    ("Device Memory Utilization", &["Memory of each GPU"]),
    ("Cluster Temperature", &["Temperature", "Temperature of each GPU"]),
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
            kept.extend(call.args.args.iter().skip(3).filter_map(|label| match &**label {
                Expr::StringLiteral(label) => Some(label.val.as_str()),
                _ => None,
            }));
        }
    });
    let alerts = RulesFile::shipped("genv-alerts.yml")?.groups;
    for rule in alerts.iter().flat_map(|group| &group.rules) {
        for text in rule.annotations.values() {
            for after in text.split("$labels.").skip(1) {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let label = &after[..end.unwrap_or(after.len())];
                ensure!(kept.contains(label), "the table drops {label} of {}", rule.alert);
            }
        }
    }
    Ok(())
}

/// Whether series of the exporters, one for each target that tells a thing, are in the result of an expression: no
/// aggregation has made one of them yet.
fn is_told_by_targets(expression: &Expr) -> bool {
    match expression {
        Expr::VectorSelector(vector) => {
            let name = vector.name.as_deref().unwrap_or_default();
            name.starts_with("genv_")
        }
        Expr::MatrixSelector(matrix) => {
            let name = matrix.vs.name.as_deref().unwrap_or_default();
            name.starts_with("genv_")
        }
        Expr::Binary(binary) => {
            let filters = matches!(binary.op.id(), token::T_LAND | token::T_LUNLESS);
            is_told_by_targets(&binary.lhs) || (!filters && is_told_by_targets(&binary.rhs))
        }
        Expr::Call(call) => call.args.args.iter().any(|it| is_told_by_targets(it)),
        Expr::Paren(paren) => is_told_by_targets(&paren.expr),
        Expr::Unary(unary) => is_told_by_targets(&unary.expr),
        Expr::Subquery(subquery) => is_told_by_targets(&subquery.expr),
        Expr::Aggregate(_) | Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => false,
    }
}

#[test]
fn a_host_that_is_scraped_twice_is_counted_once() -> Result<()> {
    let mut wrong = Vec::new();
    for dashboard in Dashboard::shipped()? {
        for panel in dashboard.queried_panels() {
            for target in panel.targets() {
                let expression = promql::parse(target.expression(), &dashboard);
                let expression = expression.map_err(anyhow::Error::msg)?;
                promql::visit(&expression, None, &mut |part, _| {
                    if let Expr::Aggregate(aggregate) = part
                        && [token::T_SUM, token::T_COUNT, token::T_AVG].contains(&aggregate.op.id())
                        && is_told_by_targets(&aggregate.expr)
                    {
                        wrong.push(format!("{}: {aggregate}", panel.name()));
                    }
                });
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
