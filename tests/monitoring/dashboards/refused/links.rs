//! Links that are refused, and hosts and GPUs without one.

use serde_json::{Value, json};

use super::{TABLE, example, refuses};
use crate::dashboards::lint;

const CARRIED: &str = "${__url_time_range}&${datasource:queryparam}&${job:queryparam}";

fn to_host(choices: &str) -> String {
    format!("/d/genv-host?{CARRIED}&{choices}")
}

fn link(dashboard: &mut Value, field: &str, url: &str) {
    let table = &mut dashboard["panels"][TABLE];
    let overrides = table["fieldConfig"]["overrides"].as_array_mut();
    overrides.expect("the example has overrides").push(json!({
        "matcher": {"id": "byName", "options": field},
        "properties": [{"id": "links", "value": [{"title": "Show it", "url": url}]}],
    }));
}

const HOST: &str = "var-hostname=${__value.text}";
const GPU: &str = "var-hostname=${__data.fields.Host}&var-index=${__value.text}";

/// The table of the example tells of hosts and GPUs, which link as `host` and `gpu` say.
fn hosts_and_gpus(host: &str, gpu: &str) -> impl FnOnce(&mut Value) {
    move |dashboard| {
        let organize = &mut dashboard["panels"][TABLE]["transformations"][1]["options"];
        organize["renameByName"] = json!({"username": "Host", "Value #A": "GPU", "Value #B": "Power"});
        link(dashboard, "Host", host);
        link(dashboard, "GPU", gpu);
    }
}

#[test]
fn hosts_and_gpus_link_to_the_dashboard_about_them() {
    let (host, gpu) = (to_host(HOST), to_host(GPU));
    let mut dashboard = example();
    hosts_and_gpus(&host, &gpu)(&mut dashboard.json);
    assert_eq!(lint::lint(&dashboard), [""; 0]);

    let users = format!("/d/genv-users?{CARRIED}&{HOST}");
    let other_host = to_host("var-hostname=${__value.text}&var-index=${__value.text}");
    for (host, gpu) in [(&users, &gpu), (&host, &to_host(HOST)), (&host, &other_host), (&to_host(GPU), &host)] {
        refuses("link-host", Some(TABLE), hosts_and_gpus(host, gpu));
    }
}

#[test]
fn a_link_that_leads_nowhere_or_loses_what_was_chosen_is_refused() {
    let without_time = to_host(HOST).replace("${__url_time_range}&", "");
    for wrong in [
        "https://example.org/d/genv-host",
        "/d/genv-hosts?var-hostname=a",
        &without_time,
        &to_host(HOST).replace("${job:queryparam}&", ""),
        &to_host("var-hostname=${__value.text}&var-gpu=1"),
        &to_host("var-hostname=${__value.text}&${model:queryparam}"),
        &to_host("var-hostname=${__value.text}&${index:queryparam}"),
        &to_host("var-hostname=${__value.text}&now"),
        &to_host("var-hostname=${__data.fields.Node}"),
        &to_host("var-hostname=gpu01"),
        // The example is about all hosts.
        &to_host("var-index=${__value.text}"),
    ] {
        refuses("link-target", Some(TABLE), |dashboard| {
            hosts_and_gpus(&to_host(HOST), &to_host(GPU))(dashboard);
            link(dashboard, "Power", wrong);
        });
    }
}
