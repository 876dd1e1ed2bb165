//! Rows and columns of a view, for the screen and for plain tables.

use std::cmp::Ordering;

use anstyle::Style;
use genv_core::model::DeviceIndex;
use genv_core::text::{harmless, shortened};
use unicode_width::UnicodeWidthStr as _;

use super::view::Tab;

/// The largest number of characters of a text from a file or a driver.
const MOST_SHOWN_CHARACTERS: usize = 60;

/// The largest width of a graph.
const WIDEST_GRAPH: usize = 60;

/// From this rank on, a column is shown only where all texts have their room, up to this width.
const EXTRA_RANK: u8 = 7;
const WIDE_TEXT: usize = 20;

/// The number of spaces between two columns of the screen.
pub(super) const GAP: usize = 1;

/// What a row shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A device of a host.
    Device(String, DeviceIndex),
    /// An environment of a host, by its id.
    Environment(String, String),
    /// A user of all hosts.
    User(String),
    /// A process of a host.
    Process(String, u32),
    /// A host.
    Host(String),
}

impl Key {
    /// The words for people, escaped.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Device(host, index) => format!("GPU {index} of {}", harmless(host)),
            Self::Environment(host, eid) => format!("environment {} of {}", harmless(eid), harmless(host)),
            Self::User(user) => format!("the user {}", harmless(user)),
            Self::Process(host, pid) => format!("process {pid} of {}", harmless(host)),
            Self::Host(host) => harmless(host),
        }
    }
}

/// The place of a value in a sorted column.
#[derive(Clone, Debug, PartialEq)]
enum Order {
    Number(f64),
    Text(String),
    /// After all others, in both directions.
    Unknown,
}

/// A value of a row.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The text, escaped.
    pub(super) text: String,
    pub(super) style: Style,
    order: Order,
    /// The samples of a graph, 0–1, the oldest first.
    pub(super) samples: Vec<Option<f32>>,
}

impl Value {
    /// A text of another source, escaped and shortened.
    pub(super) fn foreign(text: &str) -> Self {
        let text = shortened(&harmless(text), MOST_SHOWN_CHARACTERS);
        let order = if text.is_empty() { Order::Unknown } else { Order::Text(text.to_lowercase()) };
        Self { text, style: Style::new(), order, samples: Vec::new() }
    }

    /// A text of this program for a number.
    pub(super) fn number(text: impl Into<String>, number: f64) -> Self {
        Self { text: text.into(), style: Style::new(), order: Order::Number(number), samples: Vec::new() }
    }

    /// A number of things.
    pub(super) fn count(count: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "only the order counts")]
        let number = count as f64;
        Self::number(count.to_string(), number)
    }

    /// A value that was not measured.
    pub(super) fn unknown() -> Self {
        Self { order: Order::Unknown, ..Self::foreign("?") }
    }

    /// A value that a row does not have.
    pub(super) fn none() -> Self {
        Self::foreign("")
    }

    /// The text of a number, if it is known.
    pub(super) fn known(number: Option<f64>, text: impl FnOnce(f64) -> String) -> Self {
        number.map_or_else(Self::unknown, |number| Self::number(text(number), number))
    }

    /// A graph of values from 0 to 1.
    pub(super) fn graph(samples: Vec<Option<f32>>) -> Self {
        Self { samples, ..Self::none() }
    }

    pub(super) fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// The order in a column, known values before others.
    fn compare(&self, other: &Self, is_descending: bool) -> Ordering {
        let order = match (&self.order, &other.order) {
            (Order::Unknown, Order::Unknown) => return Ordering::Equal,
            (Order::Unknown, _) => return Ordering::Greater,
            (_, Order::Unknown) => return Ordering::Less,
            (Order::Number(left), Order::Number(right)) => left.total_cmp(right),
            (Order::Text(left), Order::Text(right)) => left.cmp(right),
            (Order::Number(_), Order::Text(_)) => Ordering::Less,
            (Order::Text(_), Order::Number(_)) => Ordering::Greater,
        };
        if is_descending { order.reverse() } else { order }
    }
}

/// The form of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Texts that are shortened down to this width if there is no room.
    Text(usize),
    /// Aligned to the right, and never shortened. Sorted with the largest first.
    Number,
    /// A graph of at least this width, which takes the room that is left.
    Graph(usize),
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) form: Form,
    /// Where there is no room for all columns, those with the largest rank are left out.
    rank: u8,
}

impl Column {
    pub(super) const fn new(rank: u8, name: &'static str, form: Form) -> Self {
        Self { name, form, rank }
    }
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Key,
    /// A value for each column.
    pub(super) values: Vec<Value>,
    /// What it belongs to.
    pub(super) of: Vec<Key>,
    /// The view of what belongs to it.
    pub(super) leads: Option<Tab>,
    /// Further words by which a filter finds it.
    pub(super) also: Vec<String>,
}

impl Row {
    /// Whether a word of the row contains this text, in lower case.
    fn matches(&self, filter: &str) -> bool {
        let texts = self.values.iter().map(|it| &it.text).chain(&self.also);
        texts.into_iter().any(|it| it.to_lowercase().contains(filter))
    }
}

/// The content of a view.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
}

impl Grid {
    /// Removes a column.
    pub(super) fn without(mut self, name: &str) -> Self {
        if let Some(position) = self.columns.iter().position(|it| it.name == name) {
            self.columns.remove(position);
            for row in &mut self.rows {
                row.values.remove(position);
            }
        }
        self
    }

    /// Keeps the rows that belong to `scope` and contain the filter.
    pub(super) fn keep(&mut self, scope: Option<&Key>, filter: &str) {
        let filter = filter.to_lowercase();
        self.rows.retain(|row| scope.is_none_or(|scope| row.of.contains(scope)) && row.matches(&filter));
    }

    /// Sorts by a column; without one, keeps the order of the view.
    pub(super) fn sort(&mut self, column: Option<&str>, is_reversed: bool) {
        let position = column.and_then(|name| self.columns.iter().position(|it| it.name == name));
        match position {
            Some(position) => {
                let is_descending = (self.columns[position].form == Form::Number) != is_reversed;
                self.rows.sort_by(|left, right| left.values[position].compare(&right.values[position], is_descending));
            }
            None if is_reversed => self.rows.reverse(),
            None => {}
        }
    }

    /// The columns for which there is room, with their widths and `gap` spaces between two of them. The name of the column
    /// `sorted` is followed by an arrow.
    pub(super) fn layout(&self, room: usize, gap: usize, sorted: Option<&str>) -> Vec<(usize, usize)> {
        let name = |column: &Column| column.name.width() + usize::from(sorted == Some(column.name));
        // Smallest and largest useful widths.
        let limits = self.columns.iter().enumerate().map(|(position, column)| {
            let texts = self.rows.iter().map(|row| row.values[position].text.width());
            let widest = texts.max().unwrap_or(0).max(name(column));
            match column.form {
                Form::Text(least) => (widest.min(least.max(name(column))), widest),
                Form::Number => (widest, widest),
                Form::Graph(least) => (least.max(name(column)), least.max(name(column))),
            }
        });
        let limits: Vec<(usize, usize)> = limits.collect();
        let needed = |kept: &[usize], text: usize| {
            let widths = kept.iter().map(|it| limits[*it].0.max(limits[*it].1.min(text)) + gap);
            widths.sum::<usize>().saturating_sub(gap)
        };
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        while kept.len() > 1 {
            let worst = (0..kept.len()).max_by_key(|it| self.columns[kept[*it]].rank).unwrap_or_default();
            let is_extra = self.columns[kept[worst]].rank >= EXTRA_RANK;
            if needed(&kept, if is_extra { WIDE_TEXT } else { 0 }) <= room {
                break;
            }
            kept.remove(worst);
        }
        let mut left = room.saturating_sub(needed(&kept, 0));
        let mut widths: Vec<(usize, usize)> = kept.iter().map(|it| (*it, limits[*it].0)).collect();
        // The narrowest of the texts that are cut, and then the graphs, one by one.
        let widest = |column: usize| match self.columns[column].form {
            Form::Graph(_) => WIDEST_GRAPH,
            _ => limits[column].1,
        };
        let is_graph = |column: usize| matches!(self.columns[column].form, Form::Graph(_));
        while left > 0 {
            let growing = widths.iter_mut().filter(|(column, width)| *width < widest(*column));
            let Some((_, width)) = growing.min_by_key(|(column, width)| (is_graph(*column), *width)) else {
                break;
            };
            *width += 1;
            left -= 1;
        }
        widths
    }
}
