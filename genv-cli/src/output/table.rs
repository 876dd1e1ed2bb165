//! Tables of aligned columns.

use std::io::{self, BufWriter, Write};

use anstyle::{AnsiColor, Style};
use genv_core::text::shortened;
use unicode_width::UnicodeWidthStr as _;

use super::harmless;

/// The largest number of characters of a text from a file.
const MOST_SHOWN_CHARACTERS: usize = 60;

/// The smallest width of a shortened column without a name.
const LEAST_WIDTH: usize = 4;

/// Styles of good, doubtful and bad values.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// The style of the caller's own values.
pub(crate) const OWN: Style = AnsiColor::Cyan.on_default();
const HEADER: Style = Style::new().bold();

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    is_right_aligned: bool,
}

impl Cell {
    /// A text of this program.
    pub(crate) fn own(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new(), is_right_aligned: false }
    }

    /// A text of another source, escaped and shortened.
    pub(crate) fn foreign(text: &str) -> Self {
        Self::own(shortened(&harmless(text), MOST_SHOWN_CHARACTERS))
    }

    /// Aligns the cell to the right, as for numbers. The name of a column is aligned as its first cell.
    pub(crate) fn right(mut self) -> Self {
        self.is_right_aligned = true;
        self
    }

    /// Sets the style.
    pub(crate) fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

/// Shortens a text to this width in a terminal, with `…` after a cut.
pub(crate) fn fit(text: &mut String, width: usize) {
    if text.width() <= width {
        return;
    }
    while text.pop().is_some() && text.width() + 1 > width {}
    text.push('…');
}

/// A table with aligned columns.
#[derive(Debug)]
pub(crate) struct Table {
    header: Option<Vec<&'static str>>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// The number of spaces between two columns.
    pub(crate) const GAP: usize = 2;

    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: Some(header.to_vec()), rows: Vec::new() }
    }

    /// Sets whether the line with the names of the columns is printed.
    pub(crate) fn header(mut self, shown: bool) -> Self {
        self.header = self.header.filter(|_| shown);
        self
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// Removes a column if all its cells are empty.
    pub(crate) fn drop_empty(&mut self, column: usize) {
        if self.rows.iter().all(|cells| cells[column].text.is_empty()) {
            if let Some(names) = &mut self.header {
                names.remove(column);
            }
            for cells in &mut self.rows {
                cells.remove(column);
            }
        }
    }

    /// Shortens the texts of these columns until each line fits `width`: always in the widest column. Names of columns are not
    /// shortened.
    pub(crate) fn fit(&mut self, columns: &[usize], width: usize) {
        let mut widths = self.widths();
        let line = widths.iter().sum::<usize>() + Self::GAP * widths.len().saturating_sub(1);
        let least = |column: usize| self.header.as_ref().map_or(LEAST_WIDTH, |it| it[column].width());
        for _ in width..line {
            let columns = columns.iter().filter(|it| widths[**it] > least(**it));
            let Some(widest) = columns.max_by_key(|it| widths[**it]) else {
                break;
            };
            widths[*widest] -= 1;
        }
        for cells in &mut self.rows {
            for column in columns {
                fit(&mut cells[*column].text, widths[*column]);
            }
        }
    }

    /// The widths of the columns.
    fn widths(&self) -> Vec<usize> {
        let names = self.header.as_deref().unwrap_or_default();
        let mut widths: Vec<usize> = names.iter().map(|name| name.width()).collect();
        for cells in &self.rows {
            widths.resize(widths.len().max(cells.len()), 0);
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.text.width().max(*width);
            }
        }
        widths
    }

    /// Writes the table, without spaces at the ends of lines.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let first = self.rows.first();
        let names = self.header.as_ref().map(|names| {
            let cells = names.iter().enumerate().map(|(column, name)| Cell {
                is_right_aligned: first.is_some_and(|it| it[column].is_right_aligned),
                ..Cell::own(*name).style(HEADER)
            });
            cells.collect::<Vec<_>>()
        });
        let widths = self.widths();
        // Without this buffer each line causes a write.
        let mut out = BufWriter::new(out);
        for cells in names.iter().chain(&self.rows) {
            let mut missing = 0;
            for (cell, width) in cells.iter().zip(&widths) {
                let rest = width - cell.text.width();
                let (before, after) = match cell.is_right_aligned {
                    true => (rest, Self::GAP),
                    false => (0, rest + Self::GAP),
                };
                missing += before;
                if !cell.text.is_empty() {
                    let style = cell.style;
                    write!(out, "{:missing$}{style}{}{style:#}", "", cell.text)?;
                    missing = 0;
                }
                missing += after;
            }
            writeln!(out)?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use anstream::AutoStream;
    use proptest::prelude::*;

    use super::*;

    fn written(table: &Table) -> String {
        let mut out = AutoStream::never(Vec::new());
        table.write(&mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn columns_align_with_any_characters() {
        let mut table = Table::new(&["ID", "NAME", "DEVICES"]);
        table.row([Cell::own("1"), Cell::foreign("名前"), Cell::own("0")]);
        table.row([Cell::own("12496"), Cell::default(), Cell::own("1,2")]);
        table.row([Cell::own("3"), Cell::foreign("ü"), Cell::default()]);
        assert_eq!(written(&table), "ID     NAME  DEVICES\n1      名前  0\n12496        1,2\n3      ü\n");
        assert!(written(&table.header(false)).starts_with("1      名前"));
        // Numbers, to the right.
        let mut table = Table::new(&["GPU", "LOAD", "USER"]);
        for (gpu, load, user) in [("0", "7 %", "a"), ("1", "", "b"), ("2", "100 %", "c")] {
            table.row([Cell::own(gpu), Cell::own(load).right(), Cell::own(user)]);
        }
        assert_eq!(written(&table), "GPU   LOAD  USER\n0      7 %  a\n1           b\n2    100 %  c\n");
    }

    #[test]
    fn the_widest_column_is_shortened_until_lines_fit() {
        let filled = |header| {
            let mut table = Table::new(&["GPU", "MODEL", "USER", "LOAD"]).header(header);
            let (model, user) = ("H100 80GB HBM3", Cell::foreign("名前名前").style(OWN));
            table.row([Cell::own("0"), Cell::own(model), user, Cell::own("7 %")]);
            table
        };
        for (header, width, line) in [
            (true, 80, "0    H100 80GB HBM3  名前名前  7 %"),
            (true, 35, "0    H100 80GB HBM3  名前名前  7 %"),
            (true, 34, "0    H100 80GB HB…  名前名前  7 %"),
            (true, 29, "0    H100 80…  名前名前  7 %"),
            (true, 26, "0    H100 8…  名前…  7 %"),
            // Names stay whole.
            (true, 1, "0    H100…  名…   7 %"),
            (false, 1, "0  H10…  名…  7 %"),
        ] {
            let mut table = filled(header);
            table.fit(&[1, 2], width);
            let written = written(&table);
            assert_eq!(written.lines().last(), Some(line), "{width}");
            let least = if header { 22 } else { 18 };
            for line in written.lines() {
                assert!(line.width() <= width.max(least), "{width}: {line}");
            }
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        for (text, shown) in [
            ("a\nb", "a\\nb"),
            ("\x1b[2J", "\\u{1b}[2J"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
            ("\u{2028}\u{200b}\u{feff}", "\\u{2028}\\u{200b}\\u{feff}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            (r#"it's "x" \ ü 名"#, r#"it's "x" \ ü 名"#),
        ] {
            assert_eq!(harmless(text), shown);
        }
        let long = Cell::foreign(&"x".repeat(10_000_000));
        assert_eq!(long.text.chars().count(), MOST_SHOWN_CHARACTERS + 1);
    }

    #[test]
    fn colours_are_around_texts_only() {
        let mut table = Table::new(&["A"]);
        table.row([Cell::own("ok").style(GOOD)]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[1mA\x1b[0m\n\x1b[32mok\x1b[0m\n");
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_table(text in any::<String>()) {
            let mut table = Table::new(&["A", "B"]);
            table.row([Cell::foreign(&text), Cell::own("end")]);
            let written = written(&table);
            prop_assert_eq!(written.lines().count(), 2);
            prop_assert!(written.ends_with("end\n"));
            prop_assert!(!written.trim_end().chars().any(|it| it.is_control() && it != '\n'));
        }
    }
}
