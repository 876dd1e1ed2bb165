//! Labels of what several families have a value of, written once for all of them.

use super::label::LabelValue;

/// Of a label, value and separator, as most are.
const LABEL_BYTES: usize = 16;

/// What is measured in several ways, with the labels that all samples of it have.
#[derive(Debug)]
pub struct Rows<T> {
    labels: &'static [&'static str],
    /// Of each row in turn the values of its labels, with what stands between them.
    text: String,
    /// Each row, and where its text ends.
    rows: Vec<(T, usize)>,
}

/// The labels of one of [`Rows`].
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub(super) labels: &'static [&'static str],
    /// From the first character of the first value to the last of the last: `x",index="0`.
    pub(super) text: &'a str,
}

impl<T> Rows<T> {
    /// No rows yet, of these labels, and room for so many: there may be hundreds of thousands.
    #[must_use]
    pub fn with_capacity(labels: &'static [&'static str], rows: usize) -> Self {
        Self { labels, text: String::with_capacity(rows * labels.len() * LABEL_BYTES), rows: Vec::with_capacity(rows) }
    }

    /// Adds what has these values of the labels, in order.
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

    /// Each with its labels, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (Row<'_>, &T)> {
        let mut begin = 0;
        self.rows.iter().map(move |(row, end)| {
            let text = &self.text[std::mem::replace(&mut begin, *end)..*end];
            let labels = self.labels;
            (Row { labels, text }, row)
        })
    }
}
