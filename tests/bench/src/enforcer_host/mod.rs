//! The cost of the enforcer on one busy host: the whole daemon, and its parts.

mod busy;
mod daemon;
mod parts;

use std::time::Duration;

use anyhow::{Result, ensure};
use genv_core::model::Snapshot;
use genv_tests::enforcer::Setup;

use self::busy::Busy;
use self::daemon::Daemon;
use crate::load::{DEVICES, ENVIRONMENTS, PROCESSES};
use crate::table::{Table, median, milliseconds, verdict};

const INTERVAL: Duration = Duration::from_millis(100);
const CYCLES: u64 = 50;
const ROUNDS: usize = 5;
/// Cycles until windows are full and one-time messages are logged.
const CYCLES_BEFORE: usize = 100;
const BUDGET_SECONDS: f64 = 0.003;

const RULES: &str = "
version: 1
timezone: UTC
interval: 100ms
defaults: {for: 1s}
breaker: {share_of_users: 1}
rules:
- {kind: non-env-processes, action: terminate, warn: []}
- {kind: env-devices, action: warn}
- {kind: env-memory, action: warn}
- {kind: max-devices-per-user, limit: {default: 8, users: {somebody: 4, root: 4}}, action: warn}
- {kind: max-environments-per-user, limit: 200}
- {kind: max-processes-per-environment, limit: 4}
- {kind: max-memory-per-user, limit: 400gi, match: {except_users: [somebody]}}
- {kind: max-age, limit: 365d, when: {days: mon-sun}}
- {name: idle, kind: idle, below: 0.005, over: 5s, action: detach, warn: []}
- {name: idle-by-day, kind: idle, below: 0.001, over: 5s, when: {between: \"08:00-20:00\"}}
";

/// Measures the daemon, and then its parts with the same facts.
pub(crate) fn table() -> Result<Table> {
    let busy = Busy::start()?;
    let setup = Setup::new("version: 1\nhosts: []\n", RULES)?;
    busy.write_state(&setup.genv_directory())?;

    let mut daemon = Daemon::start(&setup, &busy)?;
    let (mut collecting, mut own) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let cycle = daemon.measure(&setup)?;
        collecting.push(cycle.collecting_seconds);
        own.push(cycle.own_seconds);
    }
    let status = daemon.status(&setup)?;
    drop(daemon);
    ensure!(status.faults.is_empty(), "faults: {:?}", status.faults);
    let snapshot = snapshot(&setup, &busy)?;
    ensure!((snapshot.devices.len(), snapshot.processes.len()) == (DEVICES, PROCESSES), "not all is seen");

    let (collecting, own) = (median(collecting), median(own));
    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    let load = format!(
        "{DEVICES} devices, {ENVIRONMENTS} environments on all of them, {PROCESSES} processes on all of them, {} rules, {} violations",
        status.config.rules.len(),
        status.violations.len()
    );
    table.row(&[
        &format!("CPU of one cycle on a busy host without the collection, history.json not being due: {load}"),
        &milliseconds(own),
        &milliseconds(BUDGET_SECONDS),
        &verdict(own <= BUDGET_SECONDS),
    ]);
    table.row(&[&"CPU of the collection of that", &milliseconds(collecting), &"", &""]);
    for (part, seconds) in parts::of_a_cycle(&snapshot)? {
        table.row(&[&format!("of the cycle: {part}"), &milliseconds(seconds), &"", &""]);
    }
    table.row(&[
        &"CPU of one deed: verification, two lines of audit, SIGTERM",
        &milliseconds(parts::of_a_deed()?),
        &"",
        &"",
    ]);
    Ok(table)
}

/// The current facts of the host, as the daemon reads them.
fn snapshot(setup: &Setup, busy: &Busy) -> Result<Snapshot> {
    let mut command = setup.program("genv", &["snapshot"])?;
    let output = command
        .env("GENV_NVML_LIBRARY", busy.simulation.library())
        .env("GENV_SCENARIO", busy.simulation.scenario())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "genv snapshot failed: {said}");
    Ok(serde_json::from_slice(&output.stdout)?)
}
