//! The real Prometheus and promtool, on an exporter of a simulated lab.

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::nvml_sim::Simulation;
use genv_tests::prometheus::{Prometheus, check_metrics};

/// Two GPUs: one shared by alice, who computes, and bob, who does not; one that carol uses outside.
const LAB: &str = r#"
version: 1
users: {alice: 2001, bob: 2002, carol: 2003}
hosts:
  - name: gpu01
    devices:
      - {name: NVIDIA A100-SXM4-40GB, count: 2, memory: 40gi, memory_reserved: 512mi, temperature: 50, power: 200}
    environments:
      - {eid: "1", user: alice, name: training, devices: [0], gpu_memory: 20gi}
      - {eid: "2", user: bob, devices: [0], gpu_memory: 10gi}
    processes:
      - {pid: 101, user: alice, environment: "1", devices: [{index: 0, memory: 8gi, utilization: 0.5}]}
      - {pid: 301, user: carol, claim: none, parent: 1, devices: [{index: 1, memory: 1gi, utilization: 0.25}]}
      - {pid: 302, user: carol, claim: empty, parent: 1, devices: [{index: 1, memory: 2gi, utilization: 0}]}
"#;

const GIB: f64 = (1_u64 << 30) as f64;

#[test]
fn prometheus_has_what_the_scenario_says_and_what_disappears_from_it_disappears() -> Result<()> {
    let simulation = Simulation::new(LAB);
    let exporter = Setup::with_scenario(&simulation)?.start()?;
    let prometheus = Prometheus::start_with("prometheus-3", exporter.port(), "")?;
    prometheus.wait_for_value("up", 1.0)?;
    let values = [
        ("genv_host_simulated", 1.0),
        ("sum(genv_device_up)", 2.0),
        (r#"genv_device_utilization_ratio{index="1"}"#, 0.25),
        (r#"genv_device_memory_total_bytes{index="0"}"#, 40.0 * GIB),
        (r#"genv_device_memory_used_bytes{index="1"}"#, 3.0 * GIB),
        (r#"genv_device_memory_reserved_bytes{index="0"}"#, 0.5 * GIB),
        (r#"genv_device_memory_unattached_bytes{index="0"}"#, 10.0 * GIB),
        (r#"genv_device_temperature_celsius{index="1"}"#, 50.0),
        (r#"genv_device_power_watts{index="1"}"#, 200.0),
        (r#"genv_device_attachments{index="0"}"#, 2.0),
        ("sum(genv_device_available)", 0.0),
        (r#"genv_device_processes{index="1",state="unknown"}"#, 1.0),
        ("genv_environments", 2.0),
        ("genv_users", 3.0),
        (r#"genv_processes{state="outside"}"#, 1.0),
        (r#"genv_environment_info{eid="1",env_name="training",username="alice"}"#, 1.0),
        (r#"genv_environment_device_share_ratio{eid="2",username="bob"}"#, 0.25),
        (r#"genv_environment_memory_capacity_bytes{eid="1",index="0"}"#, 20.0 * GIB),
        (r#"genv_environment_utilization_ratio{eid="1",index="0"}"#, 0.5),
        (r#"genv_user_memory_used_bytes{username="alice",index="0"}"#, 8.0 * GIB),
        (r#"genv_process_memory_used_bytes{pid="301",username="carol",eid=""}"#, GIB),
        // Every series of the host carries its name, as the exporter gave it.
        (r#"count({hostname!="gpu01",__name__=~"genv_.+",__name__!~"genv_(exporter|reader)_.+"}) or vector(0)"#, 0.0),
    ];
    // On a busy machine the processes of a first publication may have no users yet.
    for (promql, wanted) in values {
        prometheus.wait_for_value(promql, wanted)?;
    }
    // Half of the device is busy for alice, a quarter idle for bob, the other device used outside by carol. The rates settle
    // once a window is full.
    for (promql, wanted) in [
        (r#"rate(genv_user_device_seconds_total{username="alice",state="busy"}[5s])"#, 0.5),
        (r#"rate(genv_user_device_seconds_total{username="bob",state="idle"}[5s])"#, 0.25),
        (r#"rate(genv_user_device_seconds_total{username="carol",state="outside"}[5s])"#, 1.0),
        (r#"rate(genv_user_utilized_device_seconds_total{username="alice"}[5s])"#, 0.5),
        (r#"rate(genv_device_energy_joules_total{index="0"}[5s])"#, 200.0),
        (r#"rate(genv_user_energy_joules_total{username="alice",index="0"}[5s])"#, 200.0),
    ] {
        prometheus.wait_for(promql, |answer| matches!(answer, [(_, rate)] if (rate - wanted).abs() < 0.1 * wanted))?;
    }

    // Counters stay: what bob has used, he has used.
    let gone = r#"count({__name__!~".*_total",username=~"bob|carol"} or {eid="2"} or {pid=~"30."}) or vector(0)"#;
    let there = prometheus.value(gone)?;
    ensure!(there > 10.0, "only {there} series to begin with");
    let left = LAB.lines().filter(|line| !line.contains("user: bob") && !line.contains("user: carol"));
    simulation.rewrite(&left.collect::<Vec<_>>().join("\n"));
    prometheus.wait_for_value(gone, 0.0)?;
    prometheus.wait_for_value("genv_users", 1.0)?;
    prometheus.wait_for_value(r#"genv_device_available{index="1"}"#, 1.0)?;
    prometheus.wait_for_value(r#"count(genv_user_device_seconds_total{username="bob"})"#, 4.0)?;
    // What comes back is one series again, not two.
    simulation.rewrite(LAB);
    prometheus.wait_for_value(gone, there)?;
    ensure!(prometheus.value("scrape_samples_scraped - scrape_samples_post_metric_relabeling")? == 0.0);
    let log = prometheus.log();
    for fault in ["duplicate", "out of order", "out-of-order", "level=error"] {
        ensure!(!log.contains(fault), "Prometheus complains: {log}");
    }
    Ok(())
}

#[test]
fn promtool_finds_nothing_in_the_demo() -> Result<()> {
    let exporter = Setup::new()?.flag("--gpu.source=simulated").start()?;
    let scrape = exporter.wait_for("the hosts of the demo", |scrape| scrape.all("genv_host_up", &[]).len() == 2)?;
    ensure!(scrape.all("genv_host_up", &[]).iter().all(|(_, up)| *up == 1.0));
    let scrape = exporter.get("/metrics")?;
    assert_eq!(scrape.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for tool in ["prometheus", "prometheus-3"] {
        let (fine, said) = check_metrics(tool, &scrape.body)?;
        ensure!(fine && said.is_empty(), "promtool of {tool} says: {said}");
    }
    Ok(())
}
