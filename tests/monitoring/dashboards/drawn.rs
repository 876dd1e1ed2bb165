//! How Grafana draws a panel: how wide it is, which columns a table shows, and what its colours say.

use std::collections::BTreeSet;

use genv_tests::dashboard::{Panel, list, text};
use regex::Regex;
use serde_json::Value;

/// What each hue says, in all its shades, and the names that it may stand for. A word always says it too, for readers who do
/// not tell colours apart. `text` (grey) is for all else: unknown, up, taken, simulated. Yellow and red also mark thresholds.
const PALETTE: [(&str, &str); 6] = [
    ("green", "free"),
    ("blue", "held shared used use share utilization busy memory attached"),
    ("orange", "idle unclaimed"),
    ("purple", "outside somebody"),
    ("yellow", "warning warnings warned throttled hot paused stale waiting pending limit"),
    ("red", "critical broken lost down failed failing error errors xid open ended killed acted shutdown dead"),
];

/// The fields of all overrides that have a property, with its value.
pub(crate) fn properties<'a>(panel: Panel<'a>, id: &str) -> Vec<(&'a str, &'a Value)> {
    let of = |field: &'a Value| list(&field["properties"]).iter().map(move |property| (field, property));
    let all = panel.overrides().iter().flat_map(of).filter(|(_, property)| property["id"] == id);
    all.map(|(field, property)| (text(&field["matcher"]["options"]), &property["value"])).collect()
}

/// The pixels of a panel on a screen of 1366: beside the docked menu 24 columns have 1034, with 8 between panels.
pub(crate) fn pixels(panel: Panel<'_>) -> u64 {
    (1042 * panel.0["gridPos"]["w"].as_u64().unwrap_or(0) / 24).saturating_sub(8)
}

/// The columns that a table shows, as far as it names them.
pub(crate) fn columns(panel: Panel<'_>) -> BTreeSet<&str> {
    let mut shown = BTreeSet::new();
    for organize in panel.transformations().iter().filter(|one| one["id"] == "organize") {
        let options = &organize["options"];
        let [renamed, hidden] = ["renameByName", "excludeByName"].map(|key| &options[key]);
        let named = [&options["indexByName"], renamed].into_iter().filter_map(Value::as_object);
        let fields = named.flat_map(|names| names.keys()).filter(|field| hidden[field.as_str()] != true);
        shown.extend(fields.map(|field| renamed[field.as_str()].as_str().unwrap_or(field)));
    }
    shown
}

/// Whether the columns of a table, of 150 pixels by default, fit its panel beside its frame and scroll bar.
pub(crate) fn columns_fit(panel: Panel<'_>) -> bool {
    let widths = columns(panel).into_iter().map(|column| {
        let is_match = |pattern: &str| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(column));
        let is_of = |field: &str| field == column || field.starts_with('/') && is_match(field.trim_matches('/'));
        let set = properties(panel, "custom.width").into_iter().rfind(|(field, _)| is_of(field));
        let width = set.map_or(&panel.0["fieldConfig"]["defaults"]["custom"]["width"], |(_, width)| width);
        width.as_u64().unwrap_or(150)
    });
    widths.sum::<u64>() + 34 <= pixels(panel)
}

/// Whether the colours in a part of a panel mean what their mapped text says, else the name of the field, else the title.
pub(crate) fn keeps_palette(part: &Value, name: &str, title: &str) -> bool {
    let (name, title) = match (part["text"].as_str(), part["matcher"]["options"].as_str()) {
        (Some(mapped), _) => (mapped, ""),
        (None, Some(field)) => (field, title),
        (None, None) => (name, title),
    };
    let alarms = |color: &str| part.get("value").is_some() && (color.ends_with("yellow") || color.ends_with("red"));
    let mut colors = ["color", "fixedColor"].into_iter().filter_map(|key| part[key].as_str());
    let mode = text(&part["mode"]);
    let fields = part.as_object().into_iter().flat_map(|fields| fields.values());
    (!mode.starts_with("continuous") || mode == "continuous-blues")
        && colors.all(|color| alarms(color) || means(color, [name, title]))
        && fields.chain(list(part)).all(|part| keeps_palette(part, name, title))
}

/// Whether a colour is that of what the first of these names says which says anything.
fn means(color: &str, names: [&str; 2]) -> bool {
    let hues = |name: &str| -> Vec<&str> {
        let name = name.to_lowercase();
        let words: Vec<&str> = name.split(|c: char| !c.is_alphabetic()).collect();
        let told = PALETTE.iter().filter(|(_, own)| own.split(' ').any(|word| words.contains(&word)));
        told.map(|(hue, _)| *hue).collect()
    };
    let hue = color.rsplit('-').next().unwrap_or(color);
    let told = names.into_iter().map(hues).find(|hues| !hues.is_empty());
    ["text", "transparent"].contains(&hue) || told.is_some_and(|hues| hues.contains(&hue))
}
