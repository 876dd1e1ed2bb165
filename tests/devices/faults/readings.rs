//! Values that cannot be.

use anyhow::{Result, ensure};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;
use genv_tests::process::Sleeper;
use serde_json::Value;

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
    for measurement in [
        "utilization_ratio",
        "memory_controller_busy_ratio",
        "encoder_utilization_ratio",
        "decoder_utilization_ratio",
        "memory_used_bytes",
        "memory_free_bytes",
        "temperature_celsius",
        "power_watts",
        "power_limit_watts",
        "clock_hertz",
        "throttled",
        "pcie_replays_total",
    ] {
        let told = wrong.all(&format!("genv_device_{measurement}"), &[("index", "0")]);
        ensure!(told.is_empty(), "{measurement}: {told:?}");
    }
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
fn memory_that_cannot_be_is_not_written_into_the_state() -> Result<()> {
    let wrong = "version: 1\nhosts:\n- devices: [{faults: [{wrong: nvmlDeviceGetMemoryInfo, \
        number: 18446744073709551615}]}]\n";
    let simulation = Simulation::new(wrong);
    let exporter = started(&simulation)?;
    genv(&simulation, &exporter, &["devices"])?;
    let text = std::fs::read_to_string(exporter.folder().join("state/devices.json"))?;
    let devices: Value = serde_json::from_str(&text)?;
    ensure!(devices["devices"][0]["total_memory"].is_null(), "{devices}");
    Ok(())
}

#[test]
fn a_sample_that_cannot_be_shows_no_other_process_to_be_idle() -> Result<()> {
    let processes = [Sleeper::start(&[])?, Sleeper::start(&[])?];
    let [works, rests] = [processes[0].pid(), processes[1].pid()];
    let scenario = |faults: &str| {
        format!(
            "version: 1\nhosts:\n- environments: []\n  devices: [{{faults: [{faults}]}}]\n  processes:\n\
             \x20 - {{pid: {works}, devices: [{{index: 0, memory: 1gi, utilization: 0.5}}]}}\n\
             \x20 - {{pid: {rests}, devices: [{{index: 0, memory: 1gi, utilization: 0}}]}}\n"
        )
    };
    let simulation = Simulation::new(&scenario(""));
    let exporter = started(&simulation)?;
    let ratios = |scrape: &Scrape| scrape.all("genv_process_utilization_ratio", &[]).len();
    exporter.wait_for("both processes", |scrape| ratios(scrape) == 2)?;
    for number in [101, 200, 0xFFFF_FFFF_u64] {
        let fault = format!("{{wrong: nvmlDeviceGetProcessUtilization, number: {number}}}");
        simulation.rewrite(&scenario(&fault));
        // Nothing that could be shows who keeps the device busy.
        exporter.wait_for("no ratio", |scrape| ratios(scrape) == 0)?;
        simulation.rewrite(&scenario(""));
        exporter.wait_for("both processes again", |scrape| ratios(scrape) == 2)?;
    }
    Ok(())
}
