//! What people read on a dashboard at a moment of a past: each panel as lines of text, its values named and with units.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use genv_tests::dashboard::{Dashboard, Panel, Target, list, text};
use genv_tests::history::Past;
use genv_tests::metrics::Labels;
use regex::Regex;
use serde_json::Value;

use crate::dashboards::SCRAPE_INTERVAL;
use crate::dashboards::interpolate::{Choice, Times, interpolate};

/// A dashboard over a past, whose whole length is its time range.
pub(crate) struct Page {
    pub(crate) dashboard: Dashboard,
    pub(crate) past: Past,
}

impl Page {
    fn panel(&self, title: &str) -> Result<Panel<'_>> {
        let mut panels = self.dashboard.queried_panels();
        let found = panels.find(|panel| panel.title() == title);
        found.with_context(|| format!("no panel {title:?}"))
    }

    fn question(&self, target: Target<'_>, choice: &Choice) -> Result<String> {
        let seconds = |moment: std::time::SystemTime| moment.duration_since(UNIX_EPOCH);
        let range = (seconds(self.past.from())?.as_secs(), seconds(self.past.end())?.as_secs());
        let times = Times::new(range, 1440, SCRAPE_INTERVAL, None);
        interpolate(target.expression(), choice, &times).map_err(|error| anyhow!(error))
    }

    /// All panels so long after the beginning.
    pub(crate) fn all(&self, choice: &Choice, passed: Duration) -> Result<String> {
        let panels = self.dashboard.queried_panels();
        let told = panels.map(|panel| {
            let lines = self.lines(panel.title(), choice, passed)?;
            Ok(format!("# {}\n{lines}\n", panel.title()))
        });
        Ok(told.collect::<Result<Vec<_>>>()?.join("\n"))
    }

    /// A panel so long after the beginning: `NAME = VALUE` for each series, in a table `CELLS: COLUMN = VALUE`.
    pub(crate) fn lines(&self, title: &str, choice: &Choice, passed: Duration) -> Result<String> {
        let panel = self.panel(title)?;
        let mut lines = Vec::new();
        for target in panel.targets() {
            let question = self.question(target, choice)?;
            let moment = self.past.after(passed);
            let answer = self.past.prometheus.query_at(&question, moment)?;
            let mut of_target = Vec::new();
            for (labels, value) in answer {
                let field = field(panel, target, &labels);
                let Some(field) = field else { continue };
                let cells = cells(panel, &labels);
                let value = value_of(panel, &field, value)?;
                of_target.push(format!("{cells}{field} = {value}"));
            }
            of_target.sort();
            lines.extend(of_target);
        }
        Ok(lines.join("\n"))
    }

    /// The lines of a panel over time, how often each was there, and first in which minute.
    pub(crate) fn occurrences(&self, title: &str, choice: &Choice) -> Result<String> {
        let panel = self.panel(title)?;
        let target = panel.targets().next().context("no query")?;
        let question = self.question(target, choice)?;
        let (from, to) = (self.past.from(), self.past.end());
        let prometheus = &self.past.prometheus;
        let answer = prometheus.query_range(&question, from, to, SCRAPE_INTERVAL)?;
        let began = from.duration_since(UNIX_EPOCH)?.as_secs_f64();
        let longest = SCRAPE_INTERVAL.as_secs_f64() * 1.5;
        let mut lines = Vec::new();
        for (labels, values) in answer {
            let pairs = values.windows(2);
            let pauses = pairs.filter(|pair| pair[1].0 - pair[0].0 > longest).count();
            let first = values.first().map_or(0.0, |(at, _)| at - began);
            let name = named(target.legend(), &labels);
            let minute = (first / 60.0).floor();
            lines.push(format!("{name}: {} times, first in minute {minute}", pauses + 1));
        }
        lines.sort();
        Ok(lines.join("\n"))
    }
}

/// A legend with the values of its labels.
fn named(legend: &str, labels: &Labels) -> String {
    let mut name = legend.to_owned();
    for (label, value) in labels {
        name = name.replace(&format!("{{{{{label}}}}}"), value);
    }
    name
}

fn organized<'a>(panel: Panel<'a>) -> Option<&'a Value> {
    let mut transformations = panel.transformations().iter();
    let found = transformations.find(|it| it["id"] == "organize")?;
    Some(&found["options"])
}

/// What a value is called; nothing if it is not shown.
fn field(panel: Panel<'_>, target: Target<'_>, labels: &Labels) -> Option<String> {
    let Some(organized) = organized(panel) else {
        return Some(named(target.legend(), labels));
    };
    let field = format!("Value #{}", target.reference());
    let hidden = organized["excludeByName"][&field] == true;
    let name = text(&organized["renameByName"][&field]);
    // The line itself is what it tells.
    Some(if hidden { "there".to_owned() } else { name.to_owned() })
}

/// The cells of a table's line that are no values, in their order.
fn cells(panel: Panel<'_>, labels: &Labels) -> String {
    let Some(organized) = organized(panel) else {
        return String::new();
    };
    let columns = organized["indexByName"].as_object();
    let mut columns: Vec<_> = columns.into_iter().flatten().collect();
    columns.sort_by_key(|(_, place)| place.as_u64());
    let names = columns.into_iter().map(|(name, _)| name);
    let mut cells: Vec<&str> = names.filter_map(|name| labels.get(name).map(String::as_str)).collect();
    if cells.is_empty() {
        // What is merged into a line of another target by labels that are not shown.
        let hidden = labels.iter();
        let hidden = hidden.filter(|(name, _)| !["job", "hostname"].contains(&name.as_str()));
        cells = hidden.map(|(_, value)| value.as_str()).collect();
    }
    format!("{}: ", cells.join(" "))
}

/// A property of a field: its last override's, or the panel's own.
fn property<'a>(panel: Panel<'a>, field: &str, id: &str) -> &'a Value {
    let applies = |matcher: &Value| {
        let wanted = text(&matcher["options"]);
        match text(&matcher["id"]) {
            "byName" => wanted == field,
            "byRegexp" => Regex::new(wanted.trim_matches('/')).is_ok_and(|regex| regex.is_match(field)),
            _ => false,
        }
    };
    let overrides = panel.overrides().iter();
    let overrides = overrides.filter(|it| applies(&it["matcher"]));
    let mut properties = overrides.flat_map(|it| list(&it["properties"]));
    let own = properties.rfind(|property| property["id"] == id);
    own.map_or(&panel.0["fieldConfig"]["defaults"][id], |own| &own["value"])
}

/// A value as it is shown: mapped, or with its unit.
fn value_of(panel: Panel<'_>, field: &str, value: f64) -> Result<String> {
    if let Some(state) = state(list(property(panel, field, "mappings")), value) {
        return Ok(state);
    }
    Ok(match text(property(panel, field, "unit")) {
        "short" => format!("{value:.2}"),
        "percentunit" => format!("{:.0} %", value * 100.0),
        "bytes" => format!("{:.1} GiB", value / f64::from(1 << 30)),
        "celsius" => format!("{value:.0} °C"),
        "watt" => format!("{value:.0} W"),
        "hertz" => format!("{:.0} MHz", value / 1e6),
        "s" => format!("{value:.0} s"),
        unit => bail!("{field} has the unit {unit:?}, which this test does not know"),
    })
}

/// What the mappings make of a value.
fn state(mappings: &[Value], value: f64) -> Option<String> {
    mappings.iter().find_map(|mapping| {
        let options = &mapping["options"];
        let result = match text(&mapping["type"]) {
            "range" => {
                let (from, to) = (options["from"].as_f64()?, options["to"].as_f64()?);
                (from <= value && value <= to).then(|| &options["result"])
            }
            _ => options.get(value.to_string()),
        };
        result.map(|result| text(&result["text"]).to_owned())
    })
}
