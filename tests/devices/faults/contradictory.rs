//! A utilization that nothing explains.

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;

#[test]
fn a_utilization_without_a_process_and_memory_is_contradictory_after_a_time_and_until_it_ends() -> Result<()> {
    let device = |utilization: &str| {
        format!("version: 1\nhosts:\n- environments: []\n  devices: [{{memory: 40gi, utilization: {utilization}}}]\n")
    };
    let simulation = Simulation::new(&device("0.9"));
    let exporter = Setup::with_driver(&simulation)?.flag("--gpu.contradictory-after=1s").start()?;
    let shows = |wanted: f64| {
        move |scrape: &Scrape| {
            let value = scrape.value("genv_device_contradictory", &[("index", "0")]);
            value.is_ok_and(|value| value == wanted)
        }
    };
    exporter.wait_for("a contradictory device", shows(1.0))?;
    simulation.rewrite(&device("0.05"));
    exporter.wait_for("a device at rest", shows(0.0))?;
    let log = exporter.log();
    for line in ["the measurement is stuck", "no longer contradicts"] {
        ensure!(log.matches(line).count() == 1, "{line}: {log}");
    }
    Ok(())
}
