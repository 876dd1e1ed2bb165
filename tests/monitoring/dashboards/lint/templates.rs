//! Rules about template variables.

use std::collections::BTreeSet;

use promql_parser::parser::Expr;
use serde_json::{Value, json};

use super::links::ABOUT_ONE_HOST;
use super::{Fault, unless};
use crate::dashboards::interpolate::label_values;
use crate::dashboards::{promql, variables};
use genv_tests::dashboard::{Dashboard, Variable};

/// The variables that dashboards share, in their order: name, label, query.
const SHARED: [(&str, &str, &str); 4] = [
    ("job", "Job", "label_values(genv_host_up, job)"),
    ("hostname", "Host", r#"label_values(genv_host_up{job=~"$job"}, hostname)"#),
    ("model", "GPU model", r#"label_values(genv_device_info{job=~"$job", hostname=~"$hostname", parent=""}, name)"#),
    (
        "username",
        "User",
        r#"label_values(genv_user_device_seconds_total{job=~"$job", hostname=~"$hostname"}, username)"#,
    ),
];

/// Whoever runs several Prometheus servers can choose; the name and label are those of all dashboards with one source.
pub(super) fn datasource(dashboard: &Dashboard) -> Vec<Fault> {
    let mut sources = dashboard.variables();
    sources.retain(|variable| variable.kind() == "datasource");
    match sources.as_slice() {
        [source] => unless(
            (source.name(), source.label(), source.query()) == ("datasource", "Data source", "prometheus"),
            "the variable of the data source must be named 'datasource' and labelled 'Data source', for prometheus",
        ),
        _ => unless(false, "must have one variable for the data source"),
    }
}

/// Several labs may share one Prometheus: each is a job.
pub(super) fn job(dashboard: &Dashboard) -> Vec<Fault> {
    chosen(dashboard, "job")
}

/// Stands where Grafana's linter wants `instance`: with honor_labels, and with one exporter for many hosts, an instance is
/// the exporter that was asked, and a host is named by `hostname` alone.
pub(super) fn hostname(dashboard: &Dashboard) -> Vec<Fault> {
    chosen(dashboard, "hostname")
}

fn chosen(dashboard: &Dashboard, name: &str) -> Vec<Fault> {
    let Some(variable) = dashboard.variable(name) else {
        return vec![Fault::dashboard(format!("has no variable {name}"))];
    };
    let json = variable.0;
    let several = !is_single(dashboard, name);
    let wanted = [
        (variable.kind() == "query", "be a query"),
        (json["datasource"]["uid"] == "${datasource}", "use the data source ${datasource}"),
        (!variable.label().is_empty(), "have a label"),
        (
            json["multi"] == several && json["includeAll"] == several,
            if several { "allow several values and offer All" } else { "allow one value, and not offer All" },
        ),
        (!several || json["allValue"] == ".+", "have the allValue '.+'"),
    ];
    wanted
        .into_iter()
        .filter(|(holds, _)| !holds)
        .map(|(_, what)| Fault::dashboard(format!("the variable {name} must {what}")))
        .collect()
}

/// The dashboard about one host is of one at a time: so its queries stay small, however many hosts there are.
fn is_single(dashboard: &Dashboard, name: &str) -> bool {
    dashboard.uid() == ABOUT_ONE_HOST && name == "hostname"
}

/// What one dashboard's variables choose must mean the same in the next, because links carry them over.
pub(super) fn shared(dashboard: &Dashboard) -> Vec<Fault> {
    let known = |name: &str| SHARED.iter().position(|(shared, _, _)| *shared == name);
    let mut faults = Vec::new();
    let variables = dashboard.variables();
    let places: Vec<_> = variables.iter().filter_map(|variable| known(variable.name())).collect();
    if !places.is_sorted() || variables.first().is_none_or(|first| first.name() != "datasource") {
        faults.push(Fault::dashboard("the variables must come as datasource, job, hostname, model, username"));
    }
    for variable in variables {
        let Some((name, label, query)) = known(variable.name()).map(|place| SHARED[place]) else {
            continue;
        };
        let single = is_single(dashboard, name);
        let all = if single { Value::Null } else { json!(".+") };
        let wanted = json!({
            "type": "query", "label": label, "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "refresh": 2, "multi": !single, "includeAll": !single, "allValue": all, "sort": 1, "regex": "", "hide": 0,
        });
        for (key, value) in wanted.as_object().into_iter().flatten() {
            // Absent means what Grafana takes then.
            let optional = ["regex", "hide"].contains(&key.as_str());
            if variable.0[key] != *value && !(optional && variable.0[key] == Value::Null) {
                faults.push(Fault::dashboard(format!("the variable {name} must have {key:?}: {value}")));
            }
        }
        if variable.query() != query {
            faults.push(Fault::dashboard(format!("the variable {name} must ask {query}")));
        }
        let first = if single { "" } else { "$__all" };
        if variable.current() != first {
            let with = if single { "the first value" } else { "All" };
            faults.push(Fault::dashboard(format!("the variable {name} must begin with {with}")));
        }
    }
    faults
}

/// A variable's query is one that Grafana and Prometheus understand.
pub(super) fn label_promql(dashboard: &Dashboard) -> Vec<Fault> {
    let check = |variable: Variable<'_>| {
        let (selector, _) = label_values(variable.query())?;
        match promql::parse(selector, dashboard)? {
            Expr::VectorSelector(_) => Ok(()),
            _ => Err(format!("{selector} is no selector")),
        }
    };
    queries(dashboard)
        .filter_map(|variable| {
            let error = check(variable).err()?;
            Some(Fault::dashboard(format!("the variable {}: {error}", variable.name())))
        })
        .collect()
}

/// Values are those of the time range that is looked at.
pub(super) fn on_time_change_reload(dashboard: &Dashboard) -> Vec<Fault> {
    queries(dashboard)
        .filter(|variable| variable.0["refresh"] != 2)
        .map(|variable| {
            Fault::dashboard(format!(
                "the variable {} must be read anew when the time range changes (2)",
                variable.name()
            ))
        })
        .collect()
}

/// Grafana fills variables in from top to bottom.
pub(super) fn order(dashboard: &Dashboard) -> Vec<Fault> {
    let mut earlier = BTreeSet::new();
    let mut faults = Vec::new();
    for variable in dashboard.variables() {
        for name in variables::names(&variable.0.to_string()) {
            if !name.starts_with("__") && !earlier.contains(&name) {
                let what = format!("the variable {} needs ${name}, which does not come before it", variable.name());
                faults.push(Fault::dashboard(what));
            }
        }
        earlier.insert(variable.name().to_owned());
    }
    faults
}

/// A choice that changes nothing misleads.
pub(super) fn unused(dashboard: &Dashboard) -> Vec<Fault> {
    let used: BTreeSet<String> =
        dashboard.queried_panels().flat_map(|panel| variables::names(&panel.0.to_string())).collect();
    dashboard
        .variables()
        .iter()
        .filter(|variable| !used.contains(variable.name()))
        .map(|variable| Fault::dashboard(format!("the variable {} is used by no panel", variable.name())))
        .collect()
}

fn queries(dashboard: &Dashboard) -> impl Iterator<Item = Variable<'_>> {
    dashboard.variables().into_iter().filter(|variable| variable.kind() == "query")
}
