//! Panels that are refused.

use serde_json::{Value, json};

use super::{ROW, STAT, TABLE, TIMESERIES, refuses};

#[test]
fn a_panel_of_a_plugin_is_refused() {
    refuses("panel-type", Some(TIMESERIES), |dashboard| {
        dashboard["panels"][TIMESERIES]["type"] = json!("grafana-polystat-panel");
    });
}

#[test]
fn a_panel_with_a_data_source_of_its_own_is_refused() {
    let fixed = json!({"type": "prometheus", "uid": "genv-prometheus"});
    refuses("panel-datasource", Some(STAT), |dashboard| dashboard["panels"][STAT]["datasource"] = fixed.clone());
    refuses("panel-datasource", Some(STAT), |dashboard| {
        dashboard["panels"][STAT]["targets"][0]["datasource"] = fixed.clone();
    });
}

#[test]
fn a_panel_without_title_or_description_is_refused() {
    refuses("panel-title-description", Some(STAT), |dashboard| dashboard["panels"][STAT]["title"] = json!(""));
    refuses("panel-title-description", Some(ROW), |dashboard| dashboard["panels"][ROW]["title"] = json!(""));
    refuses("panel-title-description", Some(TABLE), |dashboard| {
        dashboard["panels"][TABLE]["description"] = json!(" ");
    });
}

#[test]
fn two_panels_of_one_title_are_refused() {
    refuses("panel-title-unique", Some(TABLE), |dashboard| dashboard["panels"][TABLE]["title"] = json!("GPUs"));
}

#[test]
fn a_panel_without_a_unit_is_refused() {
    refuses("panel-units", Some(TABLE), |dashboard| {
        dashboard["panels"][TABLE]["fieldConfig"]["defaults"]["unit"] = Value::Null;
    });
    refuses("panel-units", Some(STAT), |dashboard| {
        dashboard["panels"][STAT]["fieldConfig"]["defaults"]["unit"] = json!("percentunits");
    });
    refuses("panel-units", Some(TABLE), |dashboard| {
        dashboard["panels"][TABLE]["fieldConfig"]["overrides"][0]["properties"][0]["value"] = json!("watts");
    });
}

#[test]
fn a_panel_that_asks_nothing_is_refused() {
    refuses("panel-no-targets", Some(TIMESERIES), |dashboard| {
        dashboard["panels"][TIMESERIES]["targets"] = json!([]);
    });
}

#[test]
fn a_number_that_does_not_say_what_its_absence_means_is_refused() {
    for panel in [STAT, TABLE] {
        refuses("panel-no-value", Some(panel), |dashboard| {
            dashboard["panels"][panel]["fieldConfig"]["defaults"]["noValue"] = Value::Null;
        });
    }
}

#[test]
fn a_line_over_missing_data_is_refused() {
    refuses("panel-span-nulls", Some(TIMESERIES), |dashboard| {
        dashboard["panels"][TIMESERIES]["fieldConfig"]["defaults"]["custom"] = json!({"spanNulls": true});
    });
    refuses("panel-span-nulls", Some(TIMESERIES), |dashboard| {
        dashboard["panels"][TIMESERIES]["fieldConfig"]["overrides"] = json!([
            {"matcher": {"id": "byName", "options": "gpu01"}, "properties": [{"id": "custom.spanNulls", "value": true}]}
        ]);
    });
}

#[test]
fn two_panels_of_one_id_are_refused() {
    refuses("panel-id", Some(TABLE), |dashboard| dashboard["panels"][TABLE]["id"] = json!(2));
    refuses("panel-id", Some(TABLE), |dashboard| dashboard["panels"][TABLE]["id"] = Value::Null);
}

#[test]
fn a_panel_beyond_the_last_column_is_refused() {
    refuses("panel-columns", Some(TIMESERIES), |dashboard| {
        dashboard["panels"][TIMESERIES]["gridPos"]["w"] = json!(17);
    });
}

#[test]
fn panels_that_overlap_are_refused() {
    refuses("panel-overlap", Some(TIMESERIES), |dashboard| {
        dashboard["panels"][TIMESERIES]["gridPos"]["x"] = json!(7);
    });
}

#[test]
fn a_panel_below_a_hole_is_refused() {
    refuses("panel-hole", Some(TABLE), |dashboard| dashboard["panels"][TABLE]["gridPos"]["y"] = json!(8));
}
