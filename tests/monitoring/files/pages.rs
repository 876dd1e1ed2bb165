//! What pages show of Prometheus' own formats: queries can be asked, and configurations are accepted.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, ensure};
use genv_tests::documentation::{Block, Page};
use promql_parser::label::Labels;
use promql_parser::parser::{self, Expr, LabelModifier};

use crate::dashboards::promql;
use crate::files::complete::{labels, metrics, names};
use crate::files::tools::accepts_configuration;

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

/// Whether each label of an expression exists. A family has its own; what rules record may have any.
fn labels_exist(expression: &Expr) -> Result<()> {
    let of = labels();
    let any: BTreeSet<&str> = of.values().copied().flatten().chain(&OF_ALL).copied().collect();
    for selector in promql::selectors(expression) {
        let name = selector.metric();
        for matcher in &selector.vector.matchers.matchers {
            let label = &*matcher.name;
            let has = |labels: &&[&str]| labels.contains(&label) || OF_ALL.contains(&label);
            ensure!(of.get(&*name).map_or(any.contains(label), has), "{name} has no label {label}");
        }
    }
    let mut grouped: Vec<&Labels> = Vec::new();
    promql::visit(expression, None, &mut |part, _| match part {
        Expr::Aggregate(aggregate) => grouped.extend(aggregate.modifier.as_ref().map(LabelModifier::labels)),
        Expr::Binary(binary) => {
            let modifier = binary.modifier.as_ref();
            grouped.extend(modifier.and_then(|modifier| modifier.matching.as_ref()).map(LabelModifier::labels));
            grouped.extend(modifier.and_then(|modifier| modifier.card.labels()));
        }
        _ => {}
    });
    for label in grouped.iter().flat_map(|named| &named.labels) {
        ensure!(any.contains(&**label), "no metric has a label {label}");
    }
    Ok(())
}

#[test]
fn every_query_of_a_page_is_promql_about_metrics_that_exist() -> Result<()> {
    let (known, mut asked) = (metrics()?, 0);
    for (at, block) in blocks("promql")? {
        for query in queries(&block.text) {
            let parsed = parser::parse(&query);
            let parsed = parsed.map_err(|error| anyhow!("{at}: {query}: {error}"))?;
            labels_exist(&parsed).with_context(|| format!("{at}: {query}"))?;
            let names = names(&query);
            for name in &names {
                ensure!(known.contains(*name), "{at}: {query}: there is no {name}");
            }
            ensure!(!names.is_empty() || query.contains(OF_PROMETHEUS), "{at}: {query}: it is about no metric");
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
        let is_of_prometheus =
            |line: &str| ["scrape_configs:", "remote_write:"].iter().any(|key| line.starts_with(key));
        if block.text.lines().any(is_of_prometheus) {
            std::fs::write(&file, &block.text)?;
            accepts_configuration(&file).context(at)?;
            shown += 1;
        }
    }
    ensure!(shown >= 3, "only {shown} configurations");
    Ok(())
}
