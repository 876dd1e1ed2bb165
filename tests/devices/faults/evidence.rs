//! A driver whose answers contradict each other, or which cannot answer all questions.

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
pub(crate) fn with_a_holder(simulation: &Simulation, pid: u32) -> Result<Exporter> {
    let setup = Setup::with_driver(simulation)?;
    let environment = Environment::new("7", getuid().as_raw(), pid, &[0]);
    state::write(&setup.folder().join("state"), 2, &[environment])?;
    setup.start()
}

/// What a command of genv prints about the same machine.
pub(crate) fn genv(simulation: &Simulation, exporter: &Exporter, words: &[&str]) -> Result<String> {
    let mut command = simulation.command(&process::program("genv")?);
    command.args(words).env_remove("GENV_DEVICES");
    command.env("GENV_NVML_LIBRARY", library());
    command.env("GENV_TMPDIR", exporter.folder().join("state"));
    let output = patience::output(&mut command)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
}

const COUNTS: [&str; 3] = ["genv_processes", "genv_user_processes", "genv_environment_processes"];

#[test]
fn processes_are_not_known_while_the_list_of_those_that_compute_fails() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let simulation = Simulation::new(&used(process.pid(), ""));
    let exporter = with_a_holder(&simulation, process.pid())?;
    let seen = |scrape: &Scrape| scrape.all("genv_device_processes", &[]).len() == 6;
    exporter.wait_for("all processes", seen)?;
    let utilized = [("index", "0"), ("state", "idle")];
    let idle = |scrape: &Scrape| scrape.value("genv_user_device_seconds_total", &utilized);

    for error in ["unknown", "timeout", "no_permission", "not_supported"] {
        let fault = format!("{{wrong: nvmlDeviceGetComputeRunningProcesses, error: {error}}}");
        simulation.rewrite(&used(process.pid(), &fault));
        let untold = |scrape: &Scrape| scrape.all("genv_device_processes", &[]).len() == 3;
        let scrape = exporter.wait_for("an unknown device", untold)?;
        let success = scrape.value("genv_collector_success", &[("collector", "gpu")])?;
        ensure!(success == 1.0, "the driver answers otherwise");
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
    Ok(())
}

#[test]
fn no_count_is_told_and_no_device_is_free_while_no_list_can_be_read() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let simulation = Simulation::new(&used(process.pid(), ""));
    let exporter = with_a_holder(&simulation, process.pid())?;
    let told = |scrape: &Scrape| COUNTS.iter().all(|name| !scrape.all(name, &[]).is_empty());
    exporter.wait_for("counts", told)?;
    let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
    ensure!(free.trim_end().ends_with(" free"), "{free}");

    let lists = "{wrong: [nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, \
        nvmlDeviceGetMPSComputeRunningProcesses], error: unknown}";
    simulation.rewrite(&format!("{}  faults: [{lists}]\n", used(process.pid(), "")));
    let scrape = exporter.wait_for("no count", |scrape| COUNTS.iter().all(|name| scrape.all(name, &[]).is_empty()))?;
    ensure!(scrape.all("genv_users", &[]).is_empty());
    ensure!(scrape.all("genv_device_available", &[("index", "1")]).is_empty());
    let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
    ensure!(free.contains("not known") && !free.contains(" free"), "{free}");
    // It can be attached all the same.
    let json: Value = serde_json::from_str(&genv(&simulation, &exporter, &["free", "--json"])?)?;
    ensure!(json["devices"][0]["available"] == true, "{json}");
    ensure!(json["devices"][0]["processes"].is_null(), "{json}");

    simulation.rewrite(&used(process.pid(), ""));
    exporter.wait_for("counts again", told)?;
    Ok(())
}

#[test]
fn no_process_is_counted_for_the_holder_of_a_lost_device_nor_while_all_are_lost() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let scenario = |lost: &str| used(process.pid(), "").replace("{}]", lost);
    let simulation = Simulation::new(&used(process.pid(), ""));
    let exporter = with_a_holder(&simulation, process.pid())?;
    let counted = |scrape: &Scrape, name: &str| !scrape.all(name, &[]).is_empty();
    let all = |scrape: &Scrape| COUNTS.iter().all(|name| counted(scrape, name));
    exporter.wait_for("counts", all)?;
    let is_down = |scrape: &Scrape, index: &str| scrape.value("genv_device_up", &[("index", index)]).ok() == Some(0.0);

    // The device that no environment holds.
    simulation.rewrite(&scenario("{faults: [{lost: true}]}]"));
    let lost = exporter.wait_for("a lost device", |scrape| is_down(scrape, "1"))?;
    ensure!(all(&lost), "the other device's processes are known");
    // The device of the environment.
    simulation.rewrite(&used(process.pid(), "{lost: true}"));
    let lost = exporter.wait_for("a lost device", |scrape| is_down(scrape, "0") && !is_down(scrape, "1"))?;
    ensure!(counted(&lost, "genv_processes"));
    ensure!(!counted(&lost, "genv_environment_processes"));
    ensure!(!counted(&lost, "genv_user_processes"));
    let both = used(process.pid(), "{lost: true}").replace("{}]", "{faults: [{lost: true}]}]");
    simulation.rewrite(&both);
    let lost = exporter.wait_for("no device", |scrape| is_down(scrape, "0") && is_down(scrape, "1"))?;
    for name in COUNTS {
        ensure!(!counted(&lost, name), "{name}");
    }

    simulation.rewrite(&used(process.pid(), ""));
    exporter.wait_for("counts again", all)?;
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
            && available(scrape, "0").is_none()
            && available(scrape, "1") == Some(1.0)
    })?;
    ensure!(unknown.all("genv_device_processes", &[("index", "0")]).is_empty());
    let log = exporter.log();
    ensure!(log.matches("pid namespace").count() == 1, "{log}");

    simulation.rewrite(&device(""));
    exporter.wait_for("an empty device", |scrape| available(scrape, "0") == Some(1.0))?;
    // A command looks once: a device that works without a process is not known to be free.
    for (used, how) in [(", utilization: 0.9", "not known"), (", utilization: 0.05", "free")] {
        simulation.rewrite(&device(used));
        let free = genv(&simulation, &exporter, &["free", "--no-header"])?;
        let line = free.lines().next().unwrap_or_default();
        ensure!(line.starts_with("0 ") && line.ends_with(how), "{used}: {free}");
    }
    Ok(())
}

#[test]
fn a_split_device_whose_parts_cannot_all_be_asked_is_not_free() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let split = |fault: &str| {
        format!(
            "version: 1\nhosts:\n- environments: []\n\
             \x20 devices: [{{mig: [{{profile: 3g.40gb, memory: 40gi}}], faults: [{fault}]}}]\n\
             \x20 processes: [{{pid: {}, devices: [{{index: \"0:0\", memory: 1gi}}]}}]\n",
            process.pid()
        )
    };
    let simulation = Simulation::new(&split(""));
    let exporter = started(&simulation)?;
    let used = |scrape: &Scrape| {
        let parts = scrape.all("genv_device_processes", &[("index", "0:0")]);
        parts.len() == 3 && scrape.value("genv_device_available", &[]).is_ok_and(|it| it == 0.0)
    };
    for (call, wrong) in [
        ("nvmlDeviceGetMigMode", "error: unknown"),
        ("nvmlDeviceGetMaxMigDeviceCount", "error: unknown"),
        ("nvmlDeviceGetMaxMigDeviceCount", "number: 4000000000"),
        ("nvmlDeviceGetMigDeviceHandleByIndex", "error: unknown"),
        ("nvmlDeviceGetMigDeviceHandleByIndex", "error: invalid_argument"),
        // The GPU seems to have no MIG devices.
        ("nvmlDeviceGetMigDeviceHandleByIndex", "error: not_found"),
        ("nvmlDeviceGetMaxMigDeviceCount", "number: 0"),
        ("nvmlDeviceGetComputeRunningProcesses", "error: no_permission"),
        ("nvmlDeviceGetGraphicsRunningProcesses", "count: 4000000000"),
    ] {
        exporter.wait_for("a process on a part", used)?;
        simulation.rewrite(&split(&format!("{{wrong: {call}, {wrong}}}")));
        for _ in 0..2 {
            let scrape = exporter.next_collection("gpu")?;
            let available = scrape.all("genv_device_available", &[]);
            ensure!(available.iter().all(|(_, it)| *it == 0.0), "{call}, {wrong}: {available:?}");
        }
        simulation.rewrite(&split(""));
    }
    exporter.wait_for("a process on a part again", used)?;
    Ok(())
}

/// Faults of two calls, of which neither alone hides whether a process works.
const TOGETHER: [&str; 4] = [
    "{wrong: nvmlDeviceGetUtilizationRates, error: unknown}, {wrong: nvmlDeviceGetProcessUtilization, error: not_found}",
    "{wrong: nvmlDeviceGetUtilizationRates, number: 200}, {wrong: nvmlDeviceGetProcessUtilization, error: not_found}",
    "{wrong: nvmlDeviceGetUtilizationRates, error: unknown}, {wrong: nvmlDeviceGetProcessUtilization, number: 0}",
    "{wrong: nvmlDeviceGetUtilizationRates, number: 0}, {wrong: nvmlDeviceGetProcessUtilization, error: not_found}, \
     {wrong: nvmlDeviceGetMPSComputeRunningProcesses, error: unknown}",
];

#[test]
fn a_process_is_unmeasured_where_two_calls_hide_together_whether_it_works() -> Result<()> {
    let process = Sleeper::start(&[("PATH", "/bin")])?;
    let simulation = Simulation::new(&used(process.pid(), ""));
    let exporter = with_a_holder(&simulation, process.pid())?;
    let ratio = |scrape: &Scrape| {
        let ratios = scrape.all("genv_process_utilization_ratio", &[]);
        ratios.first().map(|(_, ratio)| *ratio)
    };
    let works = |scrape: &Scrape| ratio(scrape) == Some(0.5);
    for faults in TOGETHER {
        exporter.wait_for("a process at work", works)?;
        simulation.rewrite(&used(process.pid(), faults));
        for _ in 0..3 {
            let ratio = ratio(&exporter.next_collection("gpu")?);
            ensure!(ratio.is_none_or(|it| it == 0.5), "{ratio:?}: {faults}");
        }
        exporter.wait_for("an unmeasured process", |scrape| ratio(scrape).is_none())?;
        simulation.rewrite(&used(process.pid(), ""));
    }
    let scrape = exporter.wait_for("a process at work", works)?;
    let idle = scrape.all("genv_user_device_seconds_total", &[("state", "idle")]);
    ensure!(idle.iter().all(|(_, seconds)| *seconds == 0.0), "{idle:?}");
    Ok(())
}

#[test]
fn the_exporter_asks_again_for_what_a_device_could_not_answer_at_first() -> Result<()> {
    let device = |faults: &str| {
        format!("version: 1\nhosts:\n- environments: []\n  devices: [{{fans: [0.5], faults: [{faults}]}}]\n")
    };
    let names =
        "[nvmlDeviceGetName, nvmlDeviceGetMinorNumber, nvmlDeviceGetNumFans, nvmlDeviceGetTemperatureThreshold]";
    for wrong in ["error: unknown", "error: timeout", "number: 4294967295"] {
        let simulation = Simulation::new(&device(&format!("{{wrong: {names}, {wrong}}}")));
        let exporter = started(&simulation)?;
        exporter.wait_for("a device", |scrape| scrape.all("genv_device_utilization_ratio", &[]).len() == 1)?;
        simulation.rewrite(&device(""));
        exporter.wait_for("all of the device", |scrape| {
            let info = scrape.all("genv_device_info", &[]);
            info.iter().all(|(labels, _)| !labels["name"].is_empty() && !labels["minor"].is_empty())
                && scrape.all("genv_device_fan_speed_ratio", &[]).len() == 1
                && !scrape.all("genv_device_temperature_limit_celsius", &[]).is_empty()
        })?;
    }
    Ok(())
}
