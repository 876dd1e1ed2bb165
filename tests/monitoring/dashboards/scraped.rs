//! The Enforcement dashboard, and the alerts about the enforcer, over a real enforcer that a real Prometheus scrapes: from
//! what it would do to what it does, with its breaker and its configuration in trouble meanwhile.

use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use genv_tests::dashboard::{Dashboard, Target};
use genv_tests::enforcer::{Enforcer, Setup, as_victim, ends, is_alive, sleeper};
use genv_tests::metrics::Labels;
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;
use genv_tests::prometheus::Prometheus;

use crate::dashboards::interpolate::Times;
use crate::dashboards::queries::{Questions, unknown_fields};
use crate::dashboards::{of_any_host, with_all};

/// Enough that what begins is scraped as 0 before it rises.
const RULES: &str = "
rules:
- {kind: non-env-processes, action: terminate, for: 2s, warn: [2s]}
";

fn rules(mode: &str, share_of_users: f64) -> String {
    let breaker = format!("breaker: {{share_of_users: {share_of_users}, at_least_users: 1}}");
    format!("version: 1\nmode: {mode}\n{breaker}{RULES}")
}

fn scenario(processes: &[&Sleeper]) -> String {
    let pids = processes.iter().map(|process| process.pid());
    used_by(&pids.filter(|pid| is_alive(*pid)).collect::<Vec<_>>())
}

fn scraped(enforcer: &Enforcer) -> Result<Prometheus> {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../prometheus/rules/genv-alerts.yml");
    let configuration = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs:
- job_name: genv-enforcer
  honor_labels: true
  static_configs: [{{targets: ['127.0.0.1:{}']}}]
",
        enforcer.port()
    );
    Prometheus::start_configured("prometheus-3", &configuration, &[])
}

/// What a target asks about the last five minutes, with everything at All.
fn question(dashboard: &Dashboard, target: Target<'_>) -> Result<String> {
    // The shortest interval of a panel that counts what happened.
    let (scraped, minimum) = (Duration::from_secs(1), Duration::from_secs(60));
    let times = Times::new((0, 300), 1000, scraped, Some(minimum));
    with_all(dashboard, target, &times)
}

fn shows(prometheus: &Prometheus, dashboard: &Dashboard, title: &str, wanted: f64) -> Result<()> {
    let mut panels = dashboard.queried_panels();
    let panel = panels.find(|panel| panel.title() == title);
    let target = panel.and_then(|panel| panel.targets().next());
    let target = target.with_context(|| format!("no panel {title}"))?;
    let shown = prometheus.wait_for_value(&question(dashboard, target)?, wanted);
    shown.with_context(|| title.to_owned())
}

fn fires(prometheus: &Prometheus, alert: &str, labels: &str, wanted: bool) -> Result<()> {
    let selector = format!(r#"ALERTS{{alertname="{alert}",alertstate="firing",job=~"genv(-enforcer)?"{labels}}}"#);
    let firing = prometheus.wait_for(&selector, |answer| answer.is_empty() != wanted);
    firing.map(|_| ()).with_context(|| alert.to_owned())
}

#[test]
fn every_panel_of_enforcement_has_data_of_a_real_enforcer() -> Result<()> {
    let dashboard = Dashboard::of_file("enforcement")?;
    let mut stubborn = Command::new("env");
    stubborn.args(["--ignore-signal=TERM", "sleep", "1000000"]);
    let stubborn = Sleeper::spawn(as_victim(&mut stubborn))?;
    let first = sleeper(&[])?;
    let enforcer = Setup::new(&scenario(&[&stubborn, &first]), &rules("dry-run", 1.0))?.start()?;
    let prometheus = scraped(&enforcer)?;
    let count = |result: &str| format!(r#"sum(genv_enforcer_actions_total{{action="terminate",result="{result}"}})"#);

    // What it would have done.
    prometheus.wait_for_value(&count("would"), 2.0)?;
    shows(&prometheus, &dashboard, "Mode of enforcers", 0.0)?;
    ensure!(is_alive(first.pid()), "dry-run ends nobody");
    fires(&prometheus, "GenvUserActedOn", "", false)?;

    // What it does, and says before.
    let setup = enforcer.setup();
    setup.rewrite_config(&rules("enforce", 1.0))?;
    shows(&prometheus, &dashboard, "Mode of enforcers", 1.0)?;
    fires(&prometheus, "GenvUserWarned", r#",rule="non-env-processes""#, true)?;
    ends(first.pid())?;
    setup.rewrite_scenario(&scenario(&[&stubborn, &first]))?;
    prometheus.wait_for_value(&count("done"), 2.0)?;
    fires(&prometheus, "GenvUserActedOn", r#",action="terminate""#, true)?;
    // The stubborn one.
    shows(&prometheus, &dashboard, "Violations now", 1.0)?;
    for panel in dashboard.queried_panels() {
        let mut answers = Vec::new();
        for target in panel.targets() {
            let has_data = |answer: &[(Labels, f64)]| answer.iter().any(|(_, it)| it.is_finite());
            let answered = prometheus.wait_for(&question(&dashboard, target)?, has_data);
            let answered = answered.with_context(|| format!("{} / {}", panel.name(), target.reference()))?;
            answers.push((target, answered.into_iter().map(|(labels, _)| labels).collect::<Vec<_>>()));
        }
        let unknown = unknown_fields(panel, &answers);
        ensure!(unknown.is_empty(), "{} has no fields {unknown:?}", panel.name());
    }
    let now = SystemTime::now();
    let questions = Questions::new(&prometheus, (now - Duration::from_secs(300), now), Duration::from_secs(1))?;
    let of_any_host = of_any_host(&dashboard, &questions.metrics_with_hostname()?);
    ensure!(of_any_host.is_empty(), "{}", of_any_host.join("\n"));

    // A configuration that cannot be read, and then a breaker that has enough.
    shows(&prometheus, &dashboard, "Enforcers in trouble", 0.0)?;
    setup.rewrite_config("version: 1\nrulez: []\n")?;
    shows(&prometheus, &dashboard, "Enforcers in trouble", 1.0)?;
    shows(&prometheus, &dashboard, "Breaker", 0.0)?;
    setup.rewrite_config(&rules("enforce", 0.5))?;
    shows(&prometheus, &dashboard, "Enforcers in trouble", 0.0)?;
    let (second, third) = (sleeper(&[])?, sleeper(&[])?);
    setup.rewrite_scenario(&scenario(&[&second, &third]))?;
    shows(&prometheus, &dashboard, "Breaker", 1.0)?;
    fires(&prometheus, "GenvEnforcerBreakerOpen", "", true)?;
    shows(&prometheus, &dashboard, "Mode over time", 3.0)?;
    // They leave.
    setup.rewrite_scenario(&scenario(&[]))?;
    shows(&prometheus, &dashboard, "Violations now", 0.0)?;
    setup.said(&["reset"])?;
    shows(&prometheus, &dashboard, "Breaker", 0.0)?;
    fires(&prometheus, "GenvEnforcerBreakerOpen", "", false)
}
