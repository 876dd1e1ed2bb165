//! Samples of families in Prometheus' text format, without duplicate label sets.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::ops::{Range, RangeInclusive};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::label::{LabelValue, push_printable};
use super::label_rows::LabelRow;
use super::{Family, Kind};

/// Up to this number `f64` represents every whole number exactly.
const LARGEST_WHOLE: u64 = 1 << f64::MANTISSA_DIGITS;

/// A piece of a family is passed on from this length: long enough that a compressor works on it undisturbed.
const PIECE_BYTES: usize = 64 << 10;

/// Fractions in this range have the same shortest digits in every implementation, without an exponent.
const WITHOUT_EXPONENT: RangeInclusive<f64> = 1e-4..=1e15;

/// Collects the samples of one family after the other, in the same memory. There may be many thousands, so none has an
/// allocation of its own.
#[derive(Debug)]
pub struct Samples {
    kind: Kind,
    name: &'static str,
    labels: &'static [&'static str],
    /// The text before the value of each label that is not the first, such as `",index="`.
    separators: Vec<String>,
    /// The begin of each line: the name, the label `hostname` if there is one, and the text before the value of the first
    /// label.
    line_prefix: String,
    has_hostname: bool,
    /// Whether only what the samples are made of is collected, for [`Self::fingerprint`].
    for_fingerprint: bool,
    family: MetricFamily,
    /// Positions of the lines by their series, for [`Self::merge`].
    series: HashTable<usize>,
    hasher: RandomState,
}

/// A family with its samples, or a piece of it, without duplicate label sets.
#[derive(Clone, Debug, Default)]
pub struct MetricFamily {
    /// In Prometheus' text format 0.0.4.
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
    text: String,
    lines: Vec<SampleLine>,
}

/// A line of the text: one sample.
#[derive(Clone, Debug)]
struct SampleLine {
    /// The range of its name and labels in the text.
    series: Range<usize>,
    value: f64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            kind: Kind::Gauge,
            name: "",
            labels: &[],
            separators: Vec::new(),
            line_prefix: String::new(),
            has_hostname: false,
            for_fingerprint: false,
            family: MetricFamily::default(),
            series: HashTable::new(),
            hasher: RandomState::default(),
        }
    }
}

impl Samples {
    /// The family with the samples that `add` adds, in the memory of the previous family.
    pub fn of<S>(&mut self, family: &Family<S>, add: impl FnOnce(&mut Self)) -> &MetricFamily {
        self.begin(family);
        self.write_header(family);
        self.add_merged(add);
        &self.family
    }

    /// Passes the samples that `add` adds for each host to `piece`, those of some hosts at a time: those of all hosts together
    /// may take a hundred megabytes. The first piece begins with name, help and type of the family; without a sample there is
    /// none. Samples are merged within a host, so that each must have a name of its own.
    pub fn of_each<S, H>(
        &mut self,
        family: &Family<S>,
        hosts: &[H],
        mut add: impl FnMut(&H, &mut Self),
        mut piece: impl FnMut(&MetricFamily),
    ) {
        self.begin(family);
        self.write_header(family);
        for host in hosts {
            self.add_merged(|samples| add(host, samples));
            if self.family.text.len() >= PIECE_BYTES {
                piece(&self.family);
                self.family.text.clear();
                self.family.lines.clear();
            }
        }
        if !self.family.is_empty() {
            piece(&self.family);
        }
    }

    /// The text of the samples that `add` adds for all of these hosts; empty without a sample. Name, help and type come
    /// first if `with_header`.
    pub(super) fn text<S, H>(
        &mut self,
        family: &Family<S>,
        hosts: &[H],
        with_header: bool,
        mut add: impl FnMut(&H, &mut Self),
    ) -> &str {
        self.begin(family);
        if with_header {
            self.write_header(family);
        }
        for host in hosts {
            self.add_merged(|samples| add(host, samples));
        }
        if self.family.is_empty() { "" } else { &self.family.text }
    }

    /// A hash of what [`Self::text`] makes of the same family and hosts, in a fraction of the time: it is of labels and values,
    /// and no line is written. Nobody sees the random seed of `hasher`, so that no text can be chosen to share the hash of
    /// another. If one ever did, the page would show its earlier values until they change again.
    pub(super) fn fingerprint<S, H>(
        &mut self,
        hasher: &RandomState,
        family: &Family<S>,
        hosts: &[H],
        mut add: impl FnMut(&H, &mut Self),
    ) -> u64 {
        self.begin(family);
        self.for_fingerprint = true;
        for host in hosts {
            add(host, self);
        }
        let MetricFamily { text, lines } = &self.family;
        let mut hasher = hasher.build_hasher();
        text.hash(&mut hasher);
        lines.iter().for_each(|line| hasher.write_u64(line.value.to_bits()));
        hasher.finish()
    }

    /// Adds samples, and merges those of them with the same labels.
    fn add_merged(&mut self, add: impl FnOnce(&mut Self)) {
        let first = self.family.lines.len();
        add(self);
        self.merge(first);
    }

    fn begin<S>(&mut self, family: &Family<S>) {
        let name = family.name;
        self.kind = family.kind;
        self.name = name;
        self.labels = family.labels;
        let separators = |label| format!("\",{label}=\"");
        self.separators.clear();
        self.separators.extend(family.labels.iter().map(separators));
        self.has_hostname = false;
        self.for_fingerprint = false;
        self.line_prefix.clear();
        self.line_prefix.push_str(name);
        if let Some(first) = family.labels.first() {
            self.line_prefix.extend(["{", first, "=\""]);
        }
        self.family.lines.clear();
        self.family.text.clear();
    }

    /// Writes name, help and type.
    fn write_header<S>(&mut self, Family { name, kind, help, .. }: &Family<S>) {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        let kind = kind.word();
        // Writing to a string does not fail.
        let _ = write!(self.family.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds the label `hostname` to all following samples. Either all samples of a family have it, or none.
    pub fn of_host(&mut self, hostname: &str) {
        assert!(self.has_hostname || self.family.lines.is_empty(), "one label set for a family");
        self.has_hostname = true;
        if self.for_fingerprint {
            push_printable(&mut self.family.text, hostname);
            // Ends the name: neither a label nor the end of a sample contains it.
            self.family.text.push('\r');
            return;
        }
        self.line_prefix.clear();
        self.line_prefix.push_str(self.name);
        self.line_prefix.push_str("{hostname=\"");
        push_printable(&mut self.line_prefix, hostname);
        if let Some(before_first) = self.separators.first() {
            self.line_prefix.push_str(before_first);
        }
    }

    /// Adds a sample, unless there is no value or it is not a number. `labels` are the values of the
    /// family's labels, in order.
    pub fn add(&mut self, labels: &[&dyn LabelValue], value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.add_number(labels, None, value);
        }
    }

    /// As [`Samples::add`], with the labels of a row after others.
    pub fn add_of(&mut self, labels: &[&dyn LabelValue], row: LabelRow<'_>, value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.add_number(labels, Some(row), value);
        }
    }

    fn add_number(&mut self, labels: &[&dyn LabelValue], row: Option<LabelRow<'_>>, value: f64) {
        let of_row = row.map_or(&[][..], |row| row.labels);
        assert_eq!(labels.len() + of_row.len(), self.labels.len(), "one value for each label");
        debug_assert!(self.labels.ends_with(of_row), "another row's labels");
        let MetricFamily { text, lines } = &mut self.family;
        let begin = text.len();
        if self.for_fingerprint {
            labels.iter().for_each(|label| {
                label.push_to(text);
                text.push('"');
            });
            row.into_iter().for_each(|row| text.extend([row.text, "\""]));
            text.push('\n');
            lines.push(SampleLine { series: begin..begin, value });
            return;
        }
        text.push_str(&self.line_prefix);
        // The prefix has the one before the first label.
        let separator = |at: usize| if at > 0 { &*self.separators[at] } else { "" };
        for (at, label) in labels.iter().enumerate() {
            text.push_str(separator(at));
            label.push_to(text);
        }
        if let Some(row) = row {
            text.push_str(separator(labels.len()));
            text.push_str(row.text);
        }
        if self.has_hostname || !self.labels.is_empty() {
            text.push_str("\"}");
        }
        let series = begin..text.len();
        push_value(text, value);
        lines.push(SampleLine { series, value });
    }

    /// Merges the samples with the same labels, from this line on.
    fn merge(&mut self, first: usize) {
        let MetricFamily { text, lines } = &mut self.family;
        self.series.clear();
        // The table is empty, so that no entry is hashed again.
        self.series.reserve(lines.len() - first, |_| 0);
        let mut repeated = Vec::new();
        for at in first..lines.len() {
            let of = |at: &usize| &text[lines[*at].series.clone()];
            let hash = |at: &usize| self.hasher.hash_one(of(at));
            let same = |other: &usize| of(other) == of(&at);
            match self.series.entry(hash(&at), same, hash) {
                Entry::Vacant(entry) => {
                    entry.insert(at);
                }
                Entry::Occupied(entry) => {
                    let value = lines[at].value;
                    let known = &mut lines[*entry.get()].value;
                    *known = match self.kind {
                        Kind::Gauge | Kind::Counter => *known + value,
                        Kind::Largest => known.max(value),
                    };
                    repeated.push(at);
                }
            }
        }
        if !repeated.is_empty() {
            self.family.remove_lines(&repeated);
        }
    }
}

impl MetricFamily {
    /// Whether the family has no sample.
    pub const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The samples: name and labels as they are written, and the value.
    pub fn samples(&self) -> impl Iterator<Item = (&str, f64)> {
        let lines = self.lines.iter();
        lines.map(|line| (&self.text[line.series.clone()], line.value))
    }

    /// Name, help and type, then the samples, in Prometheus' text format 0.0.4. A later piece of a family has samples alone.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Writes the text again without the lines at these sorted positions, and with the current values of the others.
    fn remove_lines(&mut self, positions: &[usize]) {
        let before = std::mem::take(self);
        let header = before.lines.first().map_or(0, |line| line.series.start);
        self.text.push_str(&before.text[..header]);
        for (at, line) in before.lines.iter().enumerate() {
            if positions.binary_search(&at).is_ok() {
                continue;
            }
            let begin = self.text.len();
            self.text.push_str(&before.text[line.series.clone()]);
            let series = begin..self.text.len();
            push_value(&mut self.text, line.value);
            let value = line.value;
            self.lines.push(SampleLine { series, value });
        }
    }
}

/// Ends a line with a value in the digits of `f64`'s `Display`. Whole numbers (most values are) and numbers without an
/// exponent have faster functions.
fn push_value(text: &mut String, value: f64) {
    text.push(' ');
    let whole = value as i64;
    let is_whole = whole as f64 == value && whole.unsigned_abs() <= LARGEST_WHOLE;
    // Only `Display` writes the sign of a negative zero.
    if is_whole && (whole != 0 || value.is_sign_positive()) {
        text.push_str(itoa::Buffer::new().format(whole));
    } else if WITHOUT_EXPONENT.contains(&value.abs()) {
        text.push_str(zmij::Buffer::new().format_finite(value));
    } else {
        // Writing to a string does not fail.
        let _ = write!(text, "{value}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests;
