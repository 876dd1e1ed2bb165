//! Output of the commands: answers on stdout, notes on stderr; and the time.

use std::io::{ErrorKind, Write as _, stderr, stdout};

use anyhow::Context as _;
pub(crate) use genv_core::model::now_seconds;
use genv_core::state::shape;
use serde::Serialize;

/// Prints an answer. A closed pipe, as with `head`, is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot print the answer"),
    }
}

/// Prints JSON. All characters except printable ASCII are escaped, so that no name controls a terminal.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut json = String::from_utf8_lossy(&shape::json(value)).into_owned();
    json.push('\n');
    print(&json)
}

/// Prints a note on stderr. A failure is ignored: the note has no other destination.
pub(crate) fn print_note(note: &str) {
    let _ = writeln!(stderr(), "genv-enforcer: {note}");
}
