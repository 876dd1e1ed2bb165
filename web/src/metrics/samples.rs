//! Samples of families, written as Prometheus reads them: label values made fit for the text format, no label set twice.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;
use std::ops::Range;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::label::{LabelValue, push_printable};
use super::{Family, Kind};

/// Up to here every whole number is one `f64`.
const LARGEST_WHOLE: u64 = 1 << f64::MANTISSA_DIGITS;

/// Collects the samples of one family after the other, in the same memory. There may be a million of them: none
/// allocates anything of its own.
#[derive(Debug)]
pub struct Samples {
    kind: Kind,
    labels: &'static [&'static str],
    /// What a line begins with: the name, and the label `hostname` if there is one.
    beginning: String,
    /// How much of it is the name.
    name_length: usize,
    family: MetricFamily,
    /// Positions of the lines, by their series; only of use while a family is ended.
    series: HashTable<usize>,
    hasher: RandomState,
}

/// A family with its samples, no label set twice.
#[derive(Clone, Debug, Default)]
pub struct MetricFamily {
    /// In Prometheus' text format 0.0.4.
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>
    text: String,
    lines: Vec<Line>,
}

/// A line of the text: one sample.
#[derive(Clone, Debug)]
struct Line {
    /// Where its name and labels are.
    series: Range<usize>,
    value: f64,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            kind: Kind::Gauge,
            labels: &[],
            beginning: String::new(),
            name_length: 0,
            family: MetricFamily::default(),
            series: HashTable::new(),
            hasher: RandomState::default(),
        }
    }
}

impl Samples {
    /// The family with what `add` adds to it, instead of the one before.
    pub fn of<S>(&mut self, family: &Family<S>, add: impl FnOnce(&mut Self)) -> &MetricFamily {
        self.begin(family);
        add(self);
        self.end();
        &self.family
    }

    fn begin<S>(&mut self, family: &Family<S>) {
        let name = family.name;
        self.kind = family.kind;
        self.labels = family.labels;
        self.beginning.clear();
        self.beginning.push_str(name);
        self.name_length = name.len();
        let MetricFamily { text, lines } = &mut self.family;
        lines.clear();
        text.clear();
        let help = family.help.replace('\\', r"\\").replace('\n', r"\n");
        let kind = family.kind.word();
        // Writing to a string does not fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Gives the label `hostname` to every sample that follows; either all have it, or none.
    pub fn of_host(&mut self, hostname: &str) {
        assert!(
            self.has_hostname() || self.family.lines.is_empty(),
            "one label set for a family"
        );
        self.beginning.truncate(self.name_length);
        self.beginning.push_str("{hostname=\"");
        push_printable(&mut self.beginning, hostname);
        self.beginning.push('"');
    }

    fn has_hostname(&self) -> bool {
        self.beginning.len() > self.name_length
    }

    /// Adds a sample, unless there is no value or it is not a number. `labels` are the values of the
    /// family's labels, in order.
    pub fn add(&mut self, labels: &[&dyn LabelValue], value: impl Into<Option<f64>>) {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.add_number(labels, value);
        }
    }

    fn add_number(&mut self, labels: &[&dyn LabelValue], value: f64) {
        assert_eq!(labels.len(), self.labels.len(), "one value for each label");
        let mut before = if self.has_hostname() { ',' } else { '{' };
        let MetricFamily { text, lines } = &mut self.family;
        let begin = text.len();
        text.push_str(&self.beginning);
        for (label, value) in self.labels.iter().zip(labels) {
            text.push(before);
            text.push_str(label);
            text.push_str("=\"");
            value.push_to(text);
            text.push('"');
            before = ',';
        }
        if before == ',' {
            text.push('}');
        }
        let series = begin..text.len();
        push_value(text, value);
        lines.push(Line { series, value });
    }

    /// Makes one of the samples with the same labels.
    fn end(&mut self) {
        let MetricFamily { text, lines } = &mut self.family;
        self.series.clear();
        // It is empty: nothing has to be found a new place by its hash.
        self.series.reserve(lines.len(), |_| 0);
        let mut repeated = Vec::new();
        for at in 0..lines.len() {
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
            self.family.leave_out(&repeated);
        }
    }
}

impl MetricFamily {
    /// Whether it has no sample.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Its samples: name and labels as they are written, and the value.
    pub fn samples(&self) -> impl Iterator<Item = (&str, f64)> {
        let lines = self.lines.iter();
        lines.map(|line| (&self.text[line.series.clone()], line.value))
    }

    /// Name, help and type, and its samples if it has any, in Prometheus' text format 0.0.4.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Writes the text anew without the lines at these positions, in order, and with the values that the others have now.
    fn leave_out(&mut self, positions: &[usize]) {
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
            self.lines.push(Line { series, value });
        }
    }
}

/// Ends a line with a value as `f64` is displayed; whole numbers, which most are, in a shorter way.
fn push_value(text: &mut String, value: f64) {
    text.push(' ');
    let whole = value as i64;
    if whole as f64 == value && whole.unsigned_abs() <= LARGEST_WHOLE && whole != 0 {
        text.push_str(itoa::Buffer::new().format(whole));
    } else {
        // Writing to a string does not fail.
        let _ = write!(text, "{value}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A family and what is added to it, in the memory of another.
    fn family(
        kind: Kind,
        labels: &'static [&'static str],
        add: impl FnOnce(&mut Samples),
    ) -> MetricFamily {
        let family = |name, kind, labels| Family {
            name,
            kind,
            labels,
            help: "y",
            samples: (),
        };
        let mut samples = Samples::default();
        samples.of(&family("another", Kind::Gauge, &["a"]), |samples| {
            samples.of_host("elsewhere");
            samples.add(&[&"x"], 7.0);
        });
        samples.of(&family("x", kind, labels), add).clone()
    }

    fn lines(family: &MetricFamily) -> Vec<&str> {
        family.text().lines().skip(2).collect()
    }

    #[test]
    fn two_samples_with_the_same_labels_become_one() {
        let sum = family(Kind::Gauge, &["a", "b"], |samples| {
            samples.add(&[&"x", &1_u32], 2.0);
            samples.add(&[&"x", &2_u32], 4.0);
            samples.add(&[&"x", &1_u32], 3.5);
            samples.add(&[&"y", &1_u32], 1.0);
            samples.add(&[&"x", &1_u32], 1.0);
        });
        let expected = [
            (r#"x{a="x",b="1"}"#, 6.5),
            (r#"x{a="x",b="2"}"#, 4.0),
            (r#"x{a="y",b="1"}"#, 1.0),
        ];
        assert_eq!(sum.samples().collect::<Vec<_>>(), expected);
        let written = expected.map(|(series, value)| format!("{series} {value}\n"));
        let header = "# HELP x y\n# TYPE x gauge\n";
        assert_eq!(sum.text(), header.to_owned() + &written.concat());
        let largest = family(Kind::Largest, &["a"], |samples| {
            samples.add(&[&"x"], 2.0);
            samples.add(&[&"x"], 1.0);
        });
        assert_eq!(lines(&largest), ["x{a=\"x\"} 2"]);
    }

    #[test]
    fn labels_that_only_differ_in_where_they_are_split_stay_apart() {
        let family = family(Kind::Gauge, &["a", "b"], |samples| {
            samples.add(&[&"x\",b=\"y", &"z"], 1.0);
            samples.add(&[&"x", &"y\",b=\"z"], 2.0);
        });
        assert_eq!(lines(&family).len(), 2);
    }

    #[test]
    fn the_same_labels_on_two_hosts_are_two_series() {
        let family = family(Kind::Gauge, &[], |samples| {
            samples.of_host("a");
            samples.add(&[], 1.0);
            samples.of_host("b{\"");
            samples.add(&[], 2.0);
            samples.of_host("c");
            samples.add(&[], 3.0);
        });
        let expected = [
            "x{hostname=\"a\"} 1",
            "x{hostname=\"b{\\\"\"} 2",
            "x{hostname=\"c\"} 3",
        ];
        assert_eq!(lines(&family), expected);
    }

    #[test]
    fn what_is_absent_or_not_a_number_is_no_sample() {
        let family = family(Kind::Gauge, &[], |samples| {
            samples.add(&[], None);
            samples.add(&[], f64::NAN);
            samples.add(&[], f64::INFINITY);
        });
        assert!(family.is_empty());
        assert_eq!(family.text(), "# HELP x y\n# TYPE x gauge\n");
    }

    #[test]
    fn values_are_written_as_they_are_displayed() {
        let whole = [0.0, 1.0, -7.0, 1e15, (1_u64 << 53) as f64, 1e16, 1e300];
        for value in whole.into_iter().chain([-0.0, 0.1, -2.5, 1e-7, 5e-324]) {
            let mut text = String::new();
            push_value(&mut text, value);
            assert_eq!(text, format!(" {value}\n"));
        }
    }

    #[test]
    fn a_family_is_written_with_all_escapes() {
        let counter = Family {
            name: "x_total",
            kind: Kind::Counter,
            labels: &["a", "b"],
            help: "Line\nand \\.",
            samples: (),
        };
        let mut samples = Samples::default();
        let family = samples.of(&counter, |samples| {
            samples.of_host("h\\");
            samples.add(&[&"x\\\"\n", &""], 1.5);
            samples.add(&[&"é", &2_u64], 1e21);
        });
        assert_eq!(
            family.text(),
            "# HELP x_total Line\\nand \\\\.\n# TYPE x_total counter\n\
             x_total{hostname=\"h\\\\\",a=\"x\\\\\\\"\\n\",b=\"\"} 1.5\n\
             x_total{hostname=\"h\\\\\",a=\"é\",b=\"2\"} 1000000000000000000000\n"
        );
        let bare = self::family(Kind::Largest, &[], |samples| samples.add(&[], 1.0));
        assert_eq!(bare.text(), "# HELP x y\n# TYPE x gauge\nx 1\n");
    }
}
