//! The text format of Prometheus, read back.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

pub type Labels = BTreeMap<String, String>;

#[derive(Clone, Debug, Default)]
pub struct Scrape {
    pub samples: BTreeMap<(String, Labels), f64>,
    /// Families by the name on their `# TYPE` line, with the type.
    pub types: BTreeMap<String, String>,
}

impl Scrape {
    pub fn parse(text: &str) -> Result<Self> {
        let mut scrape = Self::default();
        let mut ended = BTreeSet::new();
        let (mut current, mut histogram) = (String::new(), None);
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').context("a TYPE without a type")?;
                let twice = scrape.types.insert(name.to_owned(), kind.to_owned());
                ensure!(twice.is_none(), "two TYPE lines for {name}");
                histogram = (kind == "histogram").then_some(name);
            } else if !line.starts_with('#') && !line.is_empty() {
                let (name, labels, value) = sample(line).with_context(|| format!("the line {line:?}"))?;
                let is_of = |family: &&str| {
                    let suffix = name.strip_prefix(family);
                    suffix.is_some_and(|it| ["_bucket", "_sum", "_count"].contains(&it))
                };
                let family = histogram.filter(is_of).unwrap_or(&name);
                if family != current {
                    ended.insert(std::mem::replace(&mut current, family.to_owned()));
                    ensure!(!ended.contains(family), "{family} stands in two places");
                }
                let twice = scrape.samples.insert((name, labels), value);
                ensure!(twice.is_none(), "a series twice: {line}");
            }
        }
        Ok(scrape)
    }

    /// The value of the one series with this name that has all of these labels (and maybe more).
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let found = self.all(name, labels);
        match found.as_slice() {
            [(_, value)] => Ok(*value),
            [] => bail!("no series {name} with {labels:?}"),
            _ => bail!("{} series {name} with {labels:?}", found.len()),
        }
    }

    /// Every series with this name that has all of these labels (and maybe more).
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<(&Labels, f64)> {
        let has = |of: &Labels| {
            let mut wanted = labels.iter();
            wanted.all(|(key, value)| of.get(*key).map(String::as_str) == Some(*value))
        };
        self.samples
            .iter()
            .filter(|((of, with), _)| of == name && has(with))
            .map(|((_, with), value)| (with, *value))
            .collect()
    }

    pub fn mentions(&self, label: &str, value: &str) -> bool {
        let mut series = self.samples.keys();
        series.any(|(_, labels)| labels.get(label).map(String::as_str) == Some(value))
    }
}

fn sample(line: &str) -> Result<(String, Labels, f64)> {
    let (name, labels, rest) = beginning(line)?;
    let value = rest.trim();
    ensure!(!value.contains(' '), "has a timestamp");
    let value = value.replace("+Inf", "inf").replace("-Inf", "-inf");
    Ok((name, labels, value.parse()?))
}

/// Reads a name and labels, as a line begins with.
pub fn series(text: &str) -> Result<(String, Labels)> {
    let (name, labels, rest) = beginning(text)?;
    ensure!(rest.is_empty(), "{rest:?} is after the series");
    Ok((name, labels))
}

/// Reads a name and labels; the rest of the line comes back.
fn beginning(line: &str) -> Result<(String, Labels, &str)> {
    let name_end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    Ok((name.to_owned(), labels, rest))
}

fn labels(mut rest: &str) -> Result<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.strip_prefix(',').unwrap_or(rest);
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"").context("has no label value")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next().context("has an open quote")? {
                (at, '"') => break at,
                (_, '\\') => match letters.next().context("ends in a backslash")?.1 {
                    'n' => value.push('\n'),
                    letter => value.push(letter),
                },
                (_, letter) => value.push(letter),
            }
        };
        let twice = labels.insert(name.to_owned(), value);
        ensure!(twice.is_none(), "has the label {name} twice");
        rest = &quoted[end + 1..];
    }
}
