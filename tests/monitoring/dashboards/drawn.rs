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
/// The palettes of Grafana tell series apart: users, hosts, GPUs.
const COLOR_MODES: [&str; 5] =
    ["fixed", "thresholds", "palette-classic", "palette-classic-by-name", "continuous-blues"];

/// Pixels of the 24 columns of Grafana's grid on a screen of 1366, beside the docked menu, and between panels; of a table's
/// column by default, and of its frame and scroll bar.
const PAGE_PIXELS: u64 = 1034;
const GAP_PIXELS: u64 = 8;
const COLUMN_PIXELS: u64 = 150;
pub(crate) const FRAME_PIXELS: u64 = 34;

/// The fields of all overrides that have a property, with its value.
pub(crate) fn properties<'a>(panel: Panel<'a>, id: &str) -> Vec<(&'a str, &'a Value)> {
    let of = |field: &'a Value| list(&field["properties"]).iter().map(move |property| (field, property));
    let all = panel.overrides().iter().flat_map(of).filter(|(_, property)| property["id"] == id);
    all.map(|(field, property)| (text(&field["matcher"]["options"]), &property["value"])).collect()
}

pub(crate) fn pixels(panel: Panel<'_>) -> u64 {
    ((PAGE_PIXELS + GAP_PIXELS) * panel.0["gridPos"]["w"].as_u64().unwrap_or(0) / 24).saturating_sub(GAP_PIXELS)
}

/// The columns that a table shows, as far as it names them.
pub(crate) fn columns(panel: Panel<'_>) -> BTreeSet<&str> {
    let organized = panel.transformations().iter().filter(|transformation| transformation["id"] == "organize");
    let shown = organized.flat_map(|organize| {
        let [places, renamed, hidden] =
            ["indexByName", "renameByName", "excludeByName"].map(|key| &organize["options"][key]);
        let fields = [places, renamed].into_iter().filter_map(Value::as_object).flat_map(|names| names.keys());
        let fields = fields.filter(move |field| hidden[field.as_str()] != true);
        fields.map(move |field| renamed[field.as_str()].as_str().unwrap_or(field.as_str()))
    });
    shown.collect()
}

pub(crate) fn width(panel: Panel<'_>, column: &str) -> u64 {
    let is_match = |pattern: &str| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(column));
    let is_of = |field: &str| field == column || field.starts_with('/') && is_match(field.trim_matches('/'));
    let set = |id: &str| properties(panel, id).into_iter().rfind(|(field, _)| is_of(field)).map(|(_, value)| value);
    let is_hidden = set("custom.hidden").is_some_and(|hidden| *hidden == true);
    let width = set("custom.width").unwrap_or(&panel.0["fieldConfig"]["defaults"]["custom"]["width"]);
    if is_hidden { 0 } else { width.as_u64().unwrap_or(COLUMN_PIXELS) }
}

/// Whether every colour of a panel has the palette's meaning.
pub(crate) fn keeps_palette(panel: Panel<'_>) -> bool {
    let own = properties(panel, "color").into_iter().map(|(_, color)| color);
    let mut modes = own.chain([&panel.0["fieldConfig"]["defaults"]["color"]]).map(|color| &color["mode"]);
    let mut holds = modes.all(|mode| mode.is_null() || COLOR_MODES.iter().any(|known| mode == known));
    for (name, setting) in colored(panel) {
        visit_colors(setting, &mut |of, color| {
            let alarms = of.get("value").is_some() && ["yellow", "red"].contains(&hue(color));
            let mapped = of.get("text").map(text);
            let names = mapped.map_or_else(|| vec![name.as_str(), panel.title()], |mapped| vec![mapped]);
            holds &= alarms || means(color, &names);
        });
    }
    holds
}

/// What sets colours in a panel, with the name of what it is set for.
fn colored(panel: Panel<'_>) -> Vec<(String, &Value)> {
    let keys = ["color", "thresholds", "mappings"];
    let defaults = &panel.0["fieldConfig"]["defaults"];
    let mut settings: Vec<_> = keys.map(|key| (text(&defaults["displayName"]).to_owned(), &defaults[key])).into();
    for field in panel.overrides() {
        let set = |id: &str| list(&field["properties"]).iter().find(|property| property["id"] == id);
        let shown = set("displayName").map_or("", |property| text(&property["value"]));
        let name = format!("{} {shown}", text(&field["matcher"]["options"]));
        settings.extend(keys.iter().filter_map(|key| Some((name.clone(), &set(key)?["value"]))));
    }
    settings
}

fn visit_colors<'a>(setting: &'a Value, each: &mut impl FnMut(&'a Value, &'a str)) {
    for color in ["color", "fixedColor"].into_iter().filter_map(|key| setting.get(key)?.as_str()) {
        each(setting, color);
    }
    let fields = setting.as_object().into_iter().flat_map(|fields| fields.values());
    fields.chain(list(setting)).for_each(|part| visit_colors(part, each));
}

fn hue(color: &str) -> &str {
    let shaded = color.rsplit_once('-').filter(|(shade, _)| shade.ends_with("light") || shade.ends_with("dark"));
    shaded.map_or(color, |(_, hue)| hue)
}

/// Whether a colour is that of what the first of these names says which says anything.
fn means(color: &str, names: &[&str]) -> bool {
    let told = |name: &&str| -> Vec<&str> {
        let name = name.to_lowercase();
        let words: Vec<&str> = name.split(|c: char| !c.is_alphabetic()).collect();
        let of = PALETTE.iter().filter(|(_, own)| own.split(' ').any(|word| words.contains(&word)));
        of.map(|(hue, _)| *hue).collect()
    };
    let mut told = names.iter().map(told).filter(|hues| !hues.is_empty());
    ["text", "transparent"].contains(&hue(color)) || told.next().is_some_and(|hues| hues.contains(&hue(color)))
}
