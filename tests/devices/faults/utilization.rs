//! What a driver says of the use of processes, and the device contradicts.

use anyhow::{Result, ensure};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::Sleeper;

use crate::faults::evidence::with_a_holder;

/// A device whose driver tells 1 % of the only process that works on it.
#[test]
fn a_process_is_unmeasured_where_its_device_shows_more_than_all_processes() -> Result<()> {
    let processes = [Sleeper::start(&[])?, Sleeper::start(&[])?];
    let [works, rests] = [processes[0].pid(), processes[1].pid()];
    let scenario = |faults: &str| {
        format!(
            "version: 1\nhosts:\n- devices: [{{utilization: 0.95, faults: [{faults}]}}, {{}}]\n  processes:\n\
             \x20 - {{pid: {works}, devices: [{{index: 0, memory: 1gi, utilization: 0.95}}]}}\n\
             \x20 - {{pid: {rests}, devices: [{{index: 0, memory: 1gi, utilization: 0}}]}}\n"
        )
    };
    let simulation = Simulation::new(&scenario(""));
    let exporter = with_a_holder(&simulation, works)?;
    let ratios = |scrape: &Scrape| scrape.all("genv_process_utilization_ratio", &[]).len();
    exporter.wait_for("both processes", |scrape| ratios(scrape) == 2)?;
    simulation.rewrite(&scenario("{wrong: nvmlDeviceGetProcessUtilization, number: 1}"));
    let first = exporter.wait_for("no ratio", |scrape| ratios(scrape) == 0)?;
    let idle = |scrape: &Scrape| scrape.value("genv_user_device_seconds_total", &[("index", "0"), ("state", "idle")]);
    let mut later = exporter.next_collection("gpu")?;
    for _ in 0..5 {
        ensure!(ratios(&later) == 0);
        later = exporter.next_collection("gpu")?;
    }
    ensure!(idle(&later)? == idle(&first)?, "the holder counts as idle by what the device contradicts");
    simulation.rewrite(&scenario(""));
    exporter.wait_for("both processes again", |scrape| ratios(scrape) == 2)?;
    Ok(())
}
