//! Values that cannot be.

use anyhow::{Result, ensure};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;
use genv_tests::state;

use crate::faults::evidence::genv;
use crate::faults::{started, two_devices};

#[test]
fn a_value_that_cannot_be_is_absent_counted_and_logged_once_and_charged_to_nobody() -> Result<()> {
    let all_bits = ", faults: [{wrong: all, number: 18446744073709551615}]";
    let simulation = Simulation::new(&two_devices("", ""));
    let exporter = started(&simulation)?;
    let joules = |scrape: &Scrape| {
        let first = [("index", "0")];
        scrape.value("genv_device_energy_joules_total", &first)
    };
    let rises = |from: f64| move |scrape: &Scrape| joules(scrape).is_ok_and(|now| now > from);
    exporter.wait_for("energy", rises(0.0))?;

    simulation.rewrite(&two_devices("", all_bits));
    let wrong = exporter.wait_for("distrusted readings", |scrape| {
        let readings = scrape.all("genv_device_distrusted_readings_total", &[("index", "0")]);
        readings.len() >= 9 && readings.iter().all(|(_, number)| *number > 2.0)
    })?;
    ensure!(wrong.all("genv_device_memory_used_bytes", &[("index", "0")]).is_empty());
    ensure!(wrong.all("genv_device_distrusted_readings_total", &[("index", "1")]).is_empty());

    simulation.rewrite(&two_devices("", ""));
    let back = exporter.wait_for("energy again", rises(joules(&wrong)?))?;
    // No device of 300 W used more since the test began.
    ensure!(joules(&back)? < 300.0 * 600.0, "{} J", joules(&back)?);
    let log = exporter.log();
    let lines = log.lines().filter(|line| line.contains("impossible value"));
    let of_energy = lines.filter(|line| line.contains("energy")).count();
    ensure!(of_energy == 1, "{log}");
    Ok(())
}

#[test]
fn a_list_that_fails_is_named_with_its_call_in_the_log_the_snapshot_and_by_doctor() -> Result<()> {
    let scenario =
        |faults: &str| format!("version: 1\nhosts:\n- environments: []\n  devices: [{{memory: 40gi{faults}}}]\n");
    let simulation = Simulation::new(&scenario(""));
    let exporter = started(&simulation)?;
    let is_known = |scrape: &Scrape| !scrape.all("genv_device_processes", &[]).is_empty();
    exporter.wait_for("a known device", is_known)?;
    simulation.rewrite(&scenario(", faults: [{wrong: nvmlDeviceGetComputeRunningProcesses, error: unknown}]"));
    let call = "nvmlDeviceGetComputeRunningProcesses_v3";
    let count = |message: &str| {
        let log = exporter.log();
        let lines = log.lines().filter(|line| line.contains(message) && line.contains("processes"));
        lines.map(|line| line.contains(call)).collect::<Vec<_>>()
    };
    exporter.wait_for("the beginning", |_| !count("a value is withheld").is_empty())?;
    for words in [["snapshot"], ["doctor"]] {
        let told = genv(&simulation, &exporter, &words)?;
        ensure!(told.contains(call), "{told}");
    }
    simulation.rewrite(&scenario(""));
    exporter.wait_for("the end", |_| !count("a value is no longer withheld").is_empty())?;
    ensure!(count("a value is withheld") == [true], "{}", exporter.log());
    Ok(())
}

#[test]
fn memory_that_cannot_be_is_not_written_into_the_state() -> Result<()> {
    let wrong = "version: 1\nhosts:\n- devices: [{faults: [{wrong: nvmlDeviceGetMemoryInfo, \
        number: 18446744073709551615}]}]\n";
    let simulation = Simulation::new(wrong);
    let exporter = started(&simulation)?;
    genv(&simulation, &exporter, &["devices"])?;
    let state = state::read(&exporter.folder().join("state"))?;
    let device = &state["devices"][0];
    ensure!(device["index"] == 0 && device["total_memory"].is_null(), "{state}");
    Ok(())
}
