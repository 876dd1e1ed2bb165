//! Grafana's dashboards as they lie in the repository: what the tests read of their JSON.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Panels that ask no data source.
const WITHOUT_QUERIES: [&str; 6] = ["row", "text", "alertlist", "dashlist", "annolist", "news"];

#[derive(Clone, Debug)]
pub struct Dashboard {
    pub file: String,
    pub json: Value,
}

/// A panel of a dashboard; rows are panels too.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a>(pub &'a Value);

#[derive(Clone, Copy, Debug)]
pub struct Target<'a>(pub &'a Value);

#[derive(Clone, Copy, Debug)]
pub struct Variable<'a>(pub &'a Value);

impl Dashboard {
    pub fn shipped() -> Result<Vec<Self>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../grafana/dashboards");
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("reading the dashboards in {}", folder.display()))?;
        let mut dashboards = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read_to_string(&path)?;
                let file = path.file_stem().context("a file without a name")?;
                dashboards.push(Self {
                    file: file.to_string_lossy().into_owned(),
                    json: serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?,
                });
            }
        }
        ensure!(!dashboards.is_empty(), "no dashboard in {}", folder.display());
        dashboards.sort_by(|one, other| one.file.cmp(&other.file));
        Ok(dashboards)
    }

    pub fn of_file(file: &str) -> Result<Self> {
        let mut shipped = Self::shipped()?.into_iter();
        shipped.find(|dashboard| dashboard.file == file).with_context(|| format!("no dashboard {file}"))
    }

    pub fn uid(&self) -> &str {
        text(&self.json["uid"])
    }

    pub fn title(&self) -> &str {
        text(&self.json["title"])
    }

    /// All panels, those of collapsed rows included.
    pub fn panels(&self) -> Vec<Panel<'_>> {
        let mut panels = Vec::new();
        for panel in list(&self.json["panels"]) {
            panels.push(Panel(panel));
            panels.extend(list(&panel["panels"]).iter().map(Panel));
        }
        panels
    }

    pub fn queried_panels(&self) -> impl Iterator<Item = Panel<'_>> {
        self.panels().into_iter().filter(Panel::asks)
    }

    pub fn variables(&self) -> Vec<Variable<'_>> {
        list(&self.json["templating"]["list"]).iter().map(Variable).collect()
    }

    pub fn variable(&self, name: &str) -> Option<Variable<'_>> {
        self.variables().into_iter().find(|variable| variable.name() == name)
    }
}

impl<'a> Panel<'a> {
    pub fn title(self) -> &'a str {
        text(&self.0["title"])
    }

    pub fn name(self) -> String {
        match self.title() {
            "" => format!("id {}", self.0["id"]),
            title => title.to_owned(),
        }
    }

    pub fn kind(self) -> &'a str {
        text(&self.0["type"])
    }

    pub fn asks(&self) -> bool {
        !WITHOUT_QUERIES.contains(&self.kind())
    }

    pub fn targets(self) -> impl Iterator<Item = Target<'a>> {
        list(&self.0["targets"]).iter().map(Target)
    }

    pub fn transformations(self) -> &'a [Value] {
        list(&self.0["transformations"])
    }

    pub fn overrides(self) -> &'a [Value] {
        list(&self.0["fieldConfig"]["overrides"])
    }
}

impl<'a> Target<'a> {
    pub fn expression(self) -> &'a str {
        text(&self.0["expr"])
    }

    /// Its name within the panel: `refId`.
    pub fn reference(self) -> &'a str {
        text(&self.0["refId"])
    }

    pub fn legend(self) -> &'a str {
        text(&self.0["legendFormat"])
    }

    /// Whether it asks for the values at the end of the time range only.
    pub fn is_instant(self) -> bool {
        self.0["instant"] == true
    }
}

impl<'a> Variable<'a> {
    pub fn name(self) -> &'a str {
        text(&self.0["name"])
    }

    pub fn kind(self) -> &'a str {
        text(&self.0["type"])
    }

    pub fn label(self) -> &'a str {
        text(&self.0["label"])
    }

    /// Its query, in whichever of Grafana's two ways it is written.
    pub fn query(self) -> &'a str {
        match &self.0["query"] {
            Value::Object(query) => query.get("query").map_or("", text),
            query => text(query),
        }
    }

    pub fn current(self) -> &'a str {
        match &self.0["current"]["value"] {
            Value::Array(values) => values.first().map_or("", text),
            value => text(value),
        }
    }
}

/// A string, or nothing where there is none.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The elements of an array, or none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
