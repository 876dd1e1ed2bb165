//! Expressions as they are shipped, found by what people see of them.

use std::path::Path;

use anyhow::{Context, Result};
use genv_tests::dashboard::{Dashboard, Panel};
use genv_tests::history::RulesFile;

/// The dashboard of this file.
pub(crate) fn dashboard(file: &str) -> Result<Dashboard> {
    let mut shipped = Dashboard::shipped()?.into_iter();
    let found = shipped.find(|dashboard| dashboard.file == file);
    found.with_context(|| format!("no dashboard {file}"))
}

/// What the column of the table with this title asks, or the series of a panel; an empty name is the only one's. Every
/// variable is set to All, and the last week is asked about.
pub(crate) fn column(dashboard: &Dashboard, title: &str, column: &str) -> Result<String> {
    let mut panels = dashboard.queried_panels();
    let panel = panels.find(|panel| panel.title() == title);
    let panel = panel.with_context(|| format!("no panel {title}"))?;
    let targets: Vec<_> = panel.targets().collect();
    let target = match (targets.as_slice(), column) {
        ([only], "") => Some(only),
        (targets, _) => {
            let query = named(panel, column);
            targets.iter().find(|target| {
                target.legend() == column
                    || query.as_deref().is_some_and(|query| query.is_empty() || target.reference() == query)
            })
        }
    };
    let target = target.with_context(|| format!("the panel {title} has no {column}"))?;
    Ok(interpolated(target.expression()))
}

/// The query whose values stand in this column: `C` of `Value #C`, nothing if there is one alone.
fn named(panel: Panel<'_>, column: &str) -> Option<String> {
    let mut transformations = panel.transformations().iter();
    let organize = transformations.find(|one| one["id"] == "organize")?;
    let names = organize["options"]["renameByName"].as_object()?;
    let (field, _) = names.iter().find(|(_, shown)| *shown == column)?;
    field.strip_prefix("Value")?;
    Some(field.trim_start_matches("Value").trim_start_matches(" #").to_owned())
}

fn interpolated(expression: &str) -> String {
    let variables = [
        ("$__rate_interval", "4m"),
        ("$__range", "7d"),
        ("$hostname", ".+"),
        ("$username", ".+"),
        ("$model", ".+"),
        ("$job", ".+"),
    ];
    variables.iter().fold(expression.to_owned(), |text, (variable, value)| text.replace(variable, value))
}

/// The PromQL that the documentation gives for a question.
pub(crate) fn documented(question: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/stack.md");
    let text = std::fs::read_to_string(path)?;
    let mut rows = text.lines();
    let row = rows.find(|row| row.starts_with(&format!("| {question} |")));
    let row = row.with_context(|| format!("docs/stack.md has no row for '{question}'"))?;
    let quoted = row.split('`').nth(1);
    Ok(quoted.context("a row without PromQL")?.to_owned())
}

/// When the alert of this name fires.
pub(crate) fn alert(name: &str) -> Result<String> {
    RulesFile::shipped("genv-alerts.yml")?.rule(name)?;
    Ok(format!(r#"ALERTS{{alertname="{name}", alertstate="firing"}}"#))
}
