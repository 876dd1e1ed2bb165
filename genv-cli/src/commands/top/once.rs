//! The tables of devices and users, for scripts and pipes.

use std::io::{self, IsTerminal as _, Write as _};

use super::grid::{Form, Grid};
use super::tabs::Facts;
use super::view::Tab;
use crate::failure::Failure;
use crate::output::{Cell, Table, print_note, stdout, terminal_width};

/// What a collection that has just begun does not know of users.
const NOT_YET: [&str; 4] = ["IDLE", "BUSY", "GPU TIME", "ENERGY"];

/// Prints the devices and the users, and on stderr what is broken.
pub(super) fn print(facts: &Facts<'_>) -> anyhow::Result<()> {
    let mut out = stdout();
    table(&facts.grid(Tab::Devices)).write(&mut out)?;
    writeln!(out)?;
    table(&NOT_YET.into_iter().fold(facts.grid(Tab::Users), Grid::without)).write(&mut out)?;
    drop(out);
    let hosts = facts.hosts;
    for trouble in facts.troubles() {
        print_note(&trouble);
    }
    match hosts.iter().filter(|it| !it.up).count() {
        0 => Ok(()),
        down if down == hosts.len() => Err(Failure::Silent(1).into()),
        _ => Err(Failure::Silent(Failure::SOME_HOSTS).into()),
    }
}

/// The columns other than graphs, as wide as the terminal if there is one.
fn table(grid: &Grid) -> Table {
    let shown = || grid.columns.iter().enumerate().filter(|(_, it)| !matches!(it.form, Form::Graph(_)));
    let names: Vec<&str> = shown().map(|(_, column)| column.name).collect();
    let mut table = Table::new(&names);
    for row in &grid.rows {
        let cells = shown().map(|(position, column)| {
            let value = &row.values[position];
            let cell = Cell::own(value.text.as_str()).style(value.style);
            if column.form == Form::Number { cell.right() } else { cell }
        });
        table.row(cells.collect::<Vec<_>>());
    }
    if io::stdout().is_terminal() {
        let texts = shown().map(|(_, column)| matches!(column.form, Form::Text(_)));
        let texts: Vec<usize> = texts.enumerate().filter(|(_, is_text)| *is_text).map(|(it, _)| it).collect();
        table.fit(&texts, terminal_width());
    }
    table
}
