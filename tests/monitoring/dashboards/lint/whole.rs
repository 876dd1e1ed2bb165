//! Rules about a dashboard as a whole.

use serde_json::Value;

use super::{Fault, unless};
use genv_tests::dashboard::{Dashboard, list};

/// It is changed in its file, not in place, where the next update would undo it.
pub(super) fn uneditable(dashboard: &Dashboard) -> Vec<Fault> {
    unless(dashboard.json["editable"] == false, "is editable: set \"editable\" to false")
}

/// Addresses and bookmarks outlive updates: the uid is given by the file's name, and no database id is stored.
pub(super) fn uid(dashboard: &Dashboard) -> Vec<Fault> {
    let wanted = format!("genv-{}", dashboard.file);
    let mut faults = unless(dashboard.uid() == wanted, format!("the uid must be {wanted:?}"));
    faults.extend(unless(!dashboard.title().is_empty(), "has no title"));
    faults.extend(unless(
        dashboard.json.get("id").is_none_or(Value::is_null),
        "carries the id of one Grafana's database: remove \"id\"",
    ));
    faults
}

/// From each dashboard the others are found, with the same choice of variables and time.
pub(super) fn links(dashboard: &Dashboard) -> Vec<Fault> {
    let tagged = list(&dashboard.json["tags"]).iter().any(|tag| tag == "genv");
    let linked = list(&dashboard.json["links"]).iter().any(|link| {
        link["type"] == "dashboards"
            && list(&link["tags"]).iter().any(|tag| tag == "genv")
            && link["includeVars"] == true
            && link["keepTime"] == true
    });
    let mut faults = unless(tagged, "lacks the tag \"genv\", by which others link to it");
    faults.extend(unless(linked, "lacks the link to all dashboards tagged \"genv\" with includeVars and keepTime"));
    faults
}
