//! What `docker compose up` gives on a machine with no GPU: the built-in simulation, scraped, judged and shown.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use genv_tests::docker::{SERVICES, docker, eventually};
use serde_json::{Value, json};

use crate::stack::shipped;

/// The header of HTTP basic authentication.
fn sign_in(password: &str) -> String {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("admin:{password}"));
    format!("Basic {encoded}")
}

#[test]
fn everything_is_healthy_with_unchanged_files_no_gpu_and_no_toolkit() -> Result<()> {
    let runtimes = docker(&["info", "--format={{json .Runtimes}}"])?;
    ensure!(!runtimes.contains("nvidia"), "{runtimes}");
    let stack = shipped()?;
    for (service, ..) in SERVICES {
        ensure!(stack.is_healthy(service)?, "{service} is not");
        ensure!(stack.inspect(service)?["RestartCount"] == 0, "{service} was restarted");
    }
    Ok(())
}

#[test]
fn prometheus_scrapes_the_simulated_lab_and_the_stack_itself() -> Result<()> {
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
    let hosts = prometheus.query("genv_host_simulated == 1")?;
    let names: Vec<_> = hosts.iter().map(|(labels, _)| &labels["hostname"]).collect();
    let scrape = stack.scrape()?;
    ensure!(hosts.len() == scrape.all("genv_host_up", &[]).len() && hosts.len() > 1, "{names:?}");
    Ok(())
}

#[test]
fn the_enforcer_says_what_it_would_do_in_the_simulated_lab_and_does_nothing() -> Result<()> {
    let prometheus = shipped()?.prometheus();
    eventually("a violation is told of each host", || {
        let broken = prometheus.query("genv_enforcer_violations > 0")?;
        let hosts: BTreeSet<_> = broken.iter().map(|it| it.0["hostname"].as_str()).collect();
        ensure!(hosts == BTreeSet::from(["gpu01", "gpu02"]), "{broken:?}");
        Ok(())
    })?;
    prometheus.wait_for_value(r#"genv_enforcer_mode{mode="dry-run"}"#, 1.0)?;
    prometheus.wait_for_value("genv_enforcer_faults", 0.0)?;
    let done = r#"genv_enforcer_actions_total{result!="would",result!="refused"}"#;
    let done = prometheus.query(done)?;
    ensure!(done.is_empty(), "{done:?}");
    Ok(())
}

#[test]
fn prometheus_evaluates_every_rule() -> Result<()> {
    let stack = shipped()?;
    let prometheus = stack.prometheus();
    let rules = eventually("every rule was evaluated", || {
        let groups = prometheus.ask("/api/v1/rules", &[])?;
        let groups = groups["groups"].as_array().context("no groups")?.clone();
        let mut rules = Vec::new();
        for group in groups {
            // What is recorded every hour is not recorded yet.
            let rare = group["interval"].as_f64().context("no interval")? > 60.0;
            for rule in group["rules"].as_array().context("no rules")? {
                let fine = rule["health"] == "ok" || (rare && rule["health"] == "unknown");
                ensure!(fine, "{rule}");
                rules.push(rule.clone());
            }
        }
        Ok(rules)
    })?;
    for (file, keyword, kind) in
        [("genv-recording.yml", "record:", "recording"), ("genv-alerts.yml", "alert:", "alerting")]
    {
        let path = format!("prometheus/rules/{file}");
        let text = std::fs::read_to_string(genv_tests::docker::repository().join(path))?;
        let written =
            text.lines().filter(|line| line.trim_start().trim_start_matches("- ").starts_with(keyword)).count();
        let loaded = rules.iter().filter(|rule| rule["type"] == kind).count();
        ensure!(written > 0 && written == loaded, "{file}: {written} written, {loaded} loaded");
    }
    eventually("recorded series are there", || {
        let recorded = prometheus.query(r#"count({__name__=~"cluster:genv_.+"})"#)?;
        ensure!(!recorded.is_empty());
        Ok(())
    })
}

#[test]
fn alerts_reach_the_alertmanager() -> Result<()> {
    let stack = shipped()?;
    let alertmanagers = eventually("Prometheus knows an Alertmanager", || {
        let known = stack.prometheus().ask("/api/v1/alertmanagers", &[])?;
        ensure!(known["activeAlertmanagers"] != json!([]), "{known}");
        Ok(known)
    })?;
    assert_eq!(alertmanagers["activeAlertmanagers"], json!([{"url": "http://alertmanager:9093/api/v2/alerts"}]));
    // From the container, by the name that it is given there.
    let sent = stack.compose(&[
        "exec",
        "-T",
        "prometheus",
        "wget",
        "-q",
        "-O",
        "-",
        "http://alertmanager:9093/api/v2/status",
    ])?;
    let status: Value = serde_json::from_str(&sent)?;
    let configuration = status["config"]["original"].as_str().context("no configuration")?;
    ensure!(configuration.contains("inhibit_rules"), "{configuration}");
    Ok(())
}

#[test]
fn the_stub_of_grafana_finds_its_files_and_a_prometheus_behind_its_data_source() -> Result<()> {
    let stack = shipped()?;
    let health: Value = serde_json::from_slice(&stack.get("grafana", "/api/health", &[])?.body)?;
    assert_eq!(health["version"], "stub");
    let ask = |uid: &str| {
        let path = format!("/api/datasources/proxy/uid/{uid}/api/v1/query?query=genv_host_up");
        stack.get("grafana", &path, &[])
    };
    assert_eq!(ask("prometheus")?.status, 404, "there is no such data source");
    eventually("the data source has data", || {
        let answer = ask("genv-prometheus")?;
        ensure!(answer.status == 200, "{}", answer.text()?);
        let answer: Value = serde_json::from_slice(&answer.body)?;
        let result = answer["data"]["result"].as_array().context("no result")?;
        ensure!(!result.is_empty(), "{answer}");
        Ok(())
    })
}

#[test]
fn pages_about_people_ask_for_a_login_by_the_stub_of_grafana() -> Result<()> {
    let stack = shipped()?;
    let password = stack.compose(&["exec", "-T", "grafana", "cat", "/var/lib/grafana/genv-admin-password"])?;
    ensure!(password.trim().len() >= 16, "a password of {} letters", password.trim().len());
    let (admin, other) = (sign_in(password.trim()), sign_in("admin"));
    let status = |uid: &str, header: Option<&str>| -> Result<u16> {
        let headers: Vec<_> = header.iter().map(|value| ("Authorization", *value)).collect();
        let path = format!("/api/dashboards/uid/{uid}");
        Ok(stack.get("grafana", &path, &headers)?.status)
    };
    assert_eq!(status("genv-overview", None)?, 200);
    for about_people in ["genv-users", "genv-enforcement", "genv-host"] {
        assert_eq!(status(about_people, None)?, 403);
        assert_eq!(status(about_people, Some(&admin))?, 200);
        assert_eq!(status(about_people, Some(&other))?, 401);
    }
    Ok(())
}

#[test]
fn the_stub_of_grafana_refuses_to_start_without_its_files() -> Result<()> {
    shipped()?;
    let alone = docker(&["run", "--rm", "grafana/grafana:13.2.0"]);
    let said = format!("{:#}", alone.expect_err("it started"));
    ensure!(said.contains("/etc/grafana/provisioning/datasources: holds nothing"), "{said}");
    Ok(())
}

#[test]
fn the_image_holds_every_program() -> Result<()> {
    shipped()?;
    for program in ["genv", "genv-exporter", "genv-enforcer"] {
        let said = docker(&["run", "--rm", "genv:0.1.0", program, "--version"])?;
        ensure!(said.starts_with(&format!("{program} 0.1.0")), "{said}");
    }
    Ok(())
}
