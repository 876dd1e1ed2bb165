//! Each rule of the lint finds what it is for: the Overview with one thing changed.

use genv_tests::dashboard::{Dashboard, list};
use serde_json::{Value, json};

use crate::dashboards::lint::Lint;

const LINK: &str = "/fieldConfig/overrides/3/properties/1/value/0/url";
const EXPRESSION: &str = "/targets/0/expr";

/// A rule, the title of a panel or nothing, what is changed there, and its new value.
type Mutant = (&'static str, &'static str, &'static str, Value);

fn mutants() -> Vec<Mutant> {
    let by_word = json!([{"type": "value", "options": {"critical": {"text": "critical", "color": "red"}}}]);
    vec![
        ("uneditable", "", "/editable", json!(true)),
        ("uid", "", "/uid", json!("genv-other")),
        ("links", "", "/links/0/keepTime", json!(false)),
        ("links-all", "", "/links/1/includeVars", json!(true)),
        ("annotations", "", "/annotations/list", json!([])),
        ("template-datasource", "", "/templating/list/0/label", json!("Source")),
        ("template-order", "", "/templating/list/1/name", json!("lab")),
        ("template-query", "", "/templating/list/2/allValue", json!(".*")),
        ("template-unused", "", "/templating/list/4/name", json!("nobody")),
        ("panel-grid", "Free GPUs", "/gridPos/w", json!(9)),
        ("panel-grid", "Free GPUs", "/gridPos/x", json!(23)),
        ("panel-id", "Free GPUs", "/id", json!(2)),
        ("panel-type", "Free GPUs", "/type", json!("grafana-polystat-panel")),
        ("panel-title", "Free GPUs", "/title", json!("Held and idle")),
        ("panel-title", "Free GPUs", "/description", json!(" ")),
        ("panel-title-width", "Free GPUs", "/title", json!("Free GPUs of all of the chosen hosts")),
        ("panel-span-nulls", "Fullness over time", "/fieldConfig/defaults/custom", json!({"spanNulls": true})),
        ("color-meaning", "Held and idle", "/fieldConfig/overrides/0/matcher/options", json!("idle")),
        ("color-meaning", "Fullness over time", "/fieldConfig/defaults/color/mode", json!("continuous-GrYlRd")),
        ("panel-datasource", "Free GPUs", "/datasource/uid", json!("genv-prometheus")),
        ("panel-unit", "Free GPUs", "/fieldConfig/defaults/unit", json!("percentunits")),
        ("panel-target", "Free GPUs", "/targets", json!([])),
        ("panel-no-value", "Free GPUs", "/fieldConfig/defaults/noValue", json!("")),
        ("table-no-value", "Free GPUs by model", "/fieldConfig/defaults/noValue", json!("none, or no data")),
        ("table-width", "Every GPU: free ones first, then those that are idle longest", "/gridPos/w", json!(23)),
        ("table-severity", "What fires now", "/fieldConfig/overrides/1/properties/0/value", by_word),
        ("timeline-color", "Hosts over time", "/fieldConfig/defaults/color/mode", json!("thresholds")),
        ("link-target", "What fires now", LINK, json!("https://example.org/d/genv-host")),
        ("link-target", "What fires now", LINK, json!("/d/genv-host?var-hostname=${__value.text}")),
        ("link-host", "What fires now", LINK, json!("/d/genv-users?var-hostname=${__value.text}")),
        ("target-reference", "Free GPUs", "/targets/1/refId", json!("A")),
        ("target-type", "Fullness over time", "/targets/0/instant", json!(true)),
        ("target-promql", "Free GPUs", EXPRESSION, json!("sum by host (genv_host_up)")),
        ("target-job", "Free GPUs", EXPRESSION, json!("genv_host_up")),
        ("target-job", "Free GPUs", EXPRESSION, json!(r#"genv_enforcer_mode{job=~"$job"}"#)),
        ("target-hostname", "Free GPUs", EXPRESSION, json!(r#"genv_host_up{job=~"$job"}"#)),
        ("target-username", "Free GPUs", EXPRESSION, json!("genv_enforcer_violations")),
        ("target-counter", "Free GPUs", EXPRESSION, json!(r#"genv_user_energy_joules_total{job=~"$job"}"#)),
        ("target-hourly", "Free GPUs", EXPRESSION, json!(r#"model:genv_devices:seconds1h{job=~"$job"}"#)),
        ("target-collector", "Free GPUs", EXPRESSION, json!(r#"genv_collector_success{collector="gpu"}"#)),
        ("target-rate", "Free GPUs", EXPRESSION, json!(r#"rate(genv_user_energy_joules_total{job=~"$job"}[5m])"#)),
        ("target-zero", "Free GPUs", EXPRESSION, json!(r#"sum(genv_users{job=~"$job"}) or vector(0)"#)),
        ("target-once", "Free GPUs", EXPRESSION, json!(r#"sum(genv_users{job=~"$job"})"#)),
    ]
}

/// Sets what a pointer points at, which may be absent.
fn set(root: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer begins with /");
    let parent = root.pointer_mut(parent).expect(pointer);
    match key.parse::<usize>() {
        Ok(place) => parent[place] = value,
        Err(_) => parent[key] = value,
    }
}

#[test]
fn each_rule_finds_what_it_is_for() -> anyhow::Result<()> {
    let overview = &Dashboard::of_file("overview")?;
    let with_hostname = ["genv_host_up".to_owned()].into();
    let mut untested = Lint::of(overview, &with_hostname).rules;
    for (rule, title, pointer, value) in mutants() {
        let mut mutant = overview.clone();
        let panels = mutant.json["panels"].as_array_mut().expect("has panels");
        let collapsed = panels.iter().position(|panel| list(&panel["panels"]).iter().any(|it| it["title"] == title));
        let panels = match collapsed {
            Some(row) => panels[row]["panels"].as_array_mut().expect("has panels"),
            None => panels,
        };
        match panels.iter_mut().find(|panel| panel["title"] == title) {
            Some(panel) => set(panel, pointer, value),
            None => set(&mut mutant.json, pointer, value),
        }
        let found = |dashboard: &Dashboard| {
            let faults = Lint::of(dashboard, &with_hostname).faults;
            faults.iter().filter(|(of, _)| *of == rule).count()
        };
        let (before, after) = (found(overview), found(&mutant));
        assert!(after > before, "{rule} finds {before} before and {after} after {title}{pointer}");
        untested.remove(rule);
    }
    assert!(untested.is_empty(), "no mutant shows {untested:?}");
    Ok(())
}
