//! Expressions as they are shipped, found by what people see of them.

use std::path::Path;

use anyhow::{Context, Result};
use genv_tests::history::RulesFile;
use serde_json::Value;

/// A dashboard, with every variable set to All and asked about the last week.
#[derive(Debug)]
pub(crate) struct Shipped {
    panels: Vec<Value>,
}

impl Shipped {
    /// Reads a dashboard of the repository.
    pub(crate) fn dashboard(name: &str) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../grafana/dashboards");
        let text = std::fs::read_to_string(folder.join(format!("{name}.json")))?;
        let mut dashboard: Value = serde_json::from_str(&text)?;
        let mut panels = Vec::new();
        collect(dashboard["panels"].take(), &mut panels);
        Ok(Self { panels })
    }

    /// What the column of the table with this title asks, or the series of a panel; an empty name is the only one's.
    pub(crate) fn column(&self, title: &str, column: &str) -> Result<String> {
        let found = self.panels.iter().find(|panel| panel["title"] == title);
        let panel = found.with_context(|| format!("no panel {title}"))?;
        let targets = panel["targets"].as_array().context("no targets")?;
        let target = match (targets.as_slice(), column) {
            ([only], "") => Some(only),
            (targets, _) => {
                let query = named(panel, column);
                targets.iter().find(|target| {
                    target["legendFormat"] == column
                        || query
                            .as_deref()
                            .is_some_and(|query| query.is_empty() || target["refId"] == query)
                })
            }
        };
        let target = target.with_context(|| format!("the panel {title} has no {column}"))?;
        let expression = target["expr"].as_str().context("no expr")?;
        Ok(interpolated(expression))
    }
}

/// Panels that show something, also those within rows.
fn collect(panels: Value, into: &mut Vec<Value>) {
    let Value::Array(panels) = panels else { return };
    for mut panel in panels {
        collect(panel["panels"].take(), into);
        if panel["type"] != "row" {
            into.push(panel);
        }
    }
}

/// The query whose values stand in this column: `C` of `Value #C`, nothing if there is one alone.
fn named(panel: &Value, column: &str) -> Option<String> {
    let transformations = panel["transformations"].as_array()?;
    let organize = transformations.iter().find(|one| one["id"] == "organize")?;
    let names = organize["options"]["renameByName"].as_object()?;
    let (field, _) = names.iter().find(|(_, shown)| *shown == column)?;
    field.strip_prefix("Value")?;
    Some(
        field
            .trim_start_matches("Value")
            .trim_start_matches(" #")
            .to_owned(),
    )
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
    variables
        .iter()
        .fold(expression.to_owned(), |text, (variable, value)| {
            text.replace(variable, value)
        })
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
    Ok(format!(
        r#"ALERTS{{alertname="{name}", alertstate="firing"}}"#
    ))
}
