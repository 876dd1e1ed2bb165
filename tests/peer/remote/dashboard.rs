//! genv 1.4.3's own Overview, as it publishes it for Grafana: what it asks is answered alike by a Prometheus that scrapes
//! genv 1.4.3's exporter, and by one that scrapes `/metrics/genv1` of ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use genv_tests::dashboard::Dashboard;
use genv_tests::exporter::Setup;
use genv_tests::http::free_port;
use genv_tests::metrics::Labels;
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use genv_tests::peer::{Monitor, Peer};
use genv_tests::process::Sleeper;
use genv_tests::prometheus::Prometheus;
use genv_tests::ssh::SshClient;

use crate::remote::host::{Host, login};

/// The values of each panel's queries.
type Shown = BTreeMap<String, Vec<String>>;

/// The dashboard that genv 1.4.3 writes to the folder of its configuration. Its port may answer earlier.
fn overview(folder: &Path) -> Result<Dashboard> {
    let path = folder.join("grafana/dashboards/overview.json");
    let mut json = None;
    until("its dashboard is written", || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        json = serde_json::from_str(&text).ok();
        Ok(json.is_some())
    })?;
    let json = json.context("no dashboard")?;
    Ok(Dashboard { file: "overview".to_owned(), json })
}

/// What is answered, without the port that was scraped.
fn series(answer: &[(Labels, f64)]) -> BTreeMap<Labels, String> {
    let answer = answer.iter().map(|(labels, value)| {
        let mut labels = labels.clone();
        labels.remove("instance");
        (labels, value.to_string())
    });
    answer.collect()
}

/// Whether both answer everything that the dashboard asks, and the same; that is returned.
fn both_answer(dashboard: &Dashboard, theirs: u16, ours: u16, processes: f64) -> Result<Shown> {
    let theirs = Prometheus::start("prometheus", theirs)?;
    let ours = Prometheus::start_with("prometheus", ours, "metrics_path: /metrics/genv1")?;
    for prometheus in [&theirs, &ours] {
        prometheus.wait_for_value("sum(genv_processes_total)", processes)?;
    }
    let mut values = Shown::new();
    for panel in dashboard.queried_panels() {
        for target in panel.targets() {
            let what = || format!("{} / {}", panel.name(), target.reference());
            let question = target.expression();
            let wanted = series(&theirs.query(question)?);
            let answer = ours.wait_for(question, |answer| series(answer) == wanted);
            answer.with_context(|| format!("{}: genv 1.4.3 has {wanted:?}", what()))?;
            values.insert(what(), wanted.into_values().collect());
        }
    }
    ensure!(values.len() > 10, "{values:?}");
    for (what, found) in &values {
        ensure!(!found.is_empty(), "{what} has no data");
    }
    Ok(values)
}

fn shows(values: &Shown, what: &str, wanted: &[&str]) -> Result<()> {
    let found = values.get(what).with_context(|| format!("no {what} among {values:?}"))?;
    ensure!(found == wanted, "{what}: {found:?}");
    Ok(())
}

#[test]
fn its_overview_shows_the_same_of_this_machine() -> Result<()> {
    let device = "{count: 3, memory: 40gi, utilization: 0.37, temperature: 51}";
    let lab = |processes: &str| format!("version: 1\nhosts:\n- devices: [{device}]\n  processes: [{processes}]\n");
    let simulation = Simulation::new(&lab(""));
    let peer = Peer::new(&simulation)?;
    let mut first = peer.shell()?;
    first.run("genv activate --name training --gpus 1")?;
    let mut second = peer.shell()?;
    second.run("genv activate --gpus 1 --gpu-memory 10gi")?;
    let inside = first.run("sleep 1000000 >/dev/null & echo $!")?;
    let outside = Sleeper::start(&[])?;
    simulation.rewrite(&lab(&format!(
        "{{pid: {}, devices: [{{index: 0, memory: 5gi}}]}}, {{pid: {}, devices: [{{index: 2, memory: 1500mi}}]}}",
        inside.trim(),
        outside.pid()
    )));
    let exporter =
        Setup::with_driver(&simulation)?.env("GENV_TMPDIR", peer.state_directory()).flag("--interval=1s").start()?;
    let monitor = peer.monitor()?;
    let dashboard = overview(&peer.folder().join("metrics"))?;
    let values = both_answer(&dashboard, monitor.port(), exporter.port(), 2.0)?;
    shows(&values, "Genv Environments / A", &["2"])?;
    shows(&values, "Genv Processes / A", &["50"])?;
    shows(&values, "Device Temperature / Per-device utilization", &["51"; 3])
}

#[test]
fn its_overview_shows_the_same_of_many_hosts() -> Result<()> {
    let names = ["gpu01", "gpu02"];
    let member = Sleeper::start(&[("GENV_ENVIRONMENT_ID", "7")])?;
    let process = format!("{{pid: {}, devices: [{{index: 0, memory: 3gi}}]}}", member.pid());
    let hosts = [Host::new(2, &process)?, Host::new(3, "")?];
    hosts[0].environment("7", "run", &member, "--count 2")?;
    let client = |servers: [_; 2]| SshClient::new(&[(names[0], servers[0]), (names[1], servers[1])]);
    let theirs = client([&hosts[0].theirs, &hosts[1].theirs])?;
    let ours = client([&hosts[0].ours, &hosts[1].ours])?;

    let port = free_port()?;
    let folder = hosts[0].peer.folder().join("monitor");
    let line = format!("-H {} monitor --interval 1 --port {port} --config-dir {}", names.join(","), folder.display());
    let mut monitor = login(&theirs, &hosts[0], &line)?;
    let monitor = Monitor::start(&mut monitor, port, hosts[0].peer.folder())?;
    let path = format!("{}:{}", ours.bin().display(), std::env::var("PATH")?);
    let exporter =
        Setup::new()?.env("PATH", path).flag(&format!("--host={}", names.join(","))).flag("--interval=1s").start()?;
    let values = both_answer(&overview(&folder)?, monitor.port(), exporter.port(), 1.0)?;
    shows(&values, "Genv Cluster Installation / A", &["100"])?;
    shows(&values, "Genv Devices / A", &["40"])
}
