//! A history is what Prometheus would have scraped and recorded, had it been there.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::history::{History, Past};
use genv_tests::metrics::Labels;
use genv_tests::nvml_sim::Simulation;

const MINUTE: Duration = Duration::from_secs(60);

/// Alice holds GPU 0 for an hour, keeps it busy for its first half, and leaves. Bob holds GPU 1, which is lost for half an
/// hour while he does.
const LAB: &str = r#"
version: 1
epoch: "2025-03-03T00:00:00Z"
users: {alice: 2001, bob: 2002}
hosts:
  - name: gpu01
    devices:
      - {name: NVIDIA A100-SXM4-40GB, memory: 40gi}
      - {name: NVIDIA H100 80GB HBM3, memory: 80gi, faults: [{lost: true, during: {from: 30m, until: 60m}}]}
    environments:
      - {eid: "1", user: alice, name: training, devices: [0], during: {from: 0s, until: 1h}}
      - {eid: "2", user: bob, name: parked, devices: [1]}
    processes:
      - {pid: 101, user: alice, environment: "1", devices: [{index: 0, memory: 8gi, utilization: {steps: [[30m, 0.5], [30m, 0]]}}]}
  - name: gpu02
    devices: [{name: NVIDIA A100-SXM4-40GB, memory: 40gi}]
    environments: [{eid: "3", user: bob, name: parked, devices: [0]}]
"#;

fn three_hours(tool: &str) -> Result<Past> {
    History::of(LAB)?
        .lasting(180 * MINUTE)
        .every(MINUTE / 2)
        .exporter_per_host()
        .restarted("gpu01:9820", 40 * MINUTE + MINUTE / 4)
        .down("gpu02:9820", 60 * MINUTE, 70 * MINUTE)
        .frozen("gpu02:9820", 120 * MINUTE, 130 * MINUTE)
        .start(tool)
}

/// Prometheus extrapolates an increase to the edges of its window: by up to half a scrape interval at the first and the
/// last scrape of a counter, and a collection is charged at its end, 30 s later at most.
fn about(value: f64, wanted: f64) -> Result<()> {
    ensure!((value - wanted).abs() <= 60.0, "{value} s, not {wanted} s");
    Ok(())
}

fn a_history_is_scraped_and_recorded(tool: &str) -> Result<()> {
    let past = three_hours(tool)?;
    let prometheus = &past.prometheus;
    let at = |minutes: u32| past.after(minutes * MINUTE);
    let there = |query: &str, minutes| Ok::<_, anyhow::Error>(prometheus.query_at(query, at(minutes))?.len());

    // A series ends with the scrape that lacks it, and not five minutes later.
    let share = r#"genv_environment_device_share_ratio{username="alice"}"#;
    assert_eq!((there(share, 59)?, there(share, 60)?), (1, 0));
    let held = r#"user:genv_devices_held:sum{username="alice"}"#;
    assert_eq!((there(held, 59)?, there(held, 61)?), (1, 0));

    // An exporter that begins while a GPU is lost cannot tell its model. A rule that refers to its own past can, for as long
    // as it is lost.
    let model = r#"device:genv_device_info:known{hostname="gpu01", index="1"}"#;
    assert_eq!(there(r#"genv_device_info{hostname="gpu01", index="1", name!=""}"#, 59)?, 0);
    for minutes in [20, 35, 45, 59, 65] {
        assert_eq!(there(model, minutes)?, 1, "after {minutes} minutes");
    }
    assert_eq!(there(r#"{__name__=~".*:pass[0-9]+"}"#, 59)?, 0);

    let up = r#"up{job="genv", instance="gpu02:9820"}"#;
    assert_eq!(prometheus.value_at(up, at(59))?, 1.0);
    assert_eq!(prometheus.value_at(up, at(69))?, 0.0);
    assert_eq!(there(r#"genv_device_up{hostname="gpu02"}"#, 61)?, 0);
    assert_eq!(prometheus.value_at(up, at(125))?, 1.0);
    let alert =
        |state: &str| format!(r#"ALERTS{{alertname="GenvExporterDown", instance="gpu02:9820", alertstate="{state}"}}"#);
    assert_eq!(there(&alert("pending"), 61)?, 1);
    assert_eq!(there(&alert("firing"), 61)?, 0);
    assert_eq!(prometheus.value_at(&alert("firing"), at(65))?, 1.0);
    assert_eq!(there(&alert("pending"), 65)?, 0);
    assert_eq!(there(&alert("firing"), 71)?, 0);

    let age = r#"time() - genv_snapshot_timestamp_seconds{hostname="gpu02"}"#;
    assert_eq!(prometheus.value_at(age, at(119))?, 0.0);
    assert_eq!(prometheus.value_at(age, at(129))?, 570.0);

    let began = r#"process_start_time_seconds{instance="gpu01:9820"}"#;
    let restarted = prometheus.value_at(began, at(41))? - prometheus.value_at(began, at(40))?;
    assert_eq!(restarted, 40.5 * 60.0);
    // The interval up to 30:00 is idle already: it is charged by what is measured at its end.
    let idle = r#"genv_user_device_seconds_total{username="alice", state="idle"}"#;
    assert_eq!(prometheus.value_at(idle, at(40))?, 10.5 * 60.0);
    assert_eq!(prometheus.value_at(idle, at(50))?, 9.5 * 60.0);

    let hours = |user: &str, state: &str| {
        let of = format!(
            r#"user:genv_user_device_seconds:increase1h{{username="{user}", state="{state}", hostname="gpu01"}}"#
        );
        prometheus.value_at(&format!("sum(sum_over_time({of}[3h]))"), past.end())
    };
    about(hours("alice", "busy")?, 30.0 * 60.0)?;
    about(hours("alice", "idle")?, 30.0 * 60.0)?;
    about(hours("bob", "unmeasured")?, 30.0 * 60.0)?;
    Ok(())
}

#[test]
fn a_history_is_scraped_and_recorded_by_prometheus_2() -> Result<()> {
    a_history_is_scraped_and_recorded("prometheus")
}

#[test]
fn a_history_is_scraped_and_recorded_by_prometheus_3() -> Result<()> {
    a_history_is_scraped_and_recorded("prometheus-3")
}

/// Whether a history has exactly the series that the exporter itself serves of the same scenario at the same time, apart from
/// the metrics of its own work, which depend on requests.
fn a_history_is_what_the_exporter_serves(tool: &str) -> Result<()> {
    let simulation = Simulation::new(LAB);
    let exporter = Setup::with_scenario(&simulation)?.start()?;
    // Counters begin as 0 and rise from the next publication on.
    let energy = "genv_user_energy_joules_total";
    let served = exporter
        .wait_for("energy that is counted", |scrape| scrape.all(energy, &[]).iter().any(|(_, joules)| *joules > 0.0))?;
    let ten_minutes = 10 * MINUTE;
    let past = History::of(LAB)?.from(SystemTime::now() - ten_minutes).lasting(ten_minutes).start(tool)?;
    let answer = past.prometheus.query_at(r#"{job="genv", __name__!~"up|ALERTS.*|.*:.*"}"#, past.end())?;
    let told: BTreeSet<(String, Labels)> = answer
        .into_iter()
        .map(|(mut labels, _)| {
            // Programs that were built one after the other tell revisions of their own.
            let target = ["job", "instance", "revision"];
            labels.retain(|name, value| !value.is_empty() && !target.contains(&name.as_str()));
            (labels.remove("__name__").unwrap_or_default(), labels)
        })
        .collect();
    let of_own_work = |name: &str| name.starts_with("promhttp_") || name.contains("_duration_seconds_");
    let served: BTreeSet<(String, Labels)> = served
        .samples
        .into_keys()
        .filter(|(name, _)| !of_own_work(name))
        .map(|(name, mut labels)| {
            labels.retain(|name, value| !value.is_empty() && name != "revision");
            (name, labels)
        })
        .collect();
    let differ: Vec<_> = told.symmetric_difference(&served).collect();
    ensure!(differ.is_empty(), "{differ:#?}");
    Ok(())
}

#[test]
fn a_history_is_what_the_exporter_serves_to_prometheus_2() -> Result<()> {
    a_history_is_what_the_exporter_serves("prometheus")
}

#[test]
fn what_cannot_be_played_is_refused() {
    let hanging = LAB.replace("{lost: true,", "{hang: all,");
    let error = History::of(&hanging).unwrap_err().to_string();
    assert!(error.contains("takes real time"), "{error}");
    let nobody = History::of(LAB).and_then(|history| history.restarted("gpu01", MINUTE).start("prometheus"));
    let error = nobody.unwrap_err().to_string();
    assert!(error.contains("localhost:9820"), "{error}");
    let later = History::of(LAB).and_then(|history| history.lasting(MINUTE * 60 * 24 * 365 * 100).start("prometheus"));
    let error = later.unwrap_err().to_string();
    assert!(error.contains("in the future"), "{error}");
}
