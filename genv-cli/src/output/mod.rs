//! How answers are printed: tables for people, CSV and JSON for programs.
//!
//! What users chose, such as the name of an environment, may be anything that somebody wrote to the state files. A
//! table shows it so that it cannot play tricks on a terminal; CSV and JSON have it as it is, as genv 1.4.3
//! prints it (whose CSV has no quotes: columns that users fill are best asked for one at a time).

use std::io::{self, BufWriter, IsTerminal as _, Write};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
pub(crate) use genv_core::text::harmless;
use genv_core::text::shortened;
use unicode_width::UnicodeWidthStr as _;

/// How many characters of a text from somebody a table shows.
const MOST_SHOWN_CHARACTERS: usize = 60;

/// Between two columns.
const GAP: usize = 2;

/// Flags of the commands that print tables of their own.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TableFlags {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Leave out the line that names the columns.
    #[arg(long)]
    pub(crate) no_header: bool,
}

/// How a list is printed.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ListFlags {
    /// How to print: tui is a table, csv has a line with commas each.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,

    /// Print JSON.
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,

    /// Leave out the line that names the columns.
    #[arg(long)]
    pub(crate) no_header: bool,

    /// Print times as they are written, not how long ago.
    #[arg(long)]
    pub(crate) timestamp: bool,
}

/// Whether to print JSON, where there is no other format to choose.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct JsonFlag {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Makes it so for all that is printed from now on.
    pub(crate) fn choose(self) {
        match self {
            // Where the variable CI is set, anstream colours for a dumb terminal too.
            Self::Auto if std::env::var_os("TERM").is_some_and(|term| term == "dumb") => {
                ColorChoice::Never
            }
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
        .write_global();
    }
}

/// Where tables go.
pub(crate) fn stdout() -> AutoStream<io::StdoutLock<'static>> {
    anstream::stdout().lock()
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Csv,
    Tui,
}

impl ListFlags {
    /// These, and those of `other` that are not given here.
    pub(crate) fn or(self, other: &Self) -> Self {
        Self {
            format: self.format.or(other.format),
            json: self.json || other.json,
            no_header: self.no_header || other.no_header,
            timestamp: self.timestamp || other.timestamp,
        }
    }

    /// Whether none is given.
    pub(crate) fn is_default(&self) -> bool {
        self.format.is_none() && !(self.json || self.no_header || self.timestamp)
    }
}

/// Prints for programs, as it is.
pub(crate) fn print(content: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(content)?;
    out.flush()
}

/// Prints JSON as genv 1.4.3 does.
pub(crate) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut content = genv_core::state::shape::json(value);
    content.push(b'\n');
    print(&content)
}

/// So many things, in words: `1 device`, `2 devices`.
pub(crate) fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// One line of CSV as genv 1.4.3 prints it: without quotes, whatever the fields hold. Only a terminal, which no program
/// reads, is spared what could play tricks on it.
pub(crate) fn csv_line(fields: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let fields = fields.into_iter();
    let fields: Vec<String> = if io::stdout().is_terminal() {
        fields.map(|field| harmless(field.as_ref())).collect()
    } else {
        fields.map(|field| field.as_ref().to_owned()).collect()
    };
    fields.join(",") + "\n"
}

/// Prints lines of CSV, made by [`csv_line`], under the names of their fields if these are to be shown.
pub(crate) fn print_csv(
    header: &str,
    shown: bool,
    lines: impl IntoIterator<Item = String>,
) -> io::Result<()> {
    let header = shown.then(|| format!("{header}\n"));
    let text: String = header.into_iter().chain(lines).collect();
    print(text.as_bytes())
}

/// What is right, doubtful and wrong.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
const HEADER: Style = Style::new().bold();

/// A field of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A text that was written here.
    pub(crate) fn own(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            style: Style::new(),
        }
    }

    /// A text that somebody else chose.
    pub(crate) fn foreign(text: &str) -> Self {
        Self::own(shortened(&harmless(text), MOST_SHOWN_CHARACTERS))
    }

    /// The same in a style.
    pub(crate) fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

/// Rows of fields under names, aligned.
#[derive(Debug)]
pub(crate) struct Table {
    header: Option<&'static [&'static str]>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(header: &'static [&'static str]) -> Self {
        Self {
            header: Some(header),
            rows: Vec::new(),
        }
    }

    /// Without the line that names the columns.
    pub(crate) fn header(mut self, shown: bool) -> Self {
        self.header = self.header.filter(|_| shown);
        self
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// Writes the table, without spaces at the ends of lines.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let names = self.header.map(|names| {
            let cells = names.iter().map(|name| Cell::own(*name).style(HEADER));
            cells.collect::<Vec<_>>()
        });
        let lines: Vec<&Vec<Cell>> = names.iter().chain(&self.rows).collect();
        let columns = lines.iter().map(|cells| cells.len()).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for cells in &lines {
            for (width, cell) in widths.iter_mut().zip(*cells) {
                *width = cell.text.width().max(*width);
            }
        }
        // A line of stdout would be a write of its own.
        let mut out = BufWriter::new(out);
        for cells in lines {
            let mut missing = 0;
            for (cell, width) in cells.iter().zip(&widths) {
                if !cell.text.is_empty() {
                    let style = cell.style;
                    write!(out, "{:missing$}{style}{}{style:#}", "", cell.text)?;
                    missing = 0;
                }
                missing += width + GAP - cell.text.width();
            }
            writeln!(out)?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(table: &Table) -> String {
        let mut out = AutoStream::never(Vec::new());
        table.write(&mut out).unwrap();
        String::from_utf8(out.into_inner()).unwrap()
    }

    #[test]
    fn columns_align_whatever_their_texts_are_made_of() {
        let mut table = Table::new(&["ID", "NAME", "DEVICES"]);
        table.row([Cell::own("1"), Cell::foreign("名前"), Cell::own("0")]);
        table.row([Cell::own("12496"), Cell::default(), Cell::own("1,2")]);
        table.row([Cell::own("3"), Cell::foreign("ü"), Cell::default()]);
        assert_eq!(
            written(&table),
            "ID     NAME  DEVICES\n1      名前  0\n12496        1,2\n3      ü\n"
        );
        assert!(written(&table.header(false)).starts_with("1      名前"));
    }

    #[test]
    fn hostile_texts_are_shown_and_do_nothing() {
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
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "\x1b[1mA\x1b[0m\n\x1b[32mok\x1b[0m\n"
        );
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
