//! What `docker compose up` gives on a machine with no GPU: the built-in simulation, scraped, judged and shown.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use genv_tests::docker::{SERVICES, docker, eventually};
use serde_json::json;

use crate::shipped;

#[test]
fn everything_is_healthy_with_unchanged_files_no_gpu_and_no_toolkit() -> Result<()> {
    let runtimes = docker(&["info", "--format={{json .Runtimes}}"])?;
    ensure!(!runtimes.contains("nvidia"), "{runtimes}");
    let stack = shipped()?;
    for (service, ..) in SERVICES {
        ensure!(stack.is_healthy(service)?, "{service} is not");
        ensure!(stack.inspect(service)?["RestartCount"] == 0, "{service} was restarted");
    }
    for program in ["genv", "genv-exporter", "genv-enforcer"] {
        let said = docker(&["run", "--rm", "genv:0.1.0", program, "--version"])?;
        ensure!(said.starts_with(&format!("{program} 0.1.0")), "{said}");
    }
    Ok(())
}

#[test]
fn prometheus_reaches_the_simulated_lab_the_stack_itself_the_rules_and_the_alertmanager() -> Result<()> {
    let stack = shipped()?;
    let prometheus = stack.prometheus();
    let jobs = BTreeSet::from(["alertmanager", "genv", "genv-enforcer", "grafana", "prometheus"]);
    eventually("every target is up", || {
        let up = prometheus.query("up")?;
        let found: BTreeSet<_> = up.iter().map(|(labels, _)| labels["job"].as_str()).collect();
        ensure!(found == jobs && up.iter().all(|(_, value)| *value == 1.0), "{up:?}");
        Ok(())
    })?;
    let targets = prometheus.ask("/api/v1/targets", &[])?;
    ensure!(targets["droppedTargets"] == json!([]), "{targets}");
    prometheus.wait_for_value("sum(genv_host_simulated)", 2.0)?;
    // In dry-run, with the packaged rules.
    prometheus.wait_for_value(r#"genv_enforcer_mode{mode="dry-run"}"#, 1.0)?;
    prometheus.wait_for("genv_enforcer_violations > 0", |broken| {
        let hosts: BTreeSet<_> = broken.iter().map(|(labels, _)| labels["hostname"].as_str()).collect();
        hosts == BTreeSet::from(["gpu01", "gpu02"])
    })?;
    prometheus.wait_for(r#"{__name__=~"cluster:genv_.+"}"#, |recorded| !recorded.is_empty())?;
    let alerts = prometheus.ask("/api/v1/rules", &[])?;
    ensure!(alerts.to_string().contains("GenvExporterDown"), "{alerts}");
    eventually("Prometheus knows the Alertmanager", || {
        let known = prometheus.ask("/api/v1/alertmanagers", &[])?;
        let url = json!([{"url": "http://alertmanager:9093/api/v2/alerts"}]);
        ensure!(known["activeAlertmanagers"] == url, "{known}");
        Ok(())
    })
}
