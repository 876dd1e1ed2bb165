//! Nothing is missing: runbooks, tests, annotations, and the metrics that rules ask for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use genv_exporter::families::{self, own};
use genv_tests::dashboard::{list, text};
use genv_tests::history::{Rule, RulesFile};
use serde_json::Value;

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

fn cases() -> Result<Vec<Value>> {
    let mut cases = Vec::new();
    for path in files("prometheus/tests", ".yml")? {
        let file = std::fs::read_to_string(&path)?;
        let file: Value = serde_saphyr::from_str(&file).with_context(|| path.display().to_string())?;
        cases.extend_from_slice(list(&file["tests"]));
    }
    ensure!(!cases.is_empty(), "no cases");
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
        let letters = name.strip_prefix("Genv").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_alphabetic()));
        ensure!(letters && alert.lasting.is_some(), "{name} is no name of ours, or has no for");
        let severity = alert.labels.get("severity").map(String::as_str);
        ensure!(matches!(severity, Some("critical" | "warning" | "info")), "{name} has the severity {severity:?}");
        for key in ["summary", "description"] {
            ensure!(alert.annotations.contains_key(key), "{name} has no {key}");
        }
        let runbook = format!("http://127.0.0.1:9820/runbooks#{name}");
        ensure!(alert.annotations.get("runbook_url") == Some(&runbook), "{name} links to another runbook");
    }
    Ok(())
}

#[test]
fn every_runbook_is_of_an_alert_and_tells_its_severity() -> Result<()> {
    let (page, alerts) = (read("docs/alerts.md")?, alerts()?);
    let (_, sections) = page.split_once("\n## ").context("no section")?;
    for section in sections.split("\n## ") {
        let (name, text) = section.split_once('\n').context("an empty section")?;
        let of_this_name: Vec<_> = alerts.iter().filter(|alert| alert.alert == name).collect();
        ensure!(!of_this_name.is_empty(), "there is no alert {name}");
        for alert in of_this_name {
            let severity = format!("**{}", alert.labels["severity"]);
            ensure!(text.contains(&severity), "{name} is {severity}");
        }
    }
    ensure!(!page.contains('<'), "raw HTML, or what looks like it");
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
    let tests = |kind: &'static str| cases.iter().flat_map(move |case| list(&case[kind]));
    for rule in rules()? {
        let (mut found, mut silent) = (false, false);
        let severity = rule.labels.get("severity").map(String::as_str);
        for test in tests("alert_rule_test").filter(|test| test["alertname"] == *rule.alert) {
            let alerts = list(&test["exp_alerts"]);
            silent |= alerts.is_empty();
            found |= alerts.iter().any(|alert| alert["exp_labels"]["severity"].as_str() == severity);
        }
        for test in tests("promql_expr_test").filter(|test| names(text(&test["expr"])).contains(&*rule.record)) {
            let samples = list(&test["exp_samples"]);
            silent |= samples.is_empty();
            found |= !samples.is_empty();
        }
        let name = format!("{}{}", rule.record, rule.alert);
        ensure!(found, "no test in which {name} gives something");
        ensure!(silent, "no test in which {name} gives nothing");
    }
    Ok(())
}

pub(crate) fn metrics() -> Result<BTreeSet<String>> {
    let mut known: BTreeSet<String> = labels().into_keys().map(str::to_owned).collect();
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

pub(crate) fn labels() -> BTreeMap<&'static str, &'static [&'static str]> {
    let of_exporter = families::all().map(|family| (family.name, family.labels));
    let own = own::families().map(|family| (family.name, family.labels));
    let of_enforcer = genv_enforcer::metrics::FAMILIES.iter();
    let of_enforcer = of_enforcer.map(|family| (family.name, family.labels));
    of_exporter.chain(own).chain(of_enforcer).collect()
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
        let series = list(&case["input_series"]).iter().map(|input| &input["series"]);
        for promql in series.chain(list(&case["promql_expr_test"]).iter().map(|test| &test["expr"])) {
            check("a test", text(promql))?;
        }
    }
    ensure!(named > 200, "only {named} names were found");
    Ok(())
}
