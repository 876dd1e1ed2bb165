//! The files at work in the real Prometheus and the real Alertmanager.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use genv_tests::alertmanager::Alertmanager;
use genv_tests::dashboard::list;
use genv_tests::enforcer::{self, Enforcer};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::http::free_port;
use genv_tests::metrics::Labels;
use genv_tests::nvml_sim::Simulation;
use genv_tests::prometheus::Prometheus;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::files::{files, read, shipped};

/// A host with a GPU that somebody holds and that errs each second, another that is hot, and a third that is fine.
const FAILING: &str = r#"
version: 1
users: {alice: 2001}
hosts:
  - name: failing
    devices:
      - {memory: 80gi, xid: [{xid: 79, every: 1s}]}
      - {memory: 80gi, temperature: 94}
      - {memory: 80gi}
    environments:
      - {eid: "1", user: alice, devices: [0]}
"#;

/// Replaces all of `from`, which must be there.
fn replace(text: &mut String, from: &str, to: &str) -> Result<()> {
    ensure!(text.contains(from), "there is no {from}");
    *text = text.replace(from, to);
    Ok(())
}

pub(crate) fn quick(rules: &str) -> String {
    let rules = rules.replace("interval: 1h\n", "interval: 1s\n").replace("interval: 1m\n", "interval: 1s\n");
    rules.replace(":1m]", ":1s]")
}

/// The shipped files with the addresses of these programs, and without long waits between two scrapes or evaluations.
fn configured(exporter: &Exporter, enforcer: &Enforcer, alertmanager: u16, own: u16) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let mut configuration = read("prometheus/prometheus.yml")?;
    for (shipped, here) in [
        ("exporter:9820", exporter.port()),
        ("enforcer:9821", enforcer.port()),
        ("alertmanager:9093", alertmanager),
        ("localhost:9090", own),
    ] {
        replace(&mut configuration, shipped, &format!("127.0.0.1:{here}"))?;
    }
    for interval in ["scrape_interval: 15s", "scrape_interval: 10s", "evaluation_interval: 15s"] {
        let (name, _) = interval.split_once(' ').context("no value")?;
        replace(&mut configuration, interval, &format!("{name} 1s"))?;
    }
    std::fs::write(folder.path().join("prometheus.yml"), configuration)?;

    std::fs::create_dir(folder.path().join("rules"))?;
    for path in files("prometheus/rules", ".yml")? {
        let rules = quick(&std::fs::read_to_string(&path)?);
        let name = path.file_name().context("no name")?;
        std::fs::write(folder.path().join("rules").join(name), rules)?;
    }
    let targets = folder.path().join("targets");
    std::fs::create_dir(&targets)?;
    std::fs::copy(shipped("prometheus/targets/genv.yml.example"), targets.join("genv.yml.example"))?;
    Ok(folder)
}

/// Adds an exporter as the example shows, while Prometheus runs. A label of the target gives way to the host's name.
fn add_target(folder: &Path, exporter: &Exporter) -> Result<()> {
    let mut file = read("prometheus/targets/genv.yml.example")?;
    let target = format!(r#""127.0.0.1:{}""#, exporter.port());
    replace(&mut file, r#""gpu01:9820", "gpu02:9820""#, &target)?;
    file.push_str("  labels: {hostname: elsewhere}\n");
    let next = folder.join("targets/more.yml.next");
    std::fs::write(&next, file)?;
    std::fs::rename(next, folder.join("targets/more.yml"))?;
    Ok(())
}

fn the_shipped_files_watch_exporters(prometheus: &str, alertmanager: &str) -> Result<()> {
    let demo = Setup::new()?.flag("--gpu.source=simulated").start()?;
    let simulation = Simulation::new(FAILING);
    let failing = Setup::with_scenario(&simulation)?.start()?;
    let (lab, rules) = (read("simulator/src/demo.yaml")?, read("packaging/enforcer.yaml")?);
    let enforcer = enforcer::Setup::new(&lab, &rules)?.start()?;
    let alertmanager = Alertmanager::start(alertmanager, &shipped("prometheus/alertmanager.yml"))?;
    let own = free_port()?;
    let folder = configured(&demo, &enforcer, alertmanager.port(), own)?;
    let configuration = folder.path().join("prometheus.yml");
    let prometheus = Prometheus::start_on(prometheus, own, &configuration)?;

    // By the static list; the file's name is only an example's.
    prometheus.wait_for_value(r#"count(up{job="genv"} == 1)"#, 1.0)?;
    prometheus.wait_for_value(r#"up{job="prometheus"}"#, 1.0)?;
    prometheus.wait_for_value(r#"up{job="alertmanager"}"#, 1.0)?;
    prometheus.wait_for_value("sum(host:genv_host_up:known)", 2.0)?;
    the_enforcer_is_scraped(&prometheus).with_context(|| enforcer.log())?;
    // By the exporter itself, which is asked, and has nobody to name.
    let asked = r#"prometheus_sd_http_failures_total{job="prometheus"}"#;
    prometheus.wait_for(asked, |answer| !answer.is_empty() && answer.iter().all(|(_, failures)| *failures == 0.0))?;
    let configurations = r#"prometheus_sd_discovered_targets{config="genv"}"#;
    prometheus.wait_for_value(configurations, 1.0)?;
    // By a file, once there is one.
    add_target(folder.path(), &failing)?;
    prometheus.wait_for_value(r#"count(up{job="genv"} == 1)"#, 2.0)?;
    prometheus.wait_for_value("sum(host:genv_host_up:known)", 3.0)?;

    every_rule_is_evaluated(&prometheus)?;
    every_recorded_metric_has_a_value(&prometheus)?;

    prometheus.wait_for(
        r#"ALERTS{alertname="GenvDeviceXidHardware",alertstate="firing",job="genv",hostname="failing",index="0",xid="79"}"#,
        |answer| answer.len() == 1,
    )?;
    prometheus.wait_for(
        r#"ALERTS{alertname="GenvDeviceHot",hostname="failing",severity="warning"}"#,
        |answer| matches!(answer, [(labels, _)] if labels["index"] == "1"),
    )?;
    let xid = |alert: &&Value| alert["labels"]["alertname"] == "GenvDeviceXidHardware";
    let alerts = alertmanager.wait_for("the alert", |alerts| alerts.iter().any(|alert| xid(&alert)))?;
    let alert = alerts.iter().find(xid).context("it is gone")?;
    let summary = "GPU 0 of failing reported XID 79 (hardware or firmware)";
    ensure!(alert["annotations"]["summary"] == summary, "{alert}");
    ensure!(alert["receivers"] == json!([{"name": "nobody"}]), "{alert}");
    Ok(())
}

/// Hosts keep their names, and everything that is counted is there before it rises.
fn the_enforcer_is_scraped(prometheus: &Prometheus) -> Result<()> {
    prometheus.wait_for_value(r#"up{job="genv-enforcer"}"#, 1.0)?;
    let zero = r#"count by (hostname) (genv_enforcer_violations{username="(none)"})"#;
    prometheus.wait_for(zero, |answer| {
        let hosts: Vec<&str> = answer.iter().map(|it| it.0["hostname"].as_str()).collect();
        hosts == ["gpu01", "gpu02"] || hosts == ["gpu02", "gpu01"]
    })?;
    let exporters_alone = r#"count(genv_host_up{job!="genv"}) or vector(0)"#;
    prometheus.wait_for_value(exporters_alone, 0.0)
}

#[test]
fn prometheus_2_and_alertmanager_0_25_watch_exporters_with_the_shipped_files() -> Result<()> {
    the_shipped_files_watch_exporters("prometheus", "alertmanager")
}

#[test]
fn prometheus_3_and_the_newest_alertmanager_watch_exporters_with_the_shipped_files() -> Result<()> {
    the_shipped_files_watch_exporters("prometheus-3", "alertmanager-sid")
}

/// All rules, of which none may have failed yet.
fn rules(prometheus: &Prometheus) -> Result<Vec<Value>> {
    let answer = prometheus.ask("/api/v1/rules", &[])?;
    let groups = answer["groups"].as_array().context("no groups")?;
    let rules: Vec<Value> = groups.iter().flat_map(|group| group["rules"].as_array()).flatten().cloned().collect();
    for rule in &rules {
        let error = rule["lastError"].as_str().unwrap_or_default();
        ensure!(error.is_empty(), "{}: {error}", rule["name"]);
    }
    Ok(rules)
}

pub(crate) fn every_rule_is_evaluated(prometheus: &Prometheus) -> Result<()> {
    // Five evaluations of everything, with all that is scraped.
    let evaluations = "min(prometheus_rule_group_iterations_total)";
    let before = prometheus.wait_for(evaluations, |answer| answer.len() == 1)?;
    let wanted = before[0].1 + 5.0;
    prometheus.wait_for(evaluations, |answer| matches!(answer, [(_, evaluations)] if *evaluations >= wanted))?;
    let rules = rules(prometheus)?;
    ensure!(rules.len() > 50, "only {} rules", rules.len());
    for rule in &rules {
        ensure!(rule["health"] == "ok", "{rule}");
    }
    prometheus.wait_for_value("sum(prometheus_rule_evaluation_failures_total)", 0.0)
}

/// The demo and the failing host have something of everything: a rule that gives nothing asks for the wrong thing.
fn every_recorded_metric_has_a_value(prometheus: &Prometheus) -> Result<()> {
    let recorded: BTreeSet<String> = rules(prometheus)?
        .iter()
        .filter(|rule| rule["type"] == "recording")
        .filter_map(|rule| rule["name"].as_str().map(str::to_owned))
        .collect();
    for metric in recorded {
        prometheus.wait_for(&metric, |answer| {
            !answer.is_empty() && answer.iter().all(|(labels, _)| labels["job"] == "genv")
        })?;
    }
    Ok(())
}

fn alert(name: &str, severity: &str, hostname: &str, more: &[(&str, &str)]) -> Labels {
    [("alertname", name), ("severity", severity), ("job", "genv"), ("hostname", hostname)]
        .iter()
        .chain(more)
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn what_follows_from_something_worse_is_silenced() -> Result<()> {
    let alertmanager = Alertmanager::start("alertmanager-sid", &shipped("prometheus/alertmanager.yml"))?;
    let other_job = |mut labels: Labels| {
        labels.insert("job".to_owned(), "genv-b".to_owned());
        labels
    };
    let gpu = [("collector", "gpu")];
    let heard = [
        alert("GenvHostDown", "critical", "down", &[]),
        alert("GenvDeviceHot", "warning", "up", &[("index", "0")]),
        other_job(alert("GenvDeviceHot", "warning", "down", &[("index", "0")])),
        alert("GenvSnapshotStale", "warning", "old", &[]),
        alert("GenvDeviceHeldIdle", "warning", "old", &[("index", "0")]),
        alert("GenvCollectorStale", "warning", "hung", &gpu),
        alert("GenvCollectorFailing", "warning", "hung", &[("collector", "state")]),
        alert("GenvDeviceLost", "critical", "lost", &[("index", "3")]),
        // It tells why.
        alert("GenvDeviceXidHardware", "critical", "lost", &[("index", "3"), ("xid", "79")]),
        alert("GenvDeviceHeldIdle", "warning", "lost", &[("index", "2")]),
        alert("GenvDeviceHot", "critical", "hot", &[("index", "0")]),
        alert("GenvDeviceHot", "warning", "hot", &[("index", "1")]),
        alert("GenvDeviceThrottled", "warning", "hot", &[("index", "0")]),
    ];
    let silenced = [
        alert("GenvDeviceLost", "critical", "down", &[("index", "0")]),
        alert("GenvCollectorStale", "warning", "old", &gpu),
        alert("GenvCollectorFailing", "warning", "hung", &gpu),
        alert("GenvDeviceHeldIdle", "warning", "lost", &[("index", "3")]),
        alert("GenvDeviceXidApplication", "info", "lost", &[("index", "3")]),
        alert("GenvDeviceHot", "warning", "hot", &[("index", "0")]),
    ];
    let is_inhibited = |alert: &Value| !list(&alert["status"]["inhibitedBy"]).is_empty();
    alertmanager.fire(&heard)?;
    alertmanager.fire(&silenced)?;
    let alerts = alertmanager.wait_for("inhibition", |alerts| {
        let inhibited = alerts.iter().filter(|alert| is_inhibited(alert));
        alerts.len() == heard.len() + silenced.len() && inhibited.count() == silenced.len()
    })?;
    for alert in alerts {
        let (quiet, labels) = (is_inhibited(&alert), serde_json::from_value(alert["labels"].clone())?);
        ensure!(quiet == silenced.contains(&labels) && quiet != heard.contains(&labels), "{alert}");
    }
    Ok(())
}
