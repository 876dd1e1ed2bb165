//! Labels that several families share, written once for all of them.

use super::label::LabelValue;

/// Typical bytes of a label, its value and the separator.
const LABEL_BYTES: usize = 16;

/// Items that several families measure, each with labels that its samples share.
#[derive(Debug)]
pub struct LabelRows<T> {
    labels: &'static [&'static str],
    /// The label values of all rows in order, with the separators between them.
    text: String,
    /// Each item, and the end of its labels in `text`.
    rows: Vec<(T, usize)>,
}

/// The labels of one of [`LabelRows`].
#[derive(Clone, Copy, Debug)]
pub struct LabelRow<'a> {
    pub(super) labels: &'static [&'static str],
    /// From the first character of the first value to the last character of the last value: `7",eid="e1`.
    pub(super) text: &'a str,
}

impl<T> LabelRows<T> {
    /// An empty list with these labels, at least one, and room for `rows`: there may be thousands.
    pub fn with_capacity(labels: &'static [&'static str], rows: usize) -> Self {
        assert!(!labels.is_empty(), "a row has labels");
        Self { labels, text: String::with_capacity(rows * labels.len() * LABEL_BYTES), rows: Vec::with_capacity(rows) }
    }

    /// Adds an item with the values of its labels, in order.
    pub fn push(&mut self, values: &[&dyn LabelValue], row: T) {
        assert_eq!(values.len(), self.labels.len(), "one value for each label");
        for (at, (label, value)) in self.labels.iter().zip(values).enumerate() {
            if at > 0 {
                self.text.extend(["\",", label, "=\""]);
            }
            value.push_to(&mut self.text);
        }
        self.rows.push((row, self.text.len()));
    }

    /// Each item with its labels, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (LabelRow<'_>, &T)> {
        let mut begin = 0;
        self.rows.iter().map(move |(row, end)| {
            let text = &self.text[std::mem::replace(&mut begin, *end)..*end];
            let labels = self.labels;
            (LabelRow { labels, text }, row)
        })
    }
}
