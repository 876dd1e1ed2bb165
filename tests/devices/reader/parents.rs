//! The programs that read GPUs by a reader: exporter, enforcer and `genv remote-serve`.

use std::io::Write as _;
use std::process::Stdio;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use genv_core::model::{Device, DeviceIndex};
use genv_remote::protocol::Reply;
use genv_tests::enforcer::{self, ends, ends_outsiders, sleeper};
use genv_tests::exporter::{self, Exporter};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{Lines, until};
use genv_tests::process::{Running, Sleeper, children, program, signal};
use genv_tests::state;
use rustix::process::Signal;
use serde_json::Value;

use crate::reader::TEMPERATURE;
use crate::reader::faulty_driver::{DEVICES, FaultyDriver, SCENARIO, WHOLE};

fn exporter(driver: &FaultyDriver, simulation: &Simulation) -> Result<Exporter> {
    let setup = exporter::Setup::with_driver(simulation)?;
    let setup = driver.variables().into_iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let exporter = setup.start()?;
    exporter.wait_for("GPUs", |scrape| works(scrape) == (true, true))?;
    Ok(exporter)
}

/// Whether all devices but GPU 2 work, and whether GPU 2 works.
fn works(scrape: &Scrape) -> (bool, bool) {
    let up = |is_wanted: fn(&str) -> bool| {
        let devices = scrape.all("genv_device_up", &[]).into_iter().filter(|(labels, _)| is_wanted(&labels["index"]));
        devices.map(|(_, up)| up).collect::<Vec<_>>()
    };
    (up(|index| index != "2") == [1.0; DEVICES - 1], up(|index| index == "2") == [1.0])
}

/// The number of lines of a log that have all these words.
fn lines(log: &str, words: &[&str]) -> usize {
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

#[test]
fn a_reader_ends_with_its_exporter_also_within_a_call() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    for (end, hangs) in [(Signal::KILL, false), (Signal::KILL, true), (Signal::TERM, false), (Signal::TERM, true)] {
        driver.works();
        let exporter = exporter(&driver, &simulation)?;
        if hangs {
            driver.fails(TEMPERATURE, WHOLE, "hang");
        }
        let mut readers = Vec::new();
        until("there is a reader", || {
            readers = children(exporter.pid());
            let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Ok(readers.iter().any(|pid| !hangs || name(pid).trim() == "hangs"))
        })?;
        signal(exporter.pid(), end)?;
        for reader in readers {
            ends(reader).with_context(|| format!("{end:?}, hangs: {hangs}"))?;
        }
    }
    Ok(())
}

#[test]
fn an_exporter_shows_the_other_gpus_when_a_call_ends_its_reader() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    let exporter = exporter(&driver, &simulation)?;
    driver.fails(TEMPERATURE, WHOLE, "crash");
    let scrape = exporter.wait_for("a lost GPU", |scrape| works(scrape) == (true, false))?;
    ensure!(scrape.value("genv_reader_restarts_total", &[("reason", "signal")])? >= 1.0);
    for _ in 0..3 {
        ensure!(works(&exporter.next_collection("gpu")?) == (true, false), "{}", exporter.log());
    }
    driver.works();
    exporter.wait_for("all GPUs", |scrape| works(scrape) == (true, true))?;
    let log = exporter.log();
    assert_eq!(lines(&log, &["the GPU is held off", "gpu=2", TEMPERATURE, "SIGSEGV"]), 1, "{log}");
    assert_eq!(lines(&log, &["answer again", "gpus=[2]"]), 1, "{log}");
    Ok(())
}

#[test]
fn a_new_reader_neither_repeats_nor_forgets_xid_errors_and_another_driver_is_logged() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    let exporter = exporter(&driver, &simulation)?;
    let errors = |scrape: &Scrape| {
        let all = scrape.all("genv_device_xid_errors_total", &[("xid", "79")]);
        all.iter().map(|(_, errors)| errors).sum::<f64>()
    };
    // A reader knows the version from its beginning.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    let xid = format!("power: 412.5\n        xid: [{{xid: 79, at: {}ms}}]", now + 4000);
    simulation.rewrite(&SCENARIO.replace("power: 412.5", &xid).replace("550.163.01", "550.163.02"));
    exporter.wait_for("the XID error of three GPUs", |scrape| errors(scrape) == 3.0)?;
    for reader in children(exporter.pid()) {
        signal(reader, Signal::KILL)?;
    }
    let restarted = [("reason", "signal")];
    exporter.wait_for("another reader", |scrape| {
        scrape.value("genv_reader_restarts_total", &restarted).is_ok_and(|restarts| restarts == 1.0)
    })?;
    for _ in 0..3 {
        let scrape = exporter.next_collection("gpu")?;
        ensure!(works(&scrape) == (true, true) && errors(&scrape) == 3.0, "{}", exporter.log());
    }
    let log = exporter.log();
    assert_eq!(lines(&log, &["XID error ", "xid=79", "times=1"]), 3, "{log}");
    assert_eq!(lines(&log, &["another driver was loaded", "550.163.01", "550.163.02"]), 1, "{log}");
    Ok(())
}

#[test]
fn an_exporter_names_the_call_that_holds_the_drivers_lock() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    let exporter = exporter(&driver, &simulation)?;
    driver.fails(TEMPERATURE, WHOLE, "lock");
    until("the log names the call", || {
        Ok(lines(&exporter.log(), &["the driver hangs", &format!("GPU 2: {TEMPERATURE}")]) > 0)
    })
    .with_context(|| exporter.log())?;
    ensure!(exporter.scrape()?.value("genv_collector_success", &[("collector", "gpu")])? == 0.0);
    driver.works();
    exporter.wait_for("all GPUs", |scrape| works(scrape) == (true, true))?;
    Ok(())
}

#[test]
fn an_enforcer_freezes_what_it_knows_of_a_gpu_whose_call_ends_its_reader() -> Result<()> {
    let sleepers = [sleeper(&[])?, sleeper(&[])?];
    let [elsewhere, on_whole] = sleepers.each_ref().map(Sleeper::pid);
    let scenario = format!(
        "version: 1\nhosts:\n- devices: [{{count: 3, memory: 24gi}}]\n  processes:\n\
         \x20 - {{pid: {elsewhere}, devices: [{{index: 0, memory: 1gi}}]}}\n\
         \x20 - {{pid: {on_whole}, devices: [{{index: {WHOLE}, memory: 1gi}}]}}\n"
    );
    let setup =
        enforcer::Setup::new(&scenario, &ends_outsiders("enforce", "for: 1h, warn: []"))?.flag("--gpu.source=nvml");
    state::write(&setup.genv_directory(), 3, &[])?;
    let driver = FaultyDriver::beside(&setup.folder().join("scenario.yaml"));
    let setup = driver.variables().into_iter().fold(setup, |setup, (name, value)| {
        let value = value.to_string_lossy();
        setup.env(name, &value)
    });
    let enforcer = setup.start()?;
    let has = |violations: usize, frozen: usize| {
        move |status: &Value| {
            let number = |list: &str| status[list].as_array().map_or(0, Vec::len);
            (number("violations"), number("frozen")) == (violations, frozen)
        }
    };
    enforcer.wait_for_status("both are known", has(2, 0))?;
    driver.fails(TEMPERATURE, WHOLE, "crash");
    enforcer.wait_for_status("one is frozen", has(1, 1))?;
    driver.works();
    enforcer.wait_for_status("both are known again", has(2, 0))?;
    Ok(())
}

/// What `genv remote-serve` replies to a request, after its greeting.
fn serve(driver: &FaultyDriver, simulation: &Simulation, request: &str) -> Result<(Running, Lines)> {
    let mut command = simulation.command(&program("genv")?);
    command
        .args(["remote-serve", "--gpu.source=nvml"])
        .envs(driver.variables())
        .env("GENV_TMPDIR", simulation.scenario().with_file_name("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut serving = Running::spawn(&mut command)?;
    writeln!(serving.stdin.as_ref().context("no stdin")?, "{request}")?;
    let replies = Lines::of(serving.stdout.take().context("no stdout")?);
    replies.next_line()?;
    Ok((serving, replies))
}

/// As [`works`], of the next reply.
fn works_there(replies: &Lines) -> Result<(bool, bool)> {
    let Reply::Snapshot { snapshot } = serde_json::from_str(&replies.next_line()?)? else {
        bail!("no snapshot");
    };
    let (whole, others): (Vec<_>, Vec<_>) =
        snapshot.devices.iter().partition(|device| device.index == DeviceIndex::gpu(WHOLE));
    let up = |devices: &[&Device], number: usize| devices.len() == number && devices.iter().all(|device| device.up);
    Ok((up(&others, DEVICES - 1), up(&whole, 1)))
}

#[test]
fn remote_serve_sends_the_other_gpus_when_a_call_ends_its_reader() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    let (_serving, replies) = serve(&driver, &simulation, r#"{"request": "follow", "interval_seconds": 0.1}"#)?;
    until("all GPUs work", || Ok(works_there(&replies)? == (true, true)))?;
    driver.fails(TEMPERATURE, WHOLE, "crash");
    until("one GPU is lost", || Ok(works_there(&replies)? == (true, false)))?;
    driver.works();
    until("all GPUs work again", || Ok(works_there(&replies)? == (true, true)))
}

#[test]
fn remote_serve_sends_the_other_gpus_in_a_single_snapshot_while_a_call_hangs() -> Result<()> {
    let simulation = Simulation::new(SCENARIO);
    let driver = FaultyDriver::beside(&simulation.scenario());
    driver.fails(TEMPERATURE, WHOLE, "hang");
    until("the other GPUs are there", || {
        let (_serving, replies) = serve(&driver, &simulation, r#"{"request": "once"}"#)?;
        Ok(works_there(&replies)? == (true, false))
    })
}
