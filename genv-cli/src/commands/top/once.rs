//! The tables of devices and users, for scripts and pipes.

use std::io::{self, IsTerminal as _, Write as _};

use super::grid::{Form, Grid};
use super::tabs::Facts;
use super::view::Tab;
use crate::failure::Failure;
use crate::output::{Cell, Table, fit, print_note, stdout, terminal_width};

/// What a collection that has just begun does not know of users.
const NOT_YET: [&str; 4] = ["IDLE", "BUSY", "GPU TIME", "ENERGY"];

/// Prints the devices and the users, and on stderr what is broken.
pub(super) fn print(facts: &Facts<'_>) -> anyhow::Result<()> {
    let mut out = stdout();
    table(facts.grid(Tab::Devices)).write(&mut out)?;
    writeln!(out)?;
    table(NOT_YET.into_iter().fold(facts.grid(Tab::Users), Grid::without)).write(&mut out)?;
    drop(out);
    let hosts = facts.hosts;
    if facts.is_simulated() {
        print_note("values are simulated");
    }
    for trouble in facts.troubles() {
        print_note(&trouble);
    }
    match hosts.iter().filter(|it| !it.up).count() {
        0 => Ok(()),
        down if down == hosts.len() => Err(Failure::Silent(1).into()),
        _ => Err(Failure::Silent(Failure::SOME_HOSTS).into()),
    }
}

/// The columns other than graphs; on a terminal, those for which it has room.
fn table(grid: Grid) -> Table {
    let graphs = grid.columns.iter().filter(|it| matches!(it.form, Form::Graph(_)));
    let graphs: Vec<&'static str> = graphs.map(|it| it.name).collect();
    let grid = graphs.into_iter().fold(grid, Grid::without);
    let room = if io::stdout().is_terminal() { terminal_width() } else { usize::MAX };
    let layout = grid.layout(room, Table::GAP, None);
    let names: Vec<&'static str> = layout.iter().map(|(position, _)| grid.columns[*position].name).collect();
    let mut table = Table::new(&names);
    for row in &grid.rows {
        let cells = layout.iter().map(|(position, width)| {
            let value = &row.values[*position];
            let mut text = value.text.clone();
            fit(&mut text, *width);
            let cell = Cell::own(text).style(value.style);
            if grid.columns[*position].form == Form::Number { cell.right() } else { cell }
        });
        table.row(cells.collect::<Vec<_>>());
    }
    table
}
