//! A driver that is missing, or hangs as a whole.

use anyhow::{Result, ensure};
use genv_tests::exporter::Setup;
use genv_tests::footprint::Footprint;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::{self, Simulation};
use genv_tests::patience::until;

use crate::faults::{gpu_is_withdrawn, gpu_works, started, timestamp, two_devices};

#[test]
fn a_driver_that_is_installed_later_is_found() -> Result<()> {
    let simulation = Simulation::new(&two_devices("", ""));
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("libnvidia-ml.so.1");
    let exporter = Setup::with_driver(&simulation)?.env("GENV_NVML_LIBRARY", &library).start()?;
    let scrape = exporter.wait_for("a failed GPU collector", gpu_is_withdrawn)?;
    ensure!(scrape.all("genv_device_up", &[]).is_empty());
    // The first error may be that the reader has not answered yet.
    until("the log names the library", || Ok(exporter.log().contains(&*library.to_string_lossy())))?;

    std::os::unix::fs::symlink(nvml_sim::library(), &library)?;
    let scrape = exporter.wait_for("devices", gpu_works)?;
    ensure!(scrape.value("genv_host_simulated", &[])? == 0.0);
    Ok(())
}

#[test]
fn a_call_that_hangs_for_every_gpu_holds_up_neither_other_collectors_nor_memory() -> Result<()> {
    let simulation = Simulation::new(&two_devices("", ""));
    let exporter = started(&simulation)?;
    exporter.wait_for("devices", gpu_works)?;

    simulation.rewrite(&two_devices("faults: [{hang: nvmlDeviceGetTemperature}]", ""));
    let has_no_device = |scrape: &Scrape| scrape.all("genv_device_up", &[]).iter().all(|(_, up)| *up == 0.0);
    let hung = |scrape: &Scrape| scrape.value("genv_reader_restarts_total", &[("reason", "hang")]);
    exporter.wait_for("both GPUs held off", |scrape| {
        has_no_device(scrape) && hung(scrape).is_ok_and(|restarts| restarts >= 2.0)
    })?;

    // 30 more intervals, in which both are tried again.
    let before = Footprint::of(exporter.pid())?;
    let processes = timestamp(&exporter.scrape()?, "processes")?;
    let later = exporter.wait_for("30 more publications", |scrape| {
        timestamp(scrape, "processes").is_ok_and(|time| time > processes + 3.0)
    })?;
    ensure!(has_no_device(&later), "{}", exporter.log());
    ensure!(later.value("genv_host_up", &[])? == 1.0);
    let after = Footprint::of(exporter.pid())?;
    // The reader that tries them may have been counted the second time alone.
    ensure!(
        after.anonymous_bytes < before.anonymous_bytes + (8 << 20) && after.threads < before.threads + 10,
        "it grew during the hang from {before:?} to {after:?}"
    );

    simulation.rewrite(&two_devices("", ""));
    exporter.wait_for("devices again", gpu_works)?;
    Ok(())
}

#[test]
fn a_hung_driver_does_not_keep_the_exporter_from_stopping() -> Result<()> {
    let simulation = Simulation::new(&two_devices("", ""));
    let mut exporter = started(&simulation)?;
    exporter.wait_for("devices", gpu_works)?;
    simulation.rewrite(&two_devices("faults: [{hang: all}]", ""));
    exporter.wait_for("withdrawn values", gpu_is_withdrawn)?;
    let status = exporter.terminate()?;
    ensure!(status.success(), "{status}: {}", exporter.log());
    Ok(())
}
