//! Rules about panels.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Fault;
use genv_tests::dashboard::{Dashboard, Panel, list, text};

/// Panels that every Grafana has, without a plugin.
const CORE_TYPES: [&str; 24] = [
    "alertlist",
    "annolist",
    "barchart",
    "bargauge",
    "candlestick",
    "canvas",
    "dashlist",
    "gauge",
    "geomap",
    "heatmap",
    "histogram",
    "logs",
    "news",
    "nodeGraph",
    "piechart",
    "row",
    "stat",
    "state-timeline",
    "status-history",
    "table",
    "text",
    "timeseries",
    "trend",
    "xychart",
];

/// Units of Grafana that fit what is shown here. A misspelt unit is shown as a text behind the number.
/// <https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats/categories.ts>
const UNITS: [&str; 31] = [
    "none",
    "string",
    "short",
    "locale",
    "percent",
    "percentunit",
    "bytes",
    "decbytes",
    "Bps",
    "binBps",
    "watt",
    "kwatt",
    "watth",
    "kwatth",
    "joule",
    "celsius",
    "hertz",
    "rothz",
    "ms",
    "s",
    "m",
    "h",
    "d",
    "dtdurations",
    "dateTimeAsIso",
    "dateTimeAsSystem",
    "dateTimeFromNow",
    "cps",
    "bool",
    "bool_yes_no",
    "bool_on_off",
];

/// Where nothing is shown, these say why; of the others an empty plot tells enough.
const SHOW_NO_VALUE: [&str; 4] = ["stat", "gauge", "bargauge", "table"];

/// It is shown without installing anything.
pub(super) fn core_type(dashboard: &Dashboard) -> Vec<Fault> {
    each(dashboard.panels(), |panel| {
        let known = CORE_TYPES.contains(&panel.kind());
        (!known).then(|| format!("the type {:?} is none of Grafana's own", panel.kind()))
    })
}

/// It asks the data source that was chosen.
pub(super) fn datasource(dashboard: &Dashboard) -> Vec<Fault> {
    let wanted = json!({"type": "prometheus", "uid": "${datasource}"});
    each(dashboard.queried_panels(), |panel| {
        let mut its = panel.targets().map(|target| &target.0["datasource"]);
        let right = panel.0["datasource"] == wanted && its.all(|source| source.is_null() || *source == wanted);
        (!right).then(|| "does not use the data source ${datasource} throughout".to_owned())
    })
}

/// People know what they see, and where its numbers come from.
pub(super) fn title_description(dashboard: &Dashboard) -> Vec<Fault> {
    each(dashboard.panels(), |panel| {
        let described = panel.kind() == "row" || !text(&panel.0["description"]).trim().is_empty();
        let titled = !panel.title().trim().is_empty();
        (!titled || !described).then(|| "lacks a title or a description".to_owned())
    })
}

/// A title names one panel, in what people tell each other as in what these tests say.
pub(super) fn title_unique(dashboard: &Dashboard) -> Vec<Fault> {
    let mut seen = BTreeSet::new();
    each(dashboard.panels(), |panel| {
        let first = panel.kind() == "row" || seen.insert(panel.title().to_owned());
        (!first).then(|| "has the title of another panel".to_owned())
    })
}

/// Numbers have units: by default, and wherever a field is told apart.
pub(super) fn units(dashboard: &Dashboard) -> Vec<Fault> {
    each(dashboard.queried_panels(), |panel| {
        let by_default = &panel.0["fieldConfig"]["defaults"]["unit"];
        let overrides = panel.overrides().iter().flat_map(|field| list(&field["properties"]));
        let units = overrides.filter(|property| property["id"] == "unit").map(|property| &property["value"]);
        let wrong: Vec<_> = std::iter::once(by_default).chain(units).filter(|unit| !is_unit(unit)).collect();
        (!wrong.is_empty()).then(|| format!("has no unit, or one that Grafana does not know: {wrong:?}"))
    })
}

fn is_unit(unit: &Value) -> bool {
    let unit = text(unit);
    let own = ["suffix:", "prefix:"].iter().find_map(|prefix| unit.strip_prefix(prefix));
    UNITS.contains(&unit) || own.is_some_and(|own| !own.trim().is_empty())
}

/// A panel asks something.
pub(super) fn no_targets(dashboard: &Dashboard) -> Vec<Fault> {
    each(dashboard.queried_panels(), |panel| {
        let asks = panel.targets().next().is_some_and(|first| !first.expression().is_empty());
        (!asks).then(|| "has no target".to_owned())
    })
}

/// No data never looks like idle, nor like an error of Grafana.
pub(super) fn no_value(dashboard: &Dashboard) -> Vec<Fault> {
    each(dashboard.queried_panels(), |panel| {
        let told = !text(&panel.0["fieldConfig"]["defaults"]["noValue"]).trim().is_empty();
        let shows = SHOW_NO_VALUE.contains(&panel.kind());
        (shows && !told).then(|| "does not say what it means that there is no value: set noValue".to_owned())
    })
}

/// A line over the time of which nothing is known would be an invention.
pub(super) fn span_nulls(dashboard: &Dashboard) -> Vec<Fault> {
    each(dashboard.panels(), |panel| {
        let overrides = panel.overrides().iter().flat_map(|field| list(&field["properties"]));
        let mut spans = overrides.filter(|property| property["id"] == "custom.spanNulls");
        let spanned = panel.0["fieldConfig"]["defaults"]["custom"]["spanNulls"] == true
            || spans.any(|property| property["value"] == true);
        spanned.then(|| "draws lines where no data is (spanNulls)".to_owned())
    })
}

fn each<'a>(
    panels: impl IntoIterator<Item = Panel<'a>>,
    mut check: impl FnMut(Panel<'a>) -> Option<String>,
) -> Vec<Fault> {
    panels.into_iter().filter_map(|panel| Some(Fault::panel(panel, check(panel)?))).collect()
}
