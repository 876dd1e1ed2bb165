//! How the cost of a collection grows.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use genv_tests::nvml_sim::Simulation;

use crate::measured::{Pace, Task};
use crate::table::{Table, median, milliseconds, verdict};

const DEVICES: &[usize] = &[1, 8, 16, 32, 48, 64];
const PROCESSES: &[usize] = &[0, 1000, 2500, 5000, 7500, 10_000];

const PACE: Pace = Pace { interval: Duration::from_millis(250), cycles: 8 };
const ROUNDS: usize = 3;

/// Measures along both axes. Linear means that one more costs about the same
/// in the upper half of the way as in the lower.
pub(crate) fn table() -> Result<Table> {
    let mut table =
        Table::new(&["grows", "CPU of one collection at each step", "slope of the upper half ÷ lower half", "linear"]);
    let devices = along(DEVICES, |devices| scenario(devices, 0), false)?;
    row(&mut table, "devices, through NVML", DEVICES, &devices);
    let processes = along(PROCESSES, |processes| scenario(8, processes), true)?;
    row(&mut table, "processes on 8 devices, simulated", PROCESSES, &processes);
    Ok(table)
}

fn along(steps: &[usize], scenario: impl Fn(usize) -> Result<String>, gpu_is_simulated: bool) -> Result<Vec<f64>> {
    steps
        .iter()
        .map(|&step| {
            let simulation = Simulation::new(&scenario(step)?);
            let task = Task::Collection {
                gpu_is_simulated,
                library: simulation.library(),
                scenario: simulation.scenario(),
                state_directory: PathBuf::from("/nonexistent/genv"),
                pace: PACE,
            };
            let rounds = (0..ROUNDS).map(|_| Ok(task.run(&simulation.scenario())?.cpu_seconds));
            Ok(median(rounds.collect::<Result<_>>()?))
        })
        .collect()
}

/// Processes each use one device, in 100 environments.
fn scenario(devices: usize, processes: usize) -> Result<String> {
    let mut scenario = String::from("version: 1\nusers: {somebody: 2001}\nhosts:\n- environments:\n");
    let environments = if processes == 0 { 0 } else { 100 };
    for number in 0..environments {
        let device = number % devices;
        writeln!(scenario, "  - {{eid: e{number}, user: somebody, devices: [{device}], gpu_memory: 1gi}}")?;
    }
    if environments == 0 {
        scenario.insert_str(scenario.len() - 1, " []");
    }
    writeln!(scenario, "  devices: [{{count: {devices}, memory: 80gi}}]\n  processes:")?;
    for number in 0..processes {
        let (device, environment, pid) = (number % devices, number % environments, number + 100_000);
        writeln!(
            scenario,
            "  - {{pid: {pid}, user: somebody, environment: e{environment}, devices: [{{index: {device}, memory: 8mi}}]}}"
        )?;
    }
    if processes == 0 {
        scenario.insert_str(scenario.len() - 1, " []");
    }
    Ok(scenario)
}

fn row(table: &mut Table, what: &str, steps: &[usize], seconds: &[f64]) {
    let slope = |from: usize, to: usize| (seconds[to] - seconds[from]) / (steps[to] - steps[from]) as f64;
    let (middle, last) = (steps.len() / 2, steps.len() - 1);
    let bend = slope(middle, last) / slope(0, middle);
    let shown: Vec<String> =
        steps.iter().zip(seconds).map(|(step, seconds)| format!("{step}: {}", milliseconds(*seconds))).collect();
    let linear = verdict(bend <= 1.5);
    table.row(&[&what, &shown.join(" · "), &format!("{bend:.2}"), &linear]);
}
