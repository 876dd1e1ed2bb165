//! Queries that are refused.

use serde_json::json;

use super::{STAT, TABLE, TIMESERIES, example, expression, refuses};
use crate::dashboards::lint;

#[test]
fn two_targets_of_one_name_are_refused() {
    refuses("target-reference", Some(TABLE), |dashboard| {
        dashboard["panels"][TABLE]["targets"][1]["refId"] = json!("A");
    });
}

#[test]
fn a_target_that_is_both_instant_and_range_is_refused() {
    refuses("target-query-type", Some(STAT), |dashboard| {
        dashboard["panels"][STAT]["targets"][0]["range"] = json!(true);
    });
    refuses("target-query-type", Some(TIMESERIES), |dashboard| {
        let target = &mut dashboard["panels"][TIMESERIES]["targets"][0];
        target["instant"] = json!(true);
        target["range"] = json!(false);
    });
}

#[test]
fn what_is_no_promql_is_refused() {
    refuses(
        "target-promql",
        Some(TIMESERIES),
        expression(TIMESERIES, r#"avg by hostname (genv_host_up{job=~"$job"})"#),
    );
    refuses("target-promql", Some(TIMESERIES), expression(TIMESERIES, r#"genv_host_up{job=~"$jobs"}"#));
    refuses("target-promql", Some(TIMESERIES), expression(TIMESERIES, r#"rate(genv_host_up{job=~"$job"})"#));
}

#[test]
fn a_selector_of_every_job_is_refused() {
    for selector in [
        "genv_host_up",
        r#"genv_host_up{job="$job"}"#,
        r#"genv_host_up{job=~"genv"}"#,
        r#"genv_host_up{job=~"$job-enforcer"}"#,
        r#"genv_enforcer_mode{job=~"$job"}"#,
        r#"genv_enforcer_mode{job="$job-enforcer"}"#,
        r#"ALERTS{job=~"$job"}"#,
        r#"ALERTS_FOR_STATE{job=~"$job-enforcer"}"#,
    ] {
        refuses("target-job", Some(TIMESERIES), expression(TIMESERIES, selector));
    }
    // Wherever it stands.
    let deep = r#"topk(scalar(count(genv_host_up)), genv_device_up{job=~"$job"})"#;
    refuses("target-job", Some(TIMESERIES), expression(TIMESERIES, deep));
}

#[test]
fn a_selector_of_every_host_is_refused_where_there_are_hosts() {
    let mut dashboard = example();
    let expected = "dashboard 'Example', panel 'Utilization': target-hostname: target A: \
                    lacks hostname=~\"$hostname\": ";
    expression(TIMESERIES, r#"genv_host_up{job=~"$job"} + genv_exporter_build_info{job=~"$job"}"#)(&mut dashboard.json);
    let with_hostname = ["genv_host_up".to_owned()].into();
    let found = lint::hostname(&dashboard, &with_hostname);
    assert_eq!(found, [format!("{expected}genv_host_up{{job=~\"$job\"}}")]);
}

#[test]
fn alerts_about_nobody_in_particular_may_be_shown_with_any_choice_and_nothing_else_may() {
    let found = |metric: &str| {
        let mut dashboard = example();
        let selector = format!(r#"{metric}{{job=~"$job|$job-enforcer", hostname=~"$hostname|"}}"#);
        dashboard.json["panels"][TIMESERIES]["targets"][0]["expr"] = json!(selector);
        let with_hostname = ["ALERTS", "genv_host_up"].map(str::to_owned).into();
        let found = [lint::lint(&dashboard), lint::hostname(&dashboard, &with_hostname)].concat();
        found.len()
    };
    assert_eq!(found("ALERTS"), 0);
    assert_eq!(found("genv_host_up"), 2);
}

#[test]
fn a_rate_over_a_fixed_range_is_refused() {
    for rate in [
        r#"rate(genv_user_energy_joules_total{job=~"$job"}[5m])"#,
        r#"irate(genv_user_energy_joules_total{job=~"$job"}[$__interval])"#,
        r#"rate(sum(genv_users{job=~"$job"})[5m:10s])"#,
    ] {
        refuses("target-rate-interval", Some(TIMESERIES), expression(TIMESERIES, rate));
    }
}

#[test]
fn a_raw_counter_is_refused() {
    for raw in [
        r#"genv_user_energy_joules_total{job=~"$job"}"#,
        r#"sum(last_over_time(genv_user_energy_joules_total{job=~"$job"}[$__range]))"#,
        r#"sum({__name__="genv_user_energy_joules_total", job=~"$job"})"#,
    ] {
        refuses("target-counter", Some(TIMESERIES), expression(TIMESERIES, raw));
    }
}

#[test]
fn an_hourly_series_asked_like_a_gauge_is_refused() {
    for hourly in [
        r#"user:genv_user_energy_joules:increase1h{job=~"$job"}"#,
        r#"sum_over_time(model:genv_devices:seconds1h{job=~"$job"}[$__range:1h])"#,
        r#"rate(user:genv_user_energy_joules:increase1h{job=~"$job"}[$__rate_interval]) + user:genv_user_xid_errors:increase1h{job=~"$job"}"#,
    ] {
        refuses("target-hourly", Some(TIMESERIES), expression(TIMESERIES, hourly));
    }
}

#[test]
fn a_zero_for_missing_data_is_refused() {
    for zero in [r#"sum(genv_users{job=~"$job"}) or vector(0)"#, r#"(vector((0))) or sum(genv_users{job=~"$job"})"#] {
        refuses("target-vector-zero", Some(TIMESERIES), expression(TIMESERIES, zero));
    }
}
