//! `docs/metrics.md` lists every metric that the programs serve, and no other.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use genv_enforcer::metrics::{BUILD_INFO, FAMILIES, Instruments};
use genv_exporter::families::{self, GROUPS, genv1, own};
use genv_web::instruments::Registry;
use genv_web::instruments::prometheus::proto::MetricType;
use genv_web::metrics::{Family, Kind, PROCESS_FAMILIES};

use crate::documents::{path, read};

const PAGE: &str = "docs/metrics.md";

/// Begins the lists of the exporter, which end with a heading, and that of the enforcer.
const BEGIN: &str =
    "<!-- What follows is made from the code: UPDATE_DOCS=1 cargo test -p genv-tests --test monitoring documents -->\n";

const HEAD: &str = "| metric | type | labels | meaning |\n|---|---|---|---|\n";

const OF_HOSTS: [&str; 10] = [
    "genv_enforcer_violations",
    "genv_enforcer_violation_stages",
    "genv_enforcer_warnings_total",
    "genv_enforcer_undelivered_warnings",
    "genv_enforcer_actions_total",
    "genv_enforcer_unkillable_processes_total",
    "genv_enforcer_unknown_processes",
    "genv_enforcer_unknown_user_processes",
    "genv_enforcer_blind",
    "genv_state_disputed_records",
];

fn instruments(registry: &Registry) -> String {
    let families = registry.gather();
    let rows = families.iter().map(|family| {
        let kind = match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            _ => "gauge",
        };
        let labels = family.get_metric().first().map(|metric| metric.get_label()).unwrap_or_default();
        let labels: Vec<_> = labels.iter().map(|label| format!("`{}`", label.name())).collect();
        format!("| `{}` | {kind} | {} | {} |\n", family.name(), labels.join(", "), family.help())
    });
    rows.collect()
}

fn row<S>(family: &Family<S>) -> String {
    let kind = match family.kind {
        Kind::Gauge | Kind::Largest => "gauge",
        Kind::Counter => "counter",
    };
    let hostname = OF_HOSTS.contains(&family.name).then_some(&"hostname");
    let labels = hostname.into_iter().chain(family.labels);
    let labels: Vec<_> = labels.map(|label| format!("`{label}`")).collect();
    let (name, labels, help) = (family.name, labels.join(", "), family.help);
    format!("| `{name}` | {kind} | {labels} | {help} |\n")
}

fn section<S: 'static>(title: &str, families: impl IntoIterator<Item = &'static Family<S>>) -> String {
    let rows: String = families.into_iter().map(row).collect();
    format!("\n## {title}\n\n{HEAD}{rows}")
}

fn of_exporter() -> Result<String> {
    let mut sections = String::new();
    for (title, families) in GROUPS {
        sections += &section(title, *families);
    }
    sections += &section("The exporter itself", own::families());
    let own = genv_exporter::instruments::Instruments::new()?;
    own.requests("/metrics", [])?;
    sections += &instruments(own.registry());
    Ok(sections + &section("Metrics of genv 1.x (`/metrics/genv1`)", genv1::FAMILIES))
}

fn of_enforcer() -> Result<String> {
    let own: String = FAMILIES.iter().map(row).collect();
    let of_process: String = PROCESS_FAMILIES.iter().map(row).collect();
    let instruments = instruments(Instruments::new()?.registry());
    Ok(format!("\n{HEAD}{own}{}{of_process}{instruments}", row(&BUILD_INFO)))
}

#[test]
fn the_page_of_metrics_is_what_the_programs_serve() -> Result<()> {
    let known = read(PAGE)?;
    let [exporter, middle, _] = known.split(BEGIN).collect::<Vec<_>>()[..] else {
        anyhow::bail!("not two lines that begin what is made");
    };
    let (_, enforcer) = middle.split_once("\n# ").context("no second heading")?;
    let page = format!("{exporter}{BEGIN}{}\n# {enforcer}{BEGIN}{}", of_exporter()?, of_enforcer()?);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path(PAGE), &page)?;
    }
    ensure!(
        known == page,
        "{PAGE} is not what the programs serve: UPDATE_DOCS=1 cargo test -p genv-tests --test monitoring documents"
    );
    Ok(())
}

fn follows_conventions<S>(family: &Family<S>, prefixes: &[&str]) {
    let (name, help) = (family.name, family.help);
    assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
    assert_eq!(name.ends_with("_info"), help.starts_with("Always 1"), "{name}");
    assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
    assert!(prefixes.iter().any(|prefix| name.starts_with(prefix)), "{name}");
    let of_targets = ["env", "environment", "owner", "job", "instance", "hostname"];
    assert!(!family.labels.iter().any(|label| of_targets.contains(label)), "{name}");
}

#[test]
fn names_types_and_helps_follow_prometheus_conventions() {
    families::all().for_each(|family| follows_conventions(family, &["genv_"]));
    own::families().for_each(|family| follows_conventions(family, &["genv_", "process_"]));
    // Exporter and enforcer share the metrics of damaged state files.
    FAMILIES.iter().for_each(|family| follows_conventions(family, &["genv_enforcer_", "genv_state_"]));
}
