//! A driver whose answers contradict each other, or which cannot answer all questions.

use std::path::Path;

use anyhow::{Result, ensure};
use genv_tests::exporter::{Exporter, Setup};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::{Simulation, library};
use genv_tests::patience;
use genv_tests::process::{self, Sleeper};
use genv_tests::state::{self, Environment};
use rustix::process::getuid;
use serde_json::Value;

use crate::faults::started;

/// Two devices, of which an environment's process uses the first, with these faults of that.
fn used(pid: u32, faults: &str) -> String {
    format!(
        "version: 1\nhosts:\n- devices: [{{faults: [{faults}]}}, {{}}]\n\
         \x20 processes: [{{pid: {pid}, devices: [{{index: 0, memory: 1gi, utilization: 0.5}}]}}]\n"
    )
}

/// An exporter of a machine whose environment 7 holds device 0.
fn with_a_holder(simulation: &Simulation, pid: u32) -> Result<Exporter> {
    let setup = Setup::with_driver(simulation)?;
    let environment = Environment::new("7", getuid().as_raw(), pid, &[0]);
    state::write(&setup.folder().join("state"), 2, &[environment])?;
    setup.start()
}

/// What a command of genv prints about the same machine.
pub(crate) fn genv(simulation: &Simulation, exporter: &Exporter, words: &[&str]) -> Result<String> {
    printed(simulation, exporter, &process::program("genv")?, words)
}

fn printed(simulation: &Simulation, exporter: &Exporter, program: &Path, words: &[&str]) -> Result<String> {
    let mut command = simulation.command(program);
    command.args(words).env_remove("GENV_DEVICES");
    command.env("GENV_NVML_LIBRARY", library());
    command.env("GENV_TMPDIR", exporter.folder().join("state"));
    let output = patience::output(&mut command)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

const COUNTS: [&str; 4] = ["genv_processes", "genv_user_processes", "genv_environment_processes", "genv_users"];

#[test]
fn processes_are_not_known_and_no_device_is_free_while_a_list_of_them_fails() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let simulation = Simulation::new(&used(process.pid(), ""));
    let exporter = with_a_holder(&simulation, process.pid())?;
    let seen = |scrape: &Scrape| scrape.all("genv_device_processes", &[]).len() == 6;
    exporter.wait_for("all processes", seen)?;
    let utilized = [("index", "0"), ("state", "idle")];
    let idle = |scrape: &Scrape| scrape.value("genv_user_device_seconds_total", &utilized);

    for error in ["unknown", "not_supported"] {
        let fault = format!("{{wrong: nvmlDeviceGetComputeRunningProcesses, error: {error}}}");
        simulation.rewrite(&used(process.pid(), &fault));
        let untold = |scrape: &Scrape| {
            let success = scrape.value("genv_collector_success", &[("collector", "gpu")]);
            scrape.all("genv_device_processes", &[]).len() == 3 && success.ok() == Some(1.0)
        };
        let scrape = exporter.wait_for("an unknown device", untold)?;
        ensure!(scrape.value("genv_device_available", &[("index", "1")])? == 1.0);
        // Its holder could have processes there; the other device is counted.
        ensure!(scrape.all("genv_environment_processes", &[]).is_empty());
        ensure!(scrape.all("genv_user_processes", &[]).is_empty());
        let before = idle(&scrape)?;
        let later = exporter.next_collection("gpu")?;
        ensure!(idle(&later)? == before, "{error}: a holder is idle");
        let who = genv(&simulation, &exporter, &["who", "0"])?;
        ensure!(who.contains("it is unknown which processes use it"), "{who}");
        ensure!(!who.contains("No process"), "{who}");
        let who = genv(&simulation, &exporter, &["who", "0", "--json"])?;
        let who: Value = serde_json::from_str(&who)?;
        ensure!(who["processes"].is_null(), "{who}");

        simulation.rewrite(&used(process.pid(), ""));
        exporter.wait_for("all processes again", seen)?;
    }

    let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
    ensure!(free.trim_end().ends_with(" free"), "{free}");
    let lists = "{wrong: [nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, \
        nvmlDeviceGetMPSComputeRunningProcesses], error: unknown}";
    simulation.rewrite(&format!("{}  faults: [{lists}]\n", used(process.pid(), "")));
    let scrape = exporter.wait_for("no count", |scrape| COUNTS.iter().all(|name| scrape.all(name, &[]).is_empty()))?;
    ensure!(scrape.all("genv_device_available", &[("index", "1")]).is_empty());
    let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
    ensure!(free.contains("not known") && !free.contains(" free"), "{free}");
    // It can be attached all the same.
    let json: Value = serde_json::from_str(&genv(&simulation, &exporter, &["free", "--json"])?)?;
    ensure!(json["devices"][0]["available"] == true, "{json}");
    ensure!(json["devices"][0]["processes"].is_null(), "{json}");
    Ok(())
}

#[test]
fn a_device_in_use_without_a_process_is_not_free() -> Result<()> {
    let device = |used: &str| {
        format!("version: 1\nhosts:\n- environments: []\n  devices: [{{memory: 40gi{used}}}, {{memory: 40gi}}]\n")
    };
    let simulation = Simulation::new(&device(", memory_used: 20gi"));
    let exporter = started(&simulation)?;
    let available = |scrape: &Scrape, index| {
        let told = scrape.all("genv_device_available", &[("index", index)]);
        told.first().map(|(_, available)| *available)
    };
    let unknown = exporter.wait_for("an unknown device", |scrape| {
        scrape.all("genv_device_up", &[]).len() == 2
            && scrape.all("genv_device_processes", &[("index", "0")]).is_empty()
            && available(scrape, "1") == Some(1.0)
    })?;
    ensure!(available(&unknown, "0").is_none());
    let log = exporter.log();
    ensure!(log.matches("value=\"processes\"").count() == 1, "{log}");

    simulation.rewrite(&device(""));
    exporter.wait_for("an empty device", |scrape| available(scrape, "0") == Some(1.0))?;
    // A command looks once: a device that works without a process is not known to be free, and comes last.
    for (used, how, position) in [(", utilization: 0.9", "not known", 1), (", utilization: 0.05", "free", 0)] {
        simulation.rewrite(&device(used));
        let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
        let line = free.lines().nth(position).unwrap_or_default();
        ensure!(line.starts_with("0 ") && line.ends_with(how), "{used}: {free}");
    }
    Ok(())
}

#[test]
fn a_gpu_in_mig_mode_without_mig_devices_is_not_free_and_commands_say_why() -> Result<()> {
    // The driver finds no MIG device of the first.
    let simulation = Simulation::new(
        "version: 1\nhosts:\n- environments: []\n  devices: [{mig: [{profile: 1g.10gb, memory: 10gi}], \
         faults: [{wrong: nvmlDeviceGetMigDeviceHandleByIndex, error: not_found}]}, {}]\n",
    );
    let exporter = started(&simulation)?;
    exporter.wait_for("a GPU in MIG mode", |scrape| {
        let available = |index| scrape.all("genv_device_available", &[("index", index)]).first().map(|told| told.1);
        available("0") == Some(0.0) && available("1") == Some(1.0)
    })?;
    let reason = "device 0 is in MIG mode without MIG devices, and runs no CUDA program";
    let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
    ensure!(free.starts_with("1 ") && free.contains(reason), "{free}");
    let doctor = genv(&simulation, &exporter, &["doctor"])?;
    ensure!(doctor.contains(reason), "{doctor}");
    let who = genv(&simulation, &exporter, &["who", "0"])?;
    ensure!(who.contains(reason), "{who}");
    let overview = format!("stty cols 200; {} devices --color never", process::program("genv")?.display());
    let on_a_terminal = ["--quiet", "--return", "--command", overview.as_str(), "/dev/null"];
    let devices = printed(&simulation, &exporter, Path::new("script"), &on_a_terminal)?;
    ensure!(devices.contains("MIG, not split") && devices.contains(reason), "{devices}");
    Ok(())
}
