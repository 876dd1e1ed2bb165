//! Output: tables for people, CSV and JSON for programs.
//!
//! Values such as the name of an environment can be any text, since all users may write to the state. Tables escape
//! control characters. CSV and JSON have unchanged texts, as in genv 1.4.3. Its CSV has no quotes: a script should query one
//! such column at a time.

mod table;

use std::io::{self, IsTerminal as _, Write as _};

use anstream::{AutoStream, ColorChoice};
use clap::{Args, ValueEnum};
use genv_core::terminal;
use genv_core::text::gibibytes;
pub(crate) use genv_core::text::{counted, harmless};
pub(crate) use table::{BAD, Cell, DOUBTFUL, GOOD, OWN, Table, fit};

use crate::failure::Failure;

/// Flags of commands that print only tables and JSON.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct TableFlags {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Omit the line with the names of the columns.
    #[arg(long)]
    pub(crate) no_header: bool,
}

/// Flags of lists.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ListFlags {
    /// Output format: tui is a table, csv has values separated by commas.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,

    /// Print JSON.
    #[arg(long, conflicts_with = "format")]
    pub(crate) json: bool,

    /// Omit the line with the names of the columns.
    #[arg(long)]
    pub(crate) no_header: bool,

    /// Print times instead of ages.
    #[arg(long)]
    pub(crate) timestamp: bool,
}

/// The flag of commands without another format than JSON.
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
    /// Applies the choice to all later output.
    pub(crate) fn choose(self) {
        match self {
            // If the variable CI is set, anstream also uses colours on a dumb terminal.
            Self::Auto if terminal::is_dumb() => ColorChoice::Never,
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
        .write_global();
    }
}

/// stdout for tables.
pub(crate) fn stdout() -> AutoStream<io::StdoutLock<'static>> {
    anstream::stdout().lock()
}

/// The number of columns of the terminal on stdout.
pub(crate) fn terminal_width() -> usize {
    terminal::size(io::stdout()).0.into()
}

/// The format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Csv,
    Tui,
}

impl ListFlags {
    /// These flags, completed by those of `other`.
    pub(crate) fn or(self, other: &Self) -> Self {
        Self {
            format: self.format.or(other.format),
            json: self.json || other.json,
            no_header: self.no_header || other.no_header,
            timestamp: self.timestamp || other.timestamp,
        }
    }

    /// Whether stdout is a terminal, and no format is given.
    pub(crate) fn is_for_people(&self) -> bool {
        self.format.is_none() && !self.json && io::stdout().is_terminal()
    }

    /// Checks that no flag of lists precedes a subcommand other than `ps`.
    pub(crate) fn check_unused(&self, command: &str) -> Result<(), Failure> {
        if self.format.is_none() && !(self.json || self.no_header || self.timestamp) {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "cannot print a list here: --format, --json, --no-header and --timestamp before a command belong to \
             'genv {command}' and 'genv {command} ps'. Put them after the command, if it has them"
        )))
    }
}

/// Prints unchanged bytes.
pub(crate) fn print(content: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(content)?;
    out.flush()
}

/// Prints JSON in the format of genv 1.4.3.
pub(crate) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut content = genv_core::state::shape::json(value);
    content.push(b'\n');
    print(&content)
}

/// Memory in use and in all, in GiB: `20.0/80.0`, with `?` for an unknown amount.
pub(crate) fn used_of_total(used_bytes: Option<u64>, total_bytes: Option<u64>) -> String {
    let [used, total] = [used_bytes, total_bytes].map(|bytes| bytes.map_or_else(|| "?".to_owned(), gibibytes));
    format!("{used}/{total}")
}

/// A line of CSV in the format of genv 1.4.3: fields are never quoted. Control characters are escaped only for a terminal.
pub(crate) fn csv_line(fields: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let fields = fields.into_iter();
    let fields: Vec<String> = if io::stdout().is_terminal() {
        fields.map(|field| harmless(field.as_ref())).collect()
    } else {
        fields.map(|field| field.as_ref().to_owned()).collect()
    };
    fields.join(",") + "\n"
}

/// Prints lines of [`csv_line`], after a line with the names of the fields if `shown`.
pub(crate) fn print_csv(header: &str, shown: bool, lines: impl IntoIterator<Item = String>) -> io::Result<()> {
    let header = shown.then(|| format!("{header}\n"));
    let text: String = header.into_iter().chain(lines).collect();
    print(text.as_bytes())
}

/// Items with a separator between them.
pub(crate) fn joined(items: &[impl ToString], separator: &str) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(separator)
}

pub(crate) fn print_note(note: &str) {
    // An error of stderr cannot be reported.
    let _ = writeln!(io::stderr(), "genv: {note}");
}
