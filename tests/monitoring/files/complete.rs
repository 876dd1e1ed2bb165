//! Nothing is missing: runbooks, tests, annotations, and the metrics that rules ask for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use genv_exporter::families::{GROUPS, own};
use genv_tests::history::{Rule, RulesFile};
use serde::Deserialize;

use crate::files::{files, read};

const RULES: [&str; 2] = ["genv-recording.yml", "genv-alerts.yml"];

fn rules() -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for name in RULES {
        let groups = RulesFile::shipped(name)?.groups;
        rules.extend(groups.into_iter().flat_map(|group| group.rules));
    }
    Ok(rules)
}

fn alerts() -> Result<Vec<Rule>> {
    let mut rules = rules()?;
    rules.retain(|rule| !rule.alert.is_empty());
    ensure!(!rules.is_empty(), "no alerts");
    Ok(rules)
}

/// A file for `promtool test rules`.
#[derive(Deserialize)]
struct TestFile {
    tests: Vec<TestCase>,
}

#[derive(Deserialize)]
struct TestCase {
    input_series: Vec<InputSeries>,
    #[serde(default)]
    alert_rule_test: Vec<AlertTest>,
    #[serde(default)]
    promql_expr_test: Vec<ExprTest>,
}

#[derive(Deserialize)]
struct InputSeries {
    series: String,
}

#[derive(Deserialize)]
struct AlertTest {
    alertname: String,
    exp_alerts: Vec<ExpectedAlert>,
}

#[derive(Deserialize)]
struct ExpectedAlert {
    exp_labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ExprTest {
    expr: String,
    exp_samples: Vec<serde::de::IgnoredAny>,
}

fn cases() -> Result<Vec<TestCase>> {
    let mut cases = Vec::new();
    for path in files("prometheus/tests", ".yml")? {
        let text = std::fs::read_to_string(&path)?;
        let file: TestFile = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        cases.extend(file.tests);
    }
    Ok(cases)
}

/// Every name in an expression that is a metric of ours or a recorded rule; what stands in quotes is no name.
pub(crate) fn names(promql: &str) -> BTreeSet<&str> {
    let outside_quotes = promql.split('"').step_by(2);
    outside_quotes
        .flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':'))
        .filter(|word| word.starts_with("genv_") || word.contains(":genv_"))
        .collect()
}

#[test]
fn every_alert_has_a_duration_a_severity_texts_and_a_link_to_its_runbook() -> Result<()> {
    for alert in alerts()? {
        let name = &alert.alert;
        ensure!(
            name.strip_prefix("Genv").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphabetic())),
            "{name} is no name of ours"
        );
        ensure!(alert.lasting.is_some(), "{name} has no for");
        let severity = alert.labels.get("severity").map(String::as_str);
        ensure!(matches!(severity, Some("critical" | "warning" | "info")), "{name} has the severity {severity:?}");
        let annotation = |key: &str| {
            let text = alert.annotations.get(key);
            text.with_context(|| format!("{name} has no {key}"))
        };
        annotation("summary")?;
        annotation("description")?;
        ensure!(
            *annotation("runbook_url")? == format!("http://127.0.0.1:9820/runbooks#{name}"),
            "{name} links to another runbook"
        );
    }
    Ok(())
}

#[test]
fn every_recorded_series_is_documented_and_no_other() -> Result<()> {
    let page = read("docs/recorded.md")?;
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let told: BTreeSet<&str> = rows
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|series| series.split('`').skip(1).step_by(2))
        .collect();
    let rules = rules()?;
    let names = rules.iter().map(|rule| rule.record.as_str());
    let recorded: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    let differ: Vec<_> = told.symmetric_difference(&recorded).collect();
    ensure!(differ.is_empty(), "recorded or documented only: {differ:?}");
    Ok(())
}

#[test]
fn every_rule_is_tested_with_and_without_a_result() -> Result<()> {
    let cases = cases()?;
    for rule in rules()? {
        let (mut found, mut silent) = (false, false);
        if rule.record.is_empty() {
            for test in cases.iter().flat_map(|case| &case.alert_rule_test) {
                if test.alertname == rule.alert {
                    silent |= test.exp_alerts.is_empty();
                    found |= test
                        .exp_alerts
                        .iter()
                        .any(|alert| alert.exp_labels.get("severity") == rule.labels.get("severity"));
                }
            }
        } else {
            for test in cases.iter().flat_map(|case| &case.promql_expr_test) {
                if names(&test.expr).contains(&*rule.record) {
                    silent |= test.exp_samples.is_empty();
                    found |= !test.exp_samples.is_empty();
                }
            }
        }
        let name = format!("{}{}", rule.record, rule.alert);
        ensure!(found, "no test in which {name} gives something");
        ensure!(silent, "no test in which {name} gives nothing");
    }
    Ok(())
}

/// The names of all metrics of ours, and of what the rules record.
pub(crate) fn metrics() -> Result<BTreeSet<String>> {
    let families = GROUPS.iter().flat_map(|(_, families)| *families);
    let mut known: BTreeSet<String> = families.map(|family| family.name.to_owned()).collect();
    known.extend(own::families().map(|family| family.name.to_owned()));
    let of_enforcer = genv_enforcer::metrics::FAMILIES.iter();
    known.extend(of_enforcer.map(|family| family.name.to_owned()));
    let of_exporter = genv_exporter::instruments::Instruments::new()?;
    of_exporter.requests("/metrics", [])?;
    let of_enforcer = genv_enforcer::metrics::Instruments::new()?;
    for family in [of_exporter.registry(), of_enforcer.registry()].iter().flat_map(|it| it.gather()) {
        let suffixes = ["", "_bucket", "_sum", "_count"];
        known.extend(suffixes.map(|suffix| format!("{}{suffix}", family.name())));
    }
    known.extend(rules()?.into_iter().map(|rule| rule.record));
    Ok(known)
}

#[test]
fn every_metric_that_rules_and_their_tests_name_exists() -> Result<()> {
    let known = metrics()?;
    let mut named = 0;
    let mut check = |where_: &str, promql: &str| {
        for name in names(promql) {
            ensure!(known.contains(name), "{where_} asks for {name}: there is none");
            named += 1;
        }
        Ok(())
    };
    for rule in rules()? {
        check(&format!("{}{}", rule.record, rule.alert), &rule.expr)?;
    }
    for case in cases()? {
        for input in &case.input_series {
            check("a test", &input.series)?;
        }
        for test in &case.promql_expr_test {
            check("a test", &test.expr)?;
        }
    }
    ensure!(named > 200, "only {named} names were found");
    Ok(())
}
