//! Dashboards for grafana.com, from which the Grafana of any site imports them.
//!
//! The import asks for a data source, and replaces `${DS_PROMETHEUS}` by it. That text is the value of the variable
//! `datasource`, to which all panels refer, and is in no panel: newer importers replace nothing in collapsed rows.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::bundle::{DASHBOARDS, FILES};

/// The uids of the dashboards. They stay, so that the dashboards link to each other.
const PUBLISHED: [&str; 2] = ["genv-overview", "genv-users"];

/// The oldest Grafana that knows the dashboards' `schemaVersion`.
const OLDEST_GRAFANA: &str = "12.0.0";

/// The names of the files, and their texts.
pub(crate) fn dashboards() -> Vec<(String, String)> {
    let files = FILES.iter().filter_map(|(path, text)| Some((path.strip_prefix(DASHBOARDS)?, text)));
    let parsed = files.map(|(name, text)| {
        let dashboard: Value = serde_json::from_str(text).expect("a shipped dashboard is JSON");
        (name, dashboard)
    });
    let published = parsed.filter(|(_, dashboard)| PUBLISHED.iter().any(|uid| dashboard["uid"] == *uid));
    published.map(|(name, dashboard)| (name.to_owned(), format!("{:#}\n", importable(dashboard)))).collect()
}

/// Adds inputs and requirements, and removes links to what an importing site does not have.
fn importable(mut dashboard: Value) -> Value {
    let mut panels = BTreeSet::new();
    add_panel_types(&dashboard["panels"], &mut panels);
    let mut requires = vec![
        json!({"type": "grafana", "id": "grafana", "name": "Grafana", "version": OLDEST_GRAFANA}),
        json!({"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}),
    ];
    requires.extend(panels.iter().map(|id| json!({"type": "panel", "id": id, "name": id, "version": ""})));
    dashboard["__requires"] = requires.into();
    dashboard["__elements"] = json!({});
    dashboard["__inputs"] = json!([{
        "name": "DS_PROMETHEUS",
        "label": "Prometheus",
        "description": "It scrapes genv-exporter and evaluates genv's rules",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }]);
    for variable in dashboard["templating"]["list"].as_array_mut().into_iter().flatten() {
        if variable["type"] == "datasource" {
            variable["current"] = json!({"text": "${DS_PROMETHEUS}", "value": "${DS_PROMETHEUS}"});
        }
    }
    remove_links(&mut dashboard);
    // The importing Grafana has dashboards of other projects, too.
    dashboard["title"] = format!("genv / {}", dashboard["title"].as_str().unwrap_or_default()).into();
    dashboard["id"] = Value::Null;
    // An imported dashboard has no file that overwrites an edited one.
    dashboard["editable"] = true.into();
    dashboard
}

/// Adds the plugins of panels, and of those in rows.
fn add_panel_types(panels: &Value, types: &mut BTreeSet<String>) {
    for panel in panels.as_array().into_iter().flatten() {
        match panel["type"].as_str() {
            Some("row") | None => add_panel_types(&panel["panels"], types),
            Some(plugin) => _ = types.insert(plugin.to_owned()),
        }
    }
}

fn remove_links(value: &mut Value) {
    match value {
        Value::Array(entries) => {
            entries.retain(|entry| entry["url"].as_str().is_none_or(leads_somewhere));
            entries.iter_mut().for_each(remove_links);
        }
        Value::Object(fields) => fields.values_mut().for_each(remove_links),
        _ => {}
    }
}

/// Whether the link works on every site that imports the dashboards.
fn leads_somewhere(url: &str) -> bool {
    let uid = url.strip_prefix("/d/").and_then(|rest| rest.split(['/', '?']).next());
    // A list of dashboards by their tag has an empty URL.
    url.is_empty() || url.starts_with("https://") || uid.is_some_and(|uid| PUBLISHED.contains(&uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a function with each object that is part of the value.
    fn each_object(value: &Value, call: &mut impl FnMut(&Value)) {
        match value {
            Value::Array(entries) => entries.iter().for_each(|entry| each_object(entry, call)),
            Value::Object(fields) => {
                call(value);
                fields.values().for_each(|field| each_object(field, call));
            }
            _ => {}
        }
    }

    #[test]
    fn a_dashboard_gets_inputs_and_requirements_and_loses_links_to_its_own_site() {
        let source = json!({"type": "prometheus", "uid": "${datasource}"});
        let linked = |url: &str| json!({"properties": [{"id": "links", "value": [{"url": url}]}]});
        let overrides = [
            "/d/genv-users?${__url_time_range}",
            "/d/genv-users",
            "/d/genv-users-2",
            "/d/genv-host?var-hostname=gpu01",
            "http://127.0.0.1:9820/runbooks",
            "https://example.org/",
        ]
        .map(linked);
        let dashboard = importable(json!({
            "uid": "genv-overview", "title": "Overview", "editable": false,
            "links": [{"type": "dashboards", "tags": ["genv"]}, {"type": "link", "url": "/d/genv-host"}],
            "templating": {"list": [{"name": "datasource", "type": "datasource"}, {"type": "query", "datasource": source}]},
            "panels": [
                {"type": "stat", "datasource": source},
                {"type": "row", "panels": [{"type": "table", "fieldConfig": {"overrides": overrides}}]},
            ],
        }));
        insta::assert_snapshot!(format!("{dashboard:#}"));
    }

    #[test]
    fn what_is_published_refers_to_nothing_of_its_own_site() {
        for (name, text) in dashboards() {
            let dashboard: Value = serde_json::from_str(&text).unwrap();
            let mut sources = BTreeSet::new();
            each_object(&dashboard, &mut |object| {
                let source = &object["datasource"];
                sources.extend(source["uid"].as_str().map(|uid| format!("{}: {uid}", source["type"])));
            });
            // Grafana's own annotations are everywhere.
            sources.remove("\"grafana\": -- Grafana --");
            assert_eq!(Vec::from_iter(sources), ["\"prometheus\": ${datasource}"], "{name}");
            assert_eq!(text.matches("\"value\": \"${DS_PROMETHEUS}\"").count(), 1, "{name}");
            assert!(!text.contains("127.0.0.1"), "{name}");
            for target in text.split("/d/").skip(1) {
                assert!(PUBLISHED.iter().any(|uid| target.starts_with(uid)), "{name}: {target:.40}");
            }
            let mut required = BTreeSet::new();
            each_object(&dashboard["__requires"], &mut |object| {
                required.extend(object["id"].as_str().map(str::to_owned));
            });
            each_object(&dashboard["panels"], &mut |object| {
                if let (Some(plugin), true) = (object["type"].as_str(), object.get("gridPos").is_some()) {
                    assert!(plugin == "row" || required.contains(plugin), "{name}: {plugin}");
                }
            });
        }
    }
}
