//! What `genv-exporter publish DIR` writes, in the hands of the programs that it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use genv_tests::dashboard::{list, text};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::http::free_port;
use genv_tests::process::{copy_program, program};
use genv_tests::prometheus::Prometheus;
use genv_tests::root::FIRST_UID;
use serde_json::Value;

use crate::files::running::{every_rule_is_evaluated, quick};
use crate::files::tools::{ALERTMANAGER, accepts_configuration, says};

struct Published {
    _temporary: tempfile::TempDir,
    folder: PathBuf,
}

impl Published {
    fn new(flags: &[String]) -> Result<Self> {
        let temporary = tempfile::tempdir()?;
        // Spaces and letters of other languages are nobody's fault.
        let folder = temporary.path().join("Rechner übersicht");
        let mut command = Command::new(program("genv-exporter")?);
        let output = command.arg("publish").arg(&folder).args(flags).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(Self { _temporary: temporary, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn yaml(&self, name: &str) -> Result<Value> {
        let text = fs::read_to_string(self.path(name))?;
        serde_saphyr::from_str(&text).with_context(|| name.to_owned())
    }
}

fn demo() -> Result<Exporter> {
    Setup::new()?.flag("--gpu.source=simulated").start()
}

/// Starts Prometheus with what was published, which scrapes and evaluates every second.
fn started(port: u16, published: &Published) -> Result<Prometheus> {
    let file = published.path("prometheus/prometheus.yml");
    accepts_configuration(&file)?;
    let text = fs::read_to_string(&file)?;
    let text = text.replace("interval: 15s", "interval: 1s").replace("interval: 10s", "interval: 1s");
    ensure!(text.matches("interval: 1s").count() == 4, "{text}");
    fs::write(&file, text)?;
    let rules = published.path("prometheus/rules/genv-recording.yml");
    fs::write(&rules, quick(&fs::read_to_string(&rules)?))?;
    Prometheus::start_on("prometheus-3", port, &file)
}

#[test]
fn prometheus_scrapes_and_evaluates_and_alertmanager_accepts_what_was_published() -> Result<()> {
    let exporter = demo()?;
    let (port, alertmanager) = (free_port()?, free_port()?);
    let published = Published::new(&[
        format!("--exporter-address=127.0.0.1:{}", exporter.port()),
        format!("--prometheus-url=http://127.0.0.1:{port}"),
        format!("--alertmanager-address=127.0.0.1:{alertmanager}"),
    ])?;
    let prometheus = started(port, &published)?;
    prometheus.wait_for_value(r#"up{job="genv"}"#, 1.0)?;
    prometheus.wait_for_value(r#"up{job="prometheus"}"#, 1.0)?;
    // A recorded rule: the two hosts of the demonstration.
    prometheus.wait_for_value("sum(host:genv_host_up:known)", 2.0)?;

    let alertmanagers = prometheus.ask("/api/v1/alertmanagers", &[])?;
    let url = format!("http://127.0.0.1:{alertmanager}/api/v2/alerts");
    ensure!(alertmanagers["activeAlertmanagers"][0]["url"] == url, "{alertmanagers}");

    every_rule_is_evaluated(&prometheus)?;
    for tool in ALERTMANAGER {
        says(tool, "amtool", &["check-config"], &[published.path("prometheus/alertmanager.yml")])?;
    }
    Ok(())
}

#[test]
fn prometheus_asks_at_the_addresses_that_were_published() -> Result<()> {
    let port = free_port()?;
    let published = Published::new(&[
        "--exporter-address=127.0.0.1:1".to_owned(),
        "--exporter-address=https://127.0.0.2:1".to_owned(),
        "--exporter-address=[::1]:1".to_owned(),
        "--enforcer-address=127.0.0.1:5".to_owned(),
        "--enforcer-address=https://127.0.0.2:5".to_owned(),
        "--prometheus-url=https://127.0.0.1:2/prometheus".to_owned(),
        "--alertmanager-address=https://127.0.0.1:3".to_owned(),
        "--grafana-address=127.0.0.1:4".to_owned(),
    ])?;
    let prometheus = started(port, &published)?;
    // Each target, and each Alertmanager, is found before it is asked.
    prometheus.wait_for("up", |targets| targets.len() == 8)?;
    let targets = prometheus.ask("/api/v1/targets", &[])?;
    let mut asked = BTreeMap::<&str, BTreeSet<&str>>::new();
    for target in list(&targets["activeTargets"]) {
        asked.entry(text(&target["scrapePool"])).or_default().insert(text(&target["scrapeUrl"]));
    }
    let wanted = BTreeMap::from([
        ("alertmanager", BTreeSet::from(["https://127.0.0.1:3/metrics"])),
        (
            "genv",
            BTreeSet::from(["http://127.0.0.1:1/metrics", "http://[::1]:1/metrics", "https://127.0.0.2:1/metrics"]),
        ),
        ("genv-enforcer", BTreeSet::from(["http://127.0.0.1:5/metrics", "https://127.0.0.2:5/metrics"])),
        ("grafana", BTreeSet::from(["http://127.0.0.1:4/metrics"])),
        ("prometheus", BTreeSet::from(["https://127.0.0.1:2/prometheus/metrics"])),
    ]);
    assert_eq!(asked, wanted);
    let alertmanagers = prometheus.ask("/api/v1/alertmanagers", &[])?;
    let url = &alertmanagers["activeAlertmanagers"][0]["url"];
    assert_eq!(url, "https://127.0.0.1:3/api/v2/alerts");
    Ok(())
}

#[test]
fn grafana_finds_its_files_where_they_were_published() -> Result<()> {
    let published = Published::new(&["--prometheus-url=https://metrics:1/p".to_owned()])?;
    let sources = published.yaml("grafana/provisioning/datasources/genv.yml")?;
    assert_eq!(sources["datasources"][0]["url"], "https://metrics:1/p");
    let dashboards = published.yaml("grafana/provisioning/dashboards/genv.yml")?;
    let providers = dashboards["providers"].as_array().context("no providers")?;
    let mut uids = BTreeSet::new();
    for provider in providers {
        let path = provider["options"]["path"].as_str().context("no path")?;
        ensure!(Path::new(path).starts_with(&published.folder), "{path}");
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
        uids.insert(dashboard["uid"].to_string());
    }
    assert_eq!(uids.len(), providers.len());
    let dashboards = fs::read_dir(published.path("grafana/dashboards"))?;
    assert_eq!(uids.len(), dashboards.count(), "each has a provider");

    let settings = fs::read_to_string(published.path("grafana/grafana.ini"))?;
    let setting = |key: &str| {
        let found = settings.lines().find_map(|line| line.strip_prefix(key));
        found.and_then(|rest| rest.strip_prefix(" = ")).map(PathBuf::from).context("no such setting")
    };
    assert_eq!(setting("provisioning")?, published.path("grafana/provisioning"));
    assert!(setting("default_home_dashboard_path")?.is_file());
    Ok(())
}

#[test]
fn every_alert_links_to_its_section_of_the_runbooks() -> Result<()> {
    let exporter = demo()?;
    let base = format!("http://127.0.0.1:{}", exporter.port());
    let published = Published::new(&[format!("--exporter-url={base}")])?;
    let rules = published.yaml("prometheus/rules/genv-alerts.yml")?;
    let mut alerts = 0;
    for group in rules["groups"].as_array().context("no groups")? {
        for rule in group["rules"].as_array().context("no rules")? {
            let name = rule["alert"].as_str().context("no alert")?;
            let url = rule["annotations"]["runbook_url"].as_str().context(name.to_owned())?;
            let link = url.strip_prefix(&base).context(url.to_owned())?;
            let (path, fragment) = link.split_once('#').context(url.to_owned())?;
            assert_eq!(fragment, name);
            let page = exporter.get(path)?;
            assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
            let heading = format!("<h2 id=\"{fragment}\">{fragment}</h2>");
            assert_eq!(page.text()?.matches(&heading).count(), 1, "{heading}");
            alerts += 1;
        }
    }
    ensure!(alerts > 10, "{alerts}");

    let page = exporter.get("/runbooks")?;
    let policy = page.header("content-security-policy").context("no policy")?;
    ensure!(policy.contains("default-src 'none'") && !policy.contains("http"), "other machines are asked: {policy}");
    Ok(())
}

#[test]
fn a_folder_that_may_not_be_written_is_named() -> Result<()> {
    let temporary = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
    let folder = temporary.path().join("etc");
    fs::create_dir(&folder)?;
    let copy = temporary.path().join("genv-exporter");
    copy_program("genv-exporter", &copy)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555))?;
    for (below, path) in [("", "/prometheus"), ("/genv", "/genv")] {
        let mut command = Command::new(&copy);
        // Root may write everywhere: then somebody else tries.
        if rustix::process::getuid().is_root() {
            command.uid(FIRST_UID).gid(FIRST_UID);
        }
        let folder = folder.display();
        let output: Output = command.arg("publish").arg(format!("{folder}{below}")).output()?;
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            String::from_utf8(output.stderr)?,
            format!(
                "genv-exporter: cannot write {folder}{path}: Permission denied (os error 13). \
                 Name a folder that you may write to, or publish as its owner\n"
            )
        );
    }
    Ok(())
}
