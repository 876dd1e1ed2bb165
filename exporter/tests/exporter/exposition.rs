//! A strict parser of Prometheus' text format 0.0.4: it refuses extensions that only some parsers accept.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Labels = BTreeMap<String, String>;

#[derive(Debug)]
pub(crate) struct ParsedFamily {
    pub(crate) name: String,
    suffixes: &'static [&'static str],
    pub(crate) samples: Vec<(Labels, f64)>,
}

/// All families of a text without a mistake.
pub(crate) fn parse(text: &str) -> Vec<ParsedFamily> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line does not end");
    let mut families: Vec<ParsedFamily> = Vec::new();
    let mut names = BTreeSet::new();
    let mut help = None;
    for line in text.split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').expect(line);
            assert!(!words.trim().is_empty() && help.is_none(), "help that is empty, or has no type: {line}");
            help = Some(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert!(help.take() == Some(name) && names.insert(name), "family without help, or seen before: {line}");
            let suffixes: &[&str] = match kind {
                "gauge" | "counter" if is_metric_name(name) => &[""],
                "histogram" if is_metric_name(name) => &["_bucket", "_sum", "_count"],
                _ => panic!("bad name or type: {line}"),
            };
            families.push(ParsedFamily { name: name.to_owned(), suffixes, samples: Vec::new() });
        } else {
            let family = families.last_mut().filter(|_| help.is_none()).expect(line);
            let rest = line.strip_prefix(family.name.as_str()).expect(line);
            let suffix = family.suffixes.iter().find_map(|suffix| Some((*suffix, rest.strip_prefix(suffix)?)));
            let (suffix, rest) = suffix.expect(line);
            let (mut labels, value) = labels(rest);
            if !suffix.is_empty() {
                labels.insert("__name__".to_owned(), format!("{}{suffix}", family.name));
            }
            let value: f64 = value.strip_prefix(' ').and_then(|value| value.parse().ok()).expect(line);
            assert!(value.is_finite(), "bad value: {line}");
            assert!(family.samples.iter().all(|(known, _)| *known != labels), "series seen before: {line}");
            family.samples.push((labels, value));
        }
    }
    families
}

fn labels(text: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return (labels, text);
    };
    loop {
        let (name, after) = rest.split_once("=\"").expect(text);
        assert!(is_metric_name(name) && !name.contains(':') && !name.starts_with("__"), "bad label name: {text}");
        let mut value = String::new();
        let mut characters = after.chars();
        loop {
            match characters.next().expect(text) {
                '"' => break,
                '\\' => value.push(match characters.next() {
                    Some(c @ ('\\' | '"')) => c,
                    Some('n') => '\n',
                    _ => panic!("bad escape: {text}"),
                }),
                c if c.is_control() => panic!("control character: {text}"),
                c => value.push(c),
            }
        }
        assert!(labels.insert(name.to_owned(), value).is_none(), "label twice: {text}");
        rest = characters.as_str();
        if let Some(after) = rest.strip_prefix('}') {
            return (labels, after);
        }
        rest = rest.strip_prefix(',').expect(text);
    }
}

fn is_metric_name(name: &str) -> bool {
    let mut characters = name.chars();
    let first = characters.next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || "_:".contains(c))
        && characters.all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
}
