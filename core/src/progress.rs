//! A line on stderr that shows how far a command is. Only a terminal gets the line, and the line does not remain there.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

use crate::terminal;
use crate::text::harmless;

/// The least time between two lines of [`ProgressLine::show_sometimes`].
const INTERVAL: Duration = Duration::from_millis(200);

/// Moves the cursor to the begin of the line, and erases the line.
const ERASE: &str = "\r\x1b[K";

/// The line. Its drop erases it.
#[derive(Debug)]
pub struct ProgressLine {
    is_possible: bool,
    /// The text on the terminal; empty: none.
    shown: RefCell<String>,
    /// The time of the last text of [`ProgressLine::show_sometimes`].
    shown_at: Cell<Instant>,
}

impl ProgressLine {
    /// A line that is never shown unless it is `wanted`, and stderr is a terminal that can erase.
    pub fn on_stderr(wanted: bool) -> Self {
        let is_possible = wanted && terminal::has_cursor(&io::stderr());
        Self { is_possible, shown: RefCell::default(), shown_at: Cell::new(Instant::now()) }
    }

    /// Shows a text in place of the last one, without control characters and cut to the width of the terminal. Returns
    /// whether it is shown: a command in the background does not write into the line that its user types.
    pub fn show(&self, text: impl FnOnce() -> String) -> bool {
        if !self.is_possible || !is_in_foreground() {
            return false;
        }
        let text = fitted(&text(), terminal::size(io::stderr()).0.into());
        if *self.shown.borrow() != text {
            write(&format!("{ERASE}{text}"));
            self.shown.replace(text);
        }
        true
    }

    /// As [`ProgressLine::show`], for frequent calls: at most five times in a second, and not at once.
    pub fn show_sometimes(&self, text: impl FnOnce() -> String) {
        if self.is_possible && self.shown_at.get().elapsed() >= INTERVAL {
            self.shown_at.set(Instant::now());
            self.show(text);
        }
    }

    /// Erases the line.
    pub fn clear(&self) {
        if !self.shown.take().is_empty() {
            write(ERASE);
        }
    }

    /// Erases the line before each write to `out`, which writes to the same terminal.
    pub const fn above<W: Write>(&self, out: W) -> impl Write {
        Above { line: self, out }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

struct Above<'a, W> {
    line: &'a ProgressLine,
    out: W,
}

impl<W: Write> Write for Above<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.clear();
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write(text: &str) {
    // An error of stderr cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
}

fn is_in_foreground() -> bool {
    // Without an answer the terminal is not the one that controls this process.
    tcgetpgrp(io::stderr()).map_or(true, |group| group == getpgrp())
}

/// The text without control characters in a line of the terminal, with `…` after a cut. A line that the terminal wraps
/// cannot be erased.
fn fitted(text: &str, columns: usize) -> String {
    let text = harmless(text);
    // No character is wider than two columns.
    let width = |character: char| if character.is_ascii() { 1 } else { 2 };
    let room = columns.saturating_sub(1);
    if text.chars().map(width).sum::<usize>() <= room {
        return text;
    }
    let mut used = 1;
    let kept = text.chars().take_while(|character| {
        used += width(*character);
        used <= room
    });
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_fits_into_one_line_of_the_terminal() {
        for (text, columns, expected) in [
            ("9 of 9 hosts", 80, "9 of 9 hosts"),
            ("123456789", 10, "123456789"),
            ("1234567890", 10, "12345678…"),
            ("机机机机机", 11, "机机机机机"),
            ("机机机机机", 10, "机机机机…"),
            ("12", 1, "…"),
            ("a\nb\u{1b}[31m", 80, "a\\nb\\u{1b}[31m"),
        ] {
            assert_eq!(fitted(text, columns), expected, "{text} in {columns}");
        }
    }
}
