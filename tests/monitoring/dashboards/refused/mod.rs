//! Each rule refuses what it is there for: a good dashboard with one thing wrong.

mod links;
mod panels;
mod targets;

use serde_json::{Value, json};

use crate::dashboards::lint;
use genv_tests::dashboard::Dashboard;

/// A small dashboard that keeps every rule.
pub(crate) fn example() -> Dashboard {
    Dashboard { file: "example".to_owned(), json: serde_json::from_str(include_str!("example.json")).expect("is JSON") }
}

/// Panels of the example, by their place in its list.
pub(crate) const ROW: usize = 0;
pub(crate) const STAT: usize = 1;
pub(crate) const TIMESERIES: usize = 2;
pub(crate) const TABLE: usize = 3;

/// Asserts that exactly one rule, and this one, refuses the example once it is changed, and names this panel.
#[track_caller]
fn refuses(rule: &str, panel: Option<usize>, change: impl FnOnce(&mut Value)) {
    let mut dashboard = example();
    change(&mut dashboard.json);
    let found = lint::lint(&dashboard);
    let place = match panel.map(|panel| dashboard.panels()[panel]) {
        Some(panel) => format!("dashboard 'Example', panel '{}': {rule}: ", panel.name()),
        None => format!("dashboard '{}': {rule}: ", dashboard.title()),
    };
    assert!(!found.is_empty(), "{rule} lets it pass");
    assert!(found.iter().all(|line| line.starts_with(&place)), "not only {place:?}: {found:#?}");
}

fn expression(panel: usize, expression: &str) -> impl FnOnce(&mut Value) {
    move |dashboard| dashboard["panels"][panel]["targets"][0]["expr"] = json!(expression)
}

fn variables(dashboard: &mut Value) -> &mut Vec<Value> {
    let variables = dashboard["templating"]["list"].as_array_mut();
    variables.expect("the example has variables")
}

fn variable(name: &str, key: &str, value: Value) -> impl FnOnce(&mut Value) {
    move |dashboard| {
        let found = variables(dashboard).iter_mut().find(|variable| variable["name"] == name);
        found.expect("a variable of the example")[key] = value;
    }
}

#[test]
fn the_example_keeps_every_rule() {
    assert_eq!(lint::lint(&example()), [""; 0]);
}

#[test]
fn an_editable_dashboard_is_refused() {
    refuses("uneditable", None, |dashboard| dashboard["editable"] = json!(true));
}

#[test]
fn a_uid_that_is_not_the_files_is_refused() {
    refuses("uid", None, |dashboard| dashboard["uid"] = json!("genv-other"));
    refuses("uid", None, |dashboard| dashboard["title"] = json!(""));
    refuses("uid", None, |dashboard| dashboard["id"] = json!(12));
}

#[test]
fn a_dashboard_that_links_to_no_others_is_refused() {
    refuses("links", None, |dashboard| dashboard["links"] = json!([]));
    refuses("links", None, |dashboard| dashboard["links"][0]["includeVars"] = json!(false));
    refuses("links", None, |dashboard| dashboard["links"][0]["keepTime"] = json!(false));
    refuses("links", None, |dashboard| dashboard["tags"] = json!(["gpu"]));
}

#[test]
fn a_variable_of_the_data_source_with_another_name_is_refused() {
    refuses("template-datasource", None, variable("datasource", "label", json!("Source")));
    refuses("template-datasource", None, variable("datasource", "query", json!("loki")));
}

#[test]
fn variables_of_other_kinds_are_refused() {
    for (name, rule) in [("job", "template-job"), ("hostname", "template-hostname")] {
        let mut dashboard = example();
        variable(name, "allValue", json!(".*"))(&mut dashboard.json);
        let found = lint::lint(&dashboard).join("\n");
        let line = format!("dashboard 'Example': {rule}: the variable {name} must have the allValue '.+'");
        assert!(found.contains(&line), "{found}");
    }
}

#[test]
fn only_the_dashboard_about_one_host_offers_one_host_at_a_time() {
    let single = |dashboard: &mut Value| {
        for (key, value) in
            [("multi", json!(false)), ("includeAll", json!(false)), ("allValue", Value::Null), ("current", Value::Null)]
        {
            variable("hostname", key, value)(dashboard);
        }
    };
    let about_one_host = || Dashboard { file: "host".to_owned(), ..example() };
    let found = |mut dashboard: Dashboard, change: &dyn Fn(&mut Value)| {
        dashboard.json["uid"] = json!(format!("genv-{}", dashboard.file));
        change(&mut dashboard.json);
        let found = lint::lint(&dashboard);
        found.iter().filter(|line| line.contains("hostname")).count()
    };
    assert_eq!(found(about_one_host(), &single), 0);
    assert_eq!(found(example(), &|_| ()), 0);
    assert!(found(example(), &single) > 0);
    for (key, value) in [("multi", json!(true)), ("includeAll", json!(true)), ("current", json!({"value": "gpu01"}))] {
        let changed = found(about_one_host(), &|dashboard| {
            single(dashboard);
            variable("hostname", key, value.clone())(dashboard);
        });
        assert!(changed > 0, "{key} = {value} passes");
    }
}

#[test]
fn a_shared_variable_with_a_meaning_of_its_own_is_refused() {
    let query = json!({"query": "label_values(genv_device_info{job=~\"$job\"}, name)", "refId": "model"});
    refuses("template-shared", None, variable("model", "query", query));
    refuses("template-shared", None, variable("username", "label", json!("Who")));
    refuses("template-shared", None, variable("username", "sort", json!(2)));
    refuses("template-shared", None, variable("username", "current", json!({"text": "alice", "value": ["alice"]})));
    refuses("template-shared", None, |dashboard| {
        variables(dashboard).swap(3, 4);
    });
}

/// A variable of this dashboard alone.
fn own_variable(query: &str) -> impl FnOnce(&mut Value) {
    let own = json!({
        "name": "own", "type": "query", "label": "Own", "query": {"query": query, "refId": "own"}, "refresh": 2,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
    });
    move |dashboard| {
        variables(dashboard).push(own);
        let used = r#"sum by (model) (model:genv_devices:count{job=~"$job", model=~"$model", hostname=~"$own"})"#;
        dashboard["panels"][STAT]["targets"][0]["expr"] = json!(used);
    }
}

#[test]
fn a_variable_that_asks_nonsense_is_refused() {
    refuses("template-label-promql", None, own_variable("label_values(genv_host_up{, job)"));
    refuses("template-label-promql", None, own_variable("label_values(sum(genv_host_up), job)"));
    refuses("template-label-promql", None, own_variable("genv_host_up"));
}

#[test]
fn a_variable_that_is_read_once_is_refused() {
    refuses("template-on-time-change-reload", None, |dashboard| {
        own_variable("label_values(genv_host_up, hostname)")(dashboard);
        variable("own", "refresh", json!(1))(dashboard);
    });
}

#[test]
fn a_variable_that_needs_a_later_one_is_refused() {
    refuses("template-order", None, |dashboard| {
        own_variable(r#"label_values(genv_user_devices{username=~"$username"}, hostname)"#)(dashboard);
        let variables = variables(dashboard);
        let own = variables.pop().unwrap();
        variables.insert(4, own);
    });
}

#[test]
fn a_variable_that_nothing_uses_is_refused() {
    refuses("template-unused", None, expression(STAT, r#"count(genv_device_up{job=~"$job", hostname=~"$hostname"})"#));
}
