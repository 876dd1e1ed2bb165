//! Samples of one family: label values made fit for the text format, no label set twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::{Display, Write as _};
use std::mem::take;
use std::ops::Range;

use super::Kind;

/// Characters of a label value; what users can name (environments, commands) is theirs to choose,
/// and a long name costs every scrape and every query.
const LABEL_LENGTH: usize = 128;

/// Up to here every whole number is one `f64`.
const LARGEST_WHOLE: u64 = 1 << f64::MANTISSA_DIGITS;

/// After each label value; cannot be in one, which has no control characters.
const SEPARATOR: char = '\0';

/// The samples of a family while they are collected. There may be a million of them: none allocates anything of its own.
pub struct Samples {
    kind: Kind,
    labels: &'static [&'static str],
    /// Values of the label `hostname` and of the others, each with its end.
    hostname: String,
    texts: String,
    /// Where the label values of each are in `texts`.
    values: Vec<(Range<usize>, f64)>,
}

/// A family with its samples, no label set twice.
#[derive(Debug)]
pub struct MetricFamily {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    labels: Vec<&'static str>,
    texts: String,
    values: Vec<(Range<usize>, f64)>,
}

impl Samples {
    /// No samples yet; `labels` are the names besides `hostname`.
    pub fn new(kind: Kind, labels: &'static [&'static str]) -> Self {
        Self {
            kind,
            labels,
            hostname: String::new(),
            texts: String::new(),
            values: Vec::new(),
        }
    }

    /// Gives the label `hostname` to every sample that follows; either all have it, or none.
    pub fn of_host(&mut self, hostname: &str) {
        assert!(
            !self.hostname.is_empty() || self.values.is_empty(),
            "one label set for a family"
        );
        self.hostname = hostname.to_owned();
        make_printable(&mut self.hostname);
        self.hostname.push(SEPARATOR);
    }

    /// Adds a sample, unless there is no value or it is not a number. `labels` are the values of the
    /// family's labels, in order.
    pub fn add(&mut self, labels: &[&dyn Display], value: impl Into<Option<f64>>) {
        let Some(value) = value.into().filter(|value| value.is_finite()) else {
            return;
        };
        assert_eq!(labels.len(), self.labels.len(), "one value for each label");
        let begin = self.texts.len();
        self.texts.push_str(&self.hostname);
        for label in labels {
            let begin = self.texts.len();
            // Writing to a string does not fail.
            let _ = write!(self.texts, "{label}");
            if !is_plain(&self.texts.as_bytes()[begin..]) {
                let mut value = self.texts.split_off(begin);
                make_label_value(&mut value);
                self.texts.push_str(&value);
            }
            self.texts.push(SEPARATOR);
        }
        self.values.push((begin..self.texts.len(), value));
    }

    /// The family, if it has a sample.
    pub fn into_family(mut self, name: &'static str, help: &'static str) -> Option<MetricFamily> {
        if self.values.is_empty() {
            return None;
        }
        let mut positions = HashMap::with_capacity_and_hasher(
            self.values.len(),
            foldhash::fast::RandomState::default(),
        );
        let mut values: Vec<(Range<usize>, f64)> = Vec::with_capacity(self.values.len());
        for (range, value) in take(&mut self.values) {
            match positions.entry(&self.texts[range.clone()]) {
                Entry::Vacant(entry) => {
                    entry.insert(values.len());
                    values.push((range, value));
                }
                Entry::Occupied(entry) => {
                    let known = &mut values[*entry.get()].1;
                    *known = match self.kind {
                        Kind::Gauge | Kind::Counter => *known + value,
                        Kind::Largest => known.max(value),
                    };
                }
            }
        }
        let hostname = (!self.hostname.is_empty()).then_some("hostname");
        let labels = hostname.into_iter().chain(self.labels.iter().copied());
        Some(MetricFamily {
            name,
            help,
            kind: self.kind,
            labels: labels.collect(),
            texts: self.texts,
            values,
        })
    }
}

impl MetricFamily {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Gauge or counter.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Its samples: label names with their values, and the value.
    pub fn samples(
        &self,
    ) -> impl Iterator<Item = (impl Iterator<Item = (&'static str, &str)>, f64)> {
        self.values.iter().map(|(range, value)| {
            let values = self.texts[range.clone()].split_terminator(SEPARATOR);
            (self.labels.iter().copied().zip(values), *value)
        })
    }

    /// Adds it to a text in Prometheus' text format 0.0.4.
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
    pub(super) fn append_to(&self, text: &mut String) {
        let Self { name, help, .. } = self;
        let kind = self.kind.word();
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for (labels, value) in self.samples() {
            text.push_str(name);
            let mut before = '{';
            for (label, value) in labels {
                text.push(before);
                text.push_str(label);
                text.push_str("=\"");
                push_escaped(text, value);
                text.push('"');
                before = ',';
            }
            if before == ',' {
                text.push('}');
            }
            text.push(' ');
            push_value(text, value);
            text.push('\n');
        }
    }
}

/// Adds a value as `f64` is displayed; whole numbers, which most are, in a shorter way.
fn push_value(text: &mut String, value: f64) {
    let whole = value as i64;
    // Writing to a string does not fail.
    let _ = match whole as f64 == value && whole.unsigned_abs() <= LARGEST_WHOLE && whole != 0 {
        true => write!(text, "{whole}"),
        false => write!(text, "{value}"),
    };
}

fn push_escaped(text: &mut String, value: &str) {
    let is_escaped = |byte: u8| matches!(byte, b'\\' | b'"' | b'\n');
    if !any(value.as_bytes(), is_escaped) {
        text.push_str(value);
        return;
    }
    for character in value.chars() {
        match character {
            '\\' => text.push_str(r"\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str(r"\n"),
            other => text.push(other),
        }
    }
}

/// Whether some byte is so: without an early end, so that many are looked at in one step.
fn any(bytes: &[u8], is_so: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(false, |any, byte| any | is_so(*byte))
}

/// Whether a text is a label value as it stands, as nearly all are: short, and printable ASCII.
fn is_plain(text: &[u8]) -> bool {
    text.len() <= LABEL_LENGTH && !any(text, |byte| !(b' '..=b'~').contains(&byte))
}

/// Makes of a text a label value that every reader takes, no longer than [`LABEL_LENGTH`].
fn make_label_value(text: &mut String) {
    make_printable(text);
    if text.len() > LABEL_LENGTH && text.chars().nth(LABEL_LENGTH).is_some() {
        *text = text.chars().take(LABEL_LENGTH - 1).chain(['…']).collect();
    }
}

/// Replaces control characters; the text format escapes line feeds.
fn make_printable(text: &mut String) {
    let bad = |c: char| c.is_control() && c != '\n';
    if text.contains(bad) {
        *text = text.replace(bad, "\u{fffd}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(samples: Samples) -> Vec<f64> {
        let family = samples.into_family("x", "x").unwrap();
        family.samples().map(|(_, value)| value).collect()
    }

    #[test]
    fn two_samples_with_the_same_labels_become_one() {
        let mut sum = Samples::new(Kind::Gauge, &["a", "b"]);
        sum.add(&[&"x", &1], 2.0);
        sum.add(&[&"x", &1], 3.0);
        sum.add(&[&"x", &2], 4.0);
        assert_eq!(values(sum), [5.0, 4.0]);
        let mut largest = Samples::new(Kind::Largest, &["a"]);
        largest.add(&[&"x"], 2.0);
        largest.add(&[&"x"], 1.0);
        assert_eq!(values(largest), [2.0]);
    }

    #[test]
    fn labels_that_only_differ_in_where_they_are_split_stay_apart() {
        let mut samples = Samples::new(Kind::Gauge, &["a", "b"]);
        samples.add(&[&"x\0y", &"z"], 1.0);
        samples.add(&[&"x", &"y\0z"], 2.0);
        assert_eq!(values(samples), [1.0, 2.0]);
    }

    #[test]
    fn the_same_labels_on_two_hosts_are_two_series() {
        let mut samples = Samples::new(Kind::Gauge, &[]);
        samples.of_host("a");
        samples.add(&[], 1.0);
        samples.of_host("b");
        samples.add(&[], 2.0);
        assert_eq!(values(samples), [1.0, 2.0]);
    }

    #[test]
    fn what_is_absent_or_not_a_number_is_no_sample() {
        let mut samples = Samples::new(Kind::Gauge, &[]);
        samples.add(&[], None);
        samples.add(&[], f64::NAN);
        samples.add(&[], f64::INFINITY);
        assert!(samples.into_family("x", "x").is_none());
    }

    #[test]
    fn values_are_written_as_they_are_displayed() {
        let whole = [0.0, 1.0, -7.0, 1e15, (1_u64 << 53) as f64, 1e16, 1e300];
        for value in whole.into_iter().chain([-0.0, 0.1, -2.5, 1e-7, 5e-324]) {
            let mut text = String::new();
            push_value(&mut text, value);
            assert_eq!(text, value.to_string());
        }
    }

    #[test]
    fn label_values_are_printable_and_of_bounded_length() {
        let (long, longer) = ("x".repeat(128), "é".repeat(129));
        let cut = format!("{}…", "é".repeat(127));
        for (given, expected) in [
            ("plain ~", "plain ~"),
            ("a\tb\x7f", "a\u{fffd}b\u{fffd}"),
            ("ü\nz", "ü\nz"),
            (&long, &long),
            (&"é".repeat(128), &"é".repeat(128)),
            (&longer, &cut),
        ] {
            let mut samples = Samples::new(Kind::Gauge, &["a", "b"]);
            samples.add(&[&given, &"after"], 1.0);
            let family = samples.into_family("x", "x").unwrap();
            let (labels, _) = family.samples().next().unwrap();
            assert_eq!(
                labels.collect::<Vec<_>>(),
                [("a", expected), ("b", "after")]
            );
        }
    }

    #[test]
    fn a_family_is_written_with_all_escapes() {
        let mut samples = Samples::new(Kind::Counter, &["a", "b"]);
        samples.of_host("h");
        samples.add(&[&"x\\\"\n", &""], 1.5);
        samples.add(&[&"é", &2], 1e21);
        let mut text = String::new();
        let family = samples.into_family("x_total", "Line\nand \\.").unwrap();
        family.append_to(&mut text);
        assert_eq!(
            text,
            "# HELP x_total Line\\nand \\\\.\n# TYPE x_total counter\n\
             x_total{hostname=\"h\",a=\"x\\\\\\\"\\n\",b=\"\"} 1.5\n\
             x_total{hostname=\"h\",a=\"é\",b=\"2\"} 1000000000000000000000\n"
        );
        let mut bare = Samples::new(Kind::Largest, &[]);
        bare.add(&[], 1.0);
        let mut text = String::new();
        bare.into_family("x", "y").unwrap().append_to(&mut text);
        assert_eq!(text, "# HELP x y\n# TYPE x gauge\nx 1\n");
    }

    #[test]
    fn hostile_label_values_are_made_harmless() {
        let label_value = |text: &dyn Display| {
            let mut value = text.to_string();
            make_label_value(&mut value);
            value
        };
        assert_eq!(label_value(&"plain"), "plain");
        assert_eq!(
            label_value(&"a\0b\u{1b}[31m\r\nc"),
            "a\u{fffd}b\u{fffd}[31m\u{fffd}\nc"
        );
        assert_eq!(label_value(&"é".repeat(128)), "é".repeat(128));
        assert_eq!(
            label_value(&"é".repeat(129)),
            format!("{}…", "é".repeat(127))
        );
    }
}
