//! How answers are printed: tables for people, CSV and JSON for programs.
//!
//! What users chose, such as the name of an environment, may be any text, since every user may write to the state files. A
//! table shows it so that it cannot play tricks on a terminal; CSV and JSON have it as it is, as genv 1.4.3
//! prints it (whose CSV has no quotes: columns that users fill are best asked for one at a time).

mod table;

use std::io::{self, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use clap::{Args, ValueEnum};
pub(crate) use genv_core::text::harmless;
use rustix::termios::tcgetwinsize;
pub(crate) use table::{BAD, Cell, DOUBTFUL, GOOD, OWN, Table};

/// The width of a terminal that does not report one.
const USUAL_WIDTH: u16 = 80;

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
            Self::Auto if std::env::var_os("TERM").is_some_and(|term| term == "dumb") => ColorChoice::Never,
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

/// The columns of the terminal that is stdout.
pub(crate) fn terminal_width() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    let width = size.map(|size| size.ws_col).filter(|width| *width > 0);
    width.unwrap_or(USUAL_WIDTH).into()
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

    /// Whether people read the list in a terminal, and chose no format.
    pub(crate) fn is_for_people(&self) -> bool {
        self.format.is_none() && !self.json && io::stdout().is_terminal()
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
pub(crate) fn print_csv(header: &str, shown: bool, lines: impl IntoIterator<Item = String>) -> io::Result<()> {
    let header = shown.then(|| format!("{header}\n"));
    let text: String = header.into_iter().chain(lines).collect();
    print(text.as_bytes())
}
