//! Samples of one family: label values made fit for the text format, no label set twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily};

use super::Kind;

/// Characters of a label value; what users can name (environments, commands) is theirs to choose,
/// and a long name costs every scrape and every query.
const LABEL_LENGTH: usize = 128;

/// Between the label values of a key; cannot be in a value, which has no control characters.
const SEPARATOR: char = '\0';

/// The samples of a family while they are collected.
pub struct Samples {
    kind: Kind,
    labels: &'static [&'static str],
    hostname: Option<LabelPair>,
    values: Vec<(Vec<LabelPair>, f64)>,
    positions: HashMap<String, usize>,
}

impl Samples {
    /// No samples yet; `labels` are the names besides `hostname`.
    pub fn new(kind: Kind, labels: &'static [&'static str]) -> Self {
        Self {
            kind,
            labels,
            hostname: None,
            values: Vec::new(),
            positions: HashMap::new(),
        }
    }

    /// Gives the label `hostname` to every sample that follows.
    pub fn of_host(&mut self, hostname: &str) {
        self.hostname = Some(pair("hostname", printable(hostname.to_owned())));
    }

    /// Adds a sample, unless there is no value or it is not a number. `labels` are the values of the
    /// family's labels, in order.
    pub fn add(&mut self, labels: &[&dyn Display], value: impl Into<Option<f64>>) {
        let Some(value) = value.into().filter(|value| value.is_finite()) else {
            return;
        };
        assert_eq!(labels.len(), self.labels.len(), "one value for each label");
        let names = self.labels.iter().copied();
        let named = names
            .zip(labels)
            .map(|(name, value)| pair(name, label_value(*value)));
        let pairs: Vec<_> = self.hostname.iter().cloned().chain(named).collect();
        let mut key = String::new();
        for pair in &pairs {
            key.push_str(pair.value());
            key.push(SEPARATOR);
        }
        match self.positions.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(self.values.len());
                self.values.push((pairs, value));
            }
            Entry::Occupied(entry) => {
                let known = &mut self.values[*entry.get()].1;
                *known = match self.kind {
                    Kind::Gauge | Kind::Counter => *known + value,
                    Kind::Largest => known.max(value),
                };
            }
        }
    }

    /// The family, if it has a sample.
    pub fn into_family(self, name: &str, help: &str) -> Option<MetricFamily> {
        if self.values.is_empty() {
            return None;
        }
        let metrics = self.values.into_iter().map(|(labels, value)| {
            let mut metric = Metric::from_label(labels);
            match self.kind {
                Kind::Gauge | Kind::Largest => {
                    let mut gauge = Gauge::default();
                    gauge.set_value(value);
                    metric.set_gauge(gauge);
                }
                Kind::Counter => {
                    let mut counter = Counter::default();
                    counter.set_value(value);
                    metric.set_counter(counter);
                }
            }
            metric
        });
        let mut family = MetricFamily::default();
        family.set_metric(metrics.collect());
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(self.kind.metric_type());
        Some(family)
    }
}

fn pair(name: &str, value: String) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value);
    pair
}

/// A label value that every reader takes, no longer than [`LABEL_LENGTH`].
fn label_value(value: &dyn Display) -> String {
    let mut text = printable(value.to_string());
    if text.chars().nth(LABEL_LENGTH).is_some() {
        text = text.chars().take(LABEL_LENGTH - 1).chain(['…']).collect();
    }
    text
}

/// The text with its control characters replaced; the text format escapes line feeds.
fn printable(text: String) -> String {
    let bad = |c: char| c.is_control() && c != '\n';
    if text.contains(bad) {
        text.replace(bad, "\u{fffd}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(samples: Samples) -> Vec<f64> {
        let family = samples.into_family("x", "x").unwrap();
        let metrics = family.get_metric().iter();
        metrics
            .map(|metric| metric.get_gauge().get_value())
            .collect()
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
    fn hostile_label_values_are_made_harmless() {
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
