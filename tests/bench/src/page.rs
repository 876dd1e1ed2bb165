//! The page of a lab of many hosts in Debian's Chromium.

use anyhow::{Context as _, Result};
use genv_tests::browser::{Browser, lab_of};
use genv_tests::exporter::Setup;
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::until;
use serde_json::Value;

use crate::table::{Table, median, verdict};

const HOSTS: usize = 1000;
const ROUNDS: usize = 5;

const PAINT_BUDGET_SECONDS: f64 = 1.0;
const SIZE_BUDGET_BYTES: usize = 5_000_000;

pub(crate) fn table() -> Result<Table> {
    let simulation = Simulation::new(&lab_of(HOSTS));
    let exporter = Setup::with_scenario(&simulation)?.flag("--interval=10s").start()?;
    let paints: Vec<f64> = (0..ROUNDS).map(|_| first_paint_seconds(exporter.port())).collect::<Result<_>>()?;
    let bytes = exporter.get("/")?.body.len();

    let mut table = Table::new(&["what", "measured", "budget", "holds"]);
    let what = format!("first paint of the page of {HOSTS} hosts of 8 GPUs, in a new browser");
    table.cost(&what, median(paints), Some(PAINT_BUDGET_SECONDS));
    let size = format!("{:.2} MB", bytes as f64 / 1e6);
    table.row(&[&"size of that page, not compressed", &size, &"5 MB", &verdict(bytes <= SIZE_BUDGET_BYTES)]);
    Ok(table)
}

/// The time from the start of the request until the browser shows text
/// ([First Contentful Paint](https://w3c.github.io/paint-timing/)).
fn first_paint_seconds(port: u16) -> Result<f64> {
    let browser = Browser::open(1366, 768)?;
    browser.go(port, "/")?;
    let mut painted = Value::Null;
    until("the page is shown", || {
        painted = browser.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")?;
        Ok(!painted.is_null())
    })?;
    Ok(painted.as_f64().context("a time that is no number")? / 1e3)
}
