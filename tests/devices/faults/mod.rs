//! Drivers that fail, through the simulated NVML library.

mod contradictory;
mod driver;
mod evidence;
mod matrix;
mod moved;
mod readings;
mod wrong_answers;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{self, Enforcer};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::{Simulation, library};

/// Two devices of a driver, with further keys of the host and of its first device.
fn two_devices(of_host: &str, of_device: &str) -> String {
    format!(
        "version: 1\n\
         hosts:\n\
         - environments: []\n\
         \x20 devices:\n\
         \x20 - {{memory: 40gi, utilization: 0.5{of_device}}}\n\
         \x20 - {{memory: 40gi, utilization: 0.5}}\n\
         \x20 {of_host}\n"
    )
}

fn gpu_works(scrape: &Scrape) -> bool {
    let success = scrape.value("genv_collector_success", &[("collector", "gpu")]);
    success.is_ok_and(|success| success == 1.0)
        && scrape.all("genv_device_utilization_ratio", &[]).len() == 2
        && scrape.all("genv_device_up", &[]).iter().all(|(_, up)| *up == 1.0)
}

/// No value of a device is told, and the collector says that it failed, while the others go on.
fn gpu_is_withdrawn(scrape: &Scrape) -> bool {
    let success = |collector| scrape.value("genv_collector_success", &[("collector", collector)]).unwrap_or(f64::NAN);
    success("gpu") == 0.0
        && success("processes") == 1.0
        && success("state") == 1.0
        && scrape.all("genv_device_up", &[]).iter().all(|(_, up)| *up == 0.0)
        && ["utilization_ratio", "memory_used_bytes", "power_watts"]
            .iter()
            .all(|measurement| scrape.all(&format!("genv_device_{measurement}"), &[]).is_empty())
}

fn timestamp(scrape: &Scrape, collector: &str) -> Result<f64> {
    scrape.value("genv_collector_timestamp_seconds", &[("collector", collector)])
}

fn started(simulation: &Simulation) -> Result<Exporter> {
    Setup::with_driver(simulation)?.flag("--snapshot.max-age=1s").start()
}

/// An enforcer of a driver.
fn enforcer_of(rules: &str) -> Result<enforcer::Setup> {
    let setup = enforcer::Setup::new("version: 1\n", rules)?;
    Ok(setup.env("GENV_NVML_LIBRARY", &library().to_string_lossy()).flag("--gpu.source=nvml"))
}

/// An exporter of the same driver, scenario and state.
fn exporter_beside(enforcer: &enforcer::Setup) -> Result<Setup> {
    let setup = Setup::new()?.flag("--gpu.source=nvml").env("GENV_NVML_LIBRARY", library());
    let setup = setup.env("GENV_SCENARIO", enforcer.folder().join("scenario.yaml"));
    Ok(setup.env("GENV_TMPDIR", enforcer.genv_directory()))
}

/// Nobody breaks a rule, and nothing was done.
fn plans_nothing(enforcer: &Enforcer) -> Result<()> {
    let status = enforcer.status()?;
    let violations = status["violations"].as_array().context("no violations")?;
    ensure!(violations.is_empty(), "{violations:?}");
    let audit = enforcer.audit()?;
    ensure!(!audit.iter().any(|line| line.get("rule").is_some()), "{audit:?}");
    Ok(())
}
