//! What pages show of Prometheus' own formats: queries can be asked, and configurations are accepted.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use genv_tests::documentation::{Block, Page};
use regex::Regex;

use crate::complete::{labels, metrics, names};
use crate::tools::accepts_configuration;

/// Where metrics of Prometheus itself begin.
const OF_PROMETHEUS: &str = "prometheus_";

/// The blocks of all pages that are of this language, each with where it stands.
fn blocks(language: &str) -> Result<Vec<(String, Block)>> {
    let mut found = Vec::new();
    for page in Page::all()? {
        for block in page.blocks() {
            if block.info == language {
                found.push((format!("{}:{}", page.name, block.line), block));
            }
        }
    }
    Ok(found)
}

/// The queries of a block: each is a line, with those below it that are indented. A line that begins with `#` is none.
fn queries(text: &str) -> Vec<String> {
    let mut queries: Vec<String> = Vec::new();
    let said = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
    for line in text.lines().filter(said) {
        match queries.last_mut() {
            Some(query) if line.starts_with(' ') => *query += &format!("\n{line}"),
            _ => queries.push(line.to_owned()),
        }
    }
    queries
}

/// Labels that a series may have besides those of its family.
const OF_ALL: [&str; 3] = ["hostname", "job", "instance"];

/// A label of a query that its metric does not have, or, where series are grouped and of what rules record, no metric.
fn unknown_label(query: &str) -> Result<Option<String>> {
    let known = labels();
    let any: BTreeSet<&str> = known
        .values()
        .copied()
        .flatten()
        .copied()
        .chain(OF_ALL)
        .collect();
    let selector = Regex::new(r"([\w:]+)\{([^}]*)\}")?;
    let matcher = Regex::new(r#"(\w+)\s*(?:=~|!~|!=|=)\s*""#)?;
    for found in selector.captures_iter(query) {
        let of_family = known.get(&found[1]);
        for label in matcher.captures_iter(&found[2]) {
            let label = &label[1];
            let has = of_family.map_or_else(
                || any.contains(label),
                |labels| labels.contains(&label) || OF_ALL.contains(&label),
            );
            if !has {
                return Ok(Some(format!("{} has no label {label}", &found[1])));
            }
        }
    }
    let group = Regex::new(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")?;
    let mut named = group.captures_iter(query).flat_map(|found| {
        let labels = found.extract::<1>().1[0].split(',');
        labels.map(str::trim).filter(|label| !label.is_empty())
    });
    let unknown = named.find(|label| !any.contains(label));
    Ok(unknown.map(|label| format!("no metric has a label {label}")))
}

#[test]
fn every_query_of_a_page_is_promql_about_metrics_that_exist() -> Result<()> {
    let known = metrics()?;
    let mut asked = 0;
    for (at, block) in blocks("promql")? {
        for query in queries(&block.text) {
            let parsed = promql_parser::parser::parse(&query);
            parsed.map_err(|error| anyhow!("{at}: {query}: {error}"))?;
            let names = names(&query);
            for name in &names {
                ensure!(known.contains(*name), "{at}: {query}: there is no {name}");
            }
            ensure!(
                !names.is_empty() || query.contains(OF_PROMETHEUS),
                "{at}: {query}: it is about no metric"
            );
            if let Some(fault) = unknown_label(&query)? {
                bail!("{at}: {query}: {fault}");
            }
            asked += 1;
        }
    }
    ensure!(asked > 30, "only {asked} queries");
    Ok(())
}

#[test]
fn promtool_accepts_every_part_of_its_configuration_that_a_page_shows() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("prometheus.yml");
    let mut shown = 0;
    for (at, block) in blocks("yaml")? {
        let is_of_prometheus = |line: &str| {
            ["scrape_configs:", "remote_write:"]
                .iter()
                .any(|key| line.starts_with(key))
        };
        if block.text.lines().any(is_of_prometheus) {
            std::fs::write(&file, &block.text)?;
            accepts_configuration(&file).context(at)?;
            shown += 1;
        }
    }
    ensure!(shown >= 3, "only {shown} configurations");
    Ok(())
}
