//! Each rule of the lint finds what it is for: the Overview with one thing changed.

use genv_tests::dashboard::Dashboard;
use serde_json::{Value, json};

use crate::dashboards::lint::Lint;

const LINKS: &str = "/fieldConfig/overrides/3/properties/1/value";
const LINK: &str = "/fieldConfig/overrides/3/properties/1/value/0/url";
const EXPRESSION: &str = "/targets/0/expr";

/// A rule, the title of the dashboard or of a panel, what is changed there, and its new value.
type Mutant = (&'static str, &'static str, &'static str, Value);

fn mutants() -> Vec<Mutant> {
    let by_word = json!([{"type": "value", "options": {"critical": {"text": "critical", "color": "red"}}}]);
    vec![
        ("uneditable", "Overview", "/editable", json!(true)),
        ("uid", "Overview", "/uid", json!("genv-other")),
        ("links", "Overview", "/links/0/keepTime", json!(false)),
        ("links", "Overview", "/links/1/includeVars", json!(true)),
        ("annotations", "Overview", "/annotations/list", json!([])),
        ("template-datasource", "Overview", "/templating/list/0/label", json!("Source")),
        ("template-order", "Overview", "/templating/list/1/name", json!("lab")),
        ("template-query", "Overview", "/templating/list/2/allValue", json!(".*")),
        ("template-unused", "Overview", "/templating/list/4/name", json!("nobody")),
        ("panel-grid", "Free GPUs", "/gridPos/w", json!(9)),
        ("panel-grid", "Free GPUs", "/gridPos/x", json!(23)),
        ("panel-id", "Free GPUs", "/id", json!(2)),
        ("panel-type", "Free GPUs", "/type", json!("grafana-polystat-panel")),
        ("panel-title", "Free GPUs", "/title", json!("Held and idle")),
        ("panel-title", "Free GPUs", "/description", json!(" ")),
        ("panel-title-width", "Free GPUs", "/title", json!("Free GPUs of all of the chosen hosts")),
        ("panel-span-nulls", "Fullness over time", "/fieldConfig/defaults/custom/spanNulls", json!(true)),
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
        ("link-target", "What fires now", LINK, json!("/d/genv-users?var-hostname=${__value.text}")),
        ("link-host", "What fires now", LINKS, json!([])),
        ("target-reference", "Free GPUs", "/targets/1/refId", json!("A")),
        ("target-type", "Free GPUs", "/type", json!("timeseries")),
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

/// The part of a dashboard with this title.
fn titled<'a>(part: &'a mut Value, title: &str) -> Option<&'a mut Value> {
    if part["title"] == title {
        return Some(part);
    }
    part.get_mut("panels")?.as_array_mut()?.iter_mut().find_map(|panel| titled(panel, title))
}

#[test]
fn each_rule_finds_what_it_is_for() -> anyhow::Result<()> {
    let overview = &Dashboard::of_file("overview")?;
    let with_hostname = ["genv_host_up".to_owned()].into();
    let found = |dashboard: &Dashboard, rule: &str| {
        let faults = Lint::of(dashboard, &with_hostname).faults;
        faults.iter().filter(|(of, _)| *of == rule).count()
    };
    let mut untested = Lint::of(overview, &with_hostname).rules;
    for (rule, title, pointer, value) in mutants() {
        let mut mutant = overview.clone();
        let part = titled(&mut mutant.json, title).and_then(|part| part.pointer_mut(pointer));
        *part.expect(pointer) = value;
        assert!(found(&mutant, rule) > found(overview, rule), "{rule} does not find {title}{pointer}");
        untested.remove(rule);
    }
    assert!(untested.is_empty(), "no mutant shows {untested:?}");
    Ok(())
}
