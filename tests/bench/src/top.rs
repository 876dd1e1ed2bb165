//! How fast `genv top` starts, and what it costs.

use std::time::{Duration, Instant};

use anyhow::Result;
use genv_tests::process::{program, tree_cpu_seconds};
use genv_tests::terminal::DirectTerminal;

use crate::load::{LOAD, Load};
use crate::table::{Table, median, verdict};

const STARTS: usize = 21;
const START_BUDGET_SECONDS: f64 = 0.050;

/// How long its CPU is measured.
const WATCHED: Duration = Duration::from_secs(20);
/// The part of a core.
const CPU_BUDGET: f64 = 0.01;

pub(crate) fn table() -> Result<Table> {
    let load = Load::start(false)?;
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    load.write_state(&state)?;
    let start = || -> Result<(DirectTerminal, [f64; 2])> {
        let genv = load.genv(&program("genv")?, "top", &state);
        let began = Instant::now();
        let mut terminal = DirectTerminal::start(genv)?;
        terminal.wait("reading")?;
        let first = began.elapsed();
        // The model of the devices.
        terminal.wait("H100")?;
        Ok((terminal, [first, began.elapsed()].map(|it| it.as_secs_f64())))
    };
    let times = (0..STARTS).map(|_| start().map(|(_, times)| times)).collect::<Result<Vec<_>>>()?;
    let [first, facts] = [0, 1].map(|frame| median(times.iter().map(|it| it[frame]).collect()));

    let (mut terminal, _) = start()?;
    let (began, before) = (Instant::now(), tree_cpu_seconds(terminal.pid())?);
    while began.elapsed() < WATCHED {
        terminal.read()?;
    }
    let cpu = (tree_cpu_seconds(terminal.pid())? - before) / began.elapsed().as_secs_f64();

    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    table.cost("`genv top`, from its start to the first frame, without facts", first, None);
    table.cost(&format!("to the first frame with facts: {LOAD}"), facts, Some(START_BUDGET_SECONDS));
    let part = format!("{:.2} % of a core", cpu * 100.0);
    table.row(&[&"CPU of `genv top`, an update every 2 s", &part, &"1 % of a core", &verdict(cpu <= CPU_BUDGET)]);
    Ok(table)
}
