//! What the terminal can do, and its size.

use std::env;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// The columns and rows of a terminal that does not report them.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// Whether the terminal cannot move its cursor, by `TERM`.
pub fn is_dumb() -> bool {
    env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Whether a stream is a terminal that can move its cursor.
pub fn has_cursor(stream: &impl IsTerminal) -> bool {
    !is_dumb() && stream.is_terminal()
}

/// The columns and rows of the terminal that is open as `file`.
pub fn size(file: impl AsFd) -> (u16, u16) {
    let (columns, rows) = tcgetwinsize(file).map_or((0, 0), |it| (it.ws_col, it.ws_row));
    let or_usual = |size, usual| if size > 0 { size } else { usual };
    (or_usual(columns, USUAL_SIZE.0), or_usual(rows, USUAL_SIZE.1))
}
