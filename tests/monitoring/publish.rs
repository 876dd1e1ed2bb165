//! What `genv-exporter publish DIR` writes, in the hands of the programs that it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::http::free_port;
use genv_tests::process::{copy_program, program};
use genv_tests::prometheus::Prometheus;
use genv_tests::root::FIRST_UID;
use genv_tests::tools;
use serde_json::Value;

/// A folder that was published to.
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

/// Starts Prometheus with what was published, every second where that says every ten or fifteen.
fn started(port: u16, published: &Published) -> Result<Prometheus> {
    let file = published.path("prometheus/prometheus.yml");
    for tool in ["prometheus", "prometheus-3"] {
        let output = Command::new(tools::program(tool, "promtool")).args(["check", "config"]).arg(&file).output()?;
        ensure!(output.status.success(), "{tool}: {output:?}");
    }
    let text = fs::read_to_string(&file)?;
    let quick = text.replace("interval: 15s", "interval: 1s").replace("interval: 10s", "interval: 1s");
    ensure!(quick.matches("interval: 1s").count() == 4, "{quick}");
    fs::write(&file, quick)?;
    Prometheus::start_on("prometheus-3", port, &file)
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
    let mut asked = BTreeMap::<String, BTreeSet<String>>::new();
    for target in targets["activeTargets"].as_array().context("no targets")? {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let urls = asked.entry(text(&target["scrapePool"])).or_default();
        urls.insert(text(&target["scrapeUrl"]));
    }
    let wanted: [(&str, &[&str]); 5] = [
        ("alertmanager", &["https://127.0.0.1:3/metrics"]),
        ("genv", &["http://127.0.0.1:1/metrics", "http://[::1]:1/metrics", "https://127.0.0.2:1/metrics"]),
        ("genv-enforcer", &["http://127.0.0.1:5/metrics", "https://127.0.0.2:5/metrics"]),
        ("grafana", &["http://127.0.0.1:4/metrics"]),
        ("prometheus", &["https://127.0.0.1:2/prometheus/metrics"]),
    ];
    let wanted: BTreeMap<_, BTreeSet<_>> = wanted
        .into_iter()
        .map(|(job, urls)| (job.to_owned(), urls.iter().map(|&url| url.to_owned()).collect()))
        .collect();
    assert_eq!(asked, wanted);
    let alertmanagers = prometheus.ask("/api/v1/alertmanagers", &[])?;
    let url = &alertmanagers["activeAlertmanagers"][0]["url"];
    assert_eq!(url, "https://127.0.0.1:3/api/v2/alerts");
    Ok(())
}

#[test]
fn every_alert_links_to_its_section_of_the_runbooks() -> Result<()> {
    let exporter = Setup::new()?.flag("--gpu.source=simulated").start()?;
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
    ensure!(policy.contains("default-src 'none'"), "{policy}");
    let text = page.text()?;
    for needs_a_network in ["<script", "<img", "src=", "<link", "url("] {
        ensure!(!text.contains(needs_a_network), "{needs_a_network}");
    }
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
