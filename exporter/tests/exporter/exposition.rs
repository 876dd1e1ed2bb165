//! A strict parser of Prometheus' text format 0.0.4: it refuses extensions that only some parsers accept.

use std::collections::{BTreeMap, BTreeSet};

/// Label names and values.
pub(crate) type Labels = BTreeMap<String, String>;

/// One family as it was read.
#[derive(Debug)]
pub(crate) struct ParsedFamily {
    pub(crate) name: String,
    /// The endings of the names of its samples.
    suffixes: &'static [&'static str],
    pub(crate) samples: Vec<(Labels, f64)>,
}

/// All families of a text, or its mistake.
pub(crate) fn parse(text: &str) -> Result<Vec<ParsedFamily>, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let mut families: Vec<ParsedFamily> = Vec::new();
    let mut names = BTreeSet::new();
    let mut help = None;
    for line in text.split_terminator('\n') {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, words)) = rest.split_once(' ') else {
                return wrong("help without words");
            };
            if words.trim().is_empty() || help.is_some() {
                return wrong("help that is empty, or has no type");
            }
            help = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else {
                return wrong("type without words");
            };
            if help.take().as_deref() != Some(name) || !names.insert(name.to_owned()) {
                return wrong("family without help, or seen before");
            }
            let suffixes: &[&str] = match kind {
                "gauge" | "counter" if is_metric_name(name) => &[""],
                "histogram" if is_metric_name(name) => &["_bucket", "_sum", "_count"],
                _ => return wrong("bad name or type"),
            };
            families.push(ParsedFamily { name: name.to_owned(), suffixes, samples: Vec::new() });
        } else {
            let Some(family) = families.last_mut().filter(|_| help.is_none()) else {
                return wrong("sample outside its family");
            };
            let Some(rest) = line.strip_prefix(family.name.as_str()) else {
                return wrong("sample of another family");
            };
            let suffix = family.suffixes.iter().find_map(|suffix| Some((*suffix, rest.strip_prefix(suffix)?)));
            let Some((suffix, rest)) = suffix else {
                return wrong("sample of another family");
            };
            let (mut labels, value) = labels(rest).map_err(|what| format!("{what}: {line}"))?;
            if !suffix.is_empty() {
                labels.insert("__name__".to_owned(), format!("{}{suffix}", family.name));
            }
            let value = value.strip_prefix(' ').and_then(|value| value.parse::<f64>().ok());
            let Some(value) = value.filter(|value| value.is_finite()) else {
                return wrong("bad value");
            };
            if family.samples.iter().any(|(known, _)| *known == labels) {
                return wrong("series seen before");
            }
            family.samples.push((labels, value));
        }
    }
    Ok(families)
}

/// Labels in braces, if any, and what follows them.
fn labels(text: &str) -> Result<(Labels, &str), &'static str> {
    let mut labels = Labels::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return Ok((labels, text));
    };
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("label without value")?;
        if !is_metric_name(name) || name.contains(':') || name.starts_with("__") {
            return Err("bad label name");
        }
        let mut value = String::new();
        let mut characters = after.chars();
        loop {
            match characters.next().ok_or("label value without end")? {
                '"' => break,
                '\\' => value.push(match characters.next() {
                    Some('\\') => '\\',
                    Some('"') => '"',
                    Some('n') => '\n',
                    _ => return Err("bad escape"),
                }),
                c if c.is_control() => return Err("control character"),
                c => value.push(c),
            }
        }
        if labels.insert(name.to_owned(), value).is_some() {
            return Err("label twice");
        }
        rest = characters.as_str();
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        rest = rest.strip_prefix(',').ok_or("labels not separated")?;
    }
}

fn is_metric_name(name: &str) -> bool {
    let mut characters = name.chars();
    let first = characters.next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || "_:".contains(c))
        && characters.all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}
