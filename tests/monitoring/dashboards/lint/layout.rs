//! Rules about where panels stand.

use std::collections::BTreeMap;

use super::Fault;
use genv_tests::dashboard::{Dashboard, Panel, list};

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

struct Place {
    left: u64,
    top: u64,
    width: u64,
    height: u64,
}

impl Place {
    fn of(panel: Panel<'_>) -> Option<Self> {
        let number = |key: &str| panel.0["gridPos"][key].as_u64();
        Some(Self { left: number("x")?, top: number("y")?, width: number("w")?, height: number("h")? })
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.left + other.width
            && other.left < self.left + self.width
            && self.top < other.top + other.height
            && other.top < self.top + self.height
    }
}

/// Panels are linked to by their numbers.
pub(super) fn ids(dashboard: &Dashboard) -> Vec<Fault> {
    let mut seen = BTreeMap::new();
    let mut faults = Vec::new();
    for panel in dashboard.panels() {
        match panel.0["id"].as_u64().filter(|id| *id > 0) {
            None => faults.push(Fault::panel(panel, "has no id, a number from 1")),
            Some(id) => {
                if let Some(other) = seen.insert(id, panel.name()) {
                    faults.push(Fault::panel(panel, format!("has the id {id} of '{other}'")));
                }
            }
        }
    }
    faults
}

/// A panel that leaves the grid is moved by Grafana, and others with it.
pub(super) fn columns(dashboard: &Dashboard) -> Vec<Fault> {
    let inside = |place: &Place| place.width > 0 && place.height > 0 && place.left + place.width <= COLUMNS;
    dashboard
        .panels()
        .into_iter()
        .filter(|panel| !Place::of(*panel).is_some_and(|place| inside(&place)))
        .map(|panel| Fault::panel(panel, format!("does not stand within {COLUMNS} columns: {}", panel.0["gridPos"])))
        .collect()
}

/// Of panels that overlap, Grafana pushes one away.
pub(super) fn overlaps(dashboard: &Dashboard) -> Vec<Fault> {
    let mut faults = Vec::new();
    for panels in groups(dashboard) {
        let placed: Vec<_> = panels.iter().filter_map(|panel| Some((*panel, Place::of(*panel)?))).collect();
        for (at, (panel, place)) in placed.iter().enumerate() {
            for (other, its) in &placed[..at] {
                if place.overlaps(its) {
                    faults.push(Fault::panel(*panel, format!("overlaps '{}'", other.name())));
                }
            }
        }
    }
    faults
}

/// Grafana moves a panel up until it meets another: one with a hole above it is not where its file says.
pub(super) fn holes(dashboard: &Dashboard) -> Vec<Fault> {
    let Some(panels) = groups(dashboard).into_iter().next() else {
        return Vec::new();
    };
    let placed: Vec<_> = panels.iter().filter_map(|panel| Some((*panel, Place::of(*panel)?))).collect();
    placed
        .iter()
        .filter(|(_, place)| {
            let above = Place { top: place.top.saturating_sub(1), height: 1, ..*place };
            place.top > 0 && !placed.iter().any(|(_, other)| other.overlaps(&above))
        })
        .map(|(panel, _)| Fault::panel(*panel, "has a hole above it"))
        .collect()
}

/// The panels that are seen together: those of the dashboard, then those of each collapsed row.
fn groups(dashboard: &Dashboard) -> Vec<Vec<Panel<'_>>> {
    let top = list(&dashboard.json["panels"]);
    let rows = top.iter().map(|row| list(&row["panels"]));
    let groups = std::iter::once(top).chain(rows.filter(|panels| !panels.is_empty()));
    groups.map(|panels| panels.iter().map(Panel).collect()).collect()
}
