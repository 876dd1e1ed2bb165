//! A GPU that is taken out of a running machine: the GPUs behind it change their indices.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, sleeper, victim};
use genv_tests::metrics::Scrape;
use genv_tests::state::{self, Environment};

use crate::faults::{enforcer_of, exporter_beside, plans_nothing};

const RULES: &str = "version: 1\nmode: dry-run\ninterval: 1s\nrules:\n\
    - {kind: idle, over: 2s, action: detach, warn: []}\n\
    - {kind: env-devices, action: terminate, warn: []}\n";

/// The GPUs of a driver with this session number, and a process that uses one of them.
fn scenario(gpus: &[&str], loaded: u32, pid: u32, index: u32, busy: f64) -> String {
    let devices = gpus.iter().map(|uuid| format!("  - {{uuid: {uuid}, memory: 80gi}}\n"));
    format!(
        "version: 1\nhosts:\n- devices:\n{}  processes:\n\
         \x20 - {{pid: {pid}, devices: [{{index: {index}, memory: 20gi, utilization: {busy}}}]}}\n\
         \x20 faults: [{{reload: {loaded}}}]\n",
        devices.collect::<String>()
    )
}

fn plans_nothing_for_long(enforcer: &Enforcer) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        enforcer.wait_for_cycles(1)?;
        plans_nothing(enforcer)?;
    }
    Ok(())
}

#[test]
fn nobody_is_judged_by_the_gpu_that_came_to_an_index_that_was_attached() -> Result<()> {
    let member = sleeper(&[])?;
    let job = sleeper(&[("GENV_ENVIRONMENT_ID", "held")])?;
    let setup = enforcer_of(RULES)?;
    let environment =
        Environment { pids: vec![member.pid(), job.pid()], ..Environment::new("held", victim(), job.pid(), &[1]) };
    state::write(&setup.genv_directory(), 3, &[environment])?;
    setup.rewrite_scenario(&scenario(&["GPU-A", "GPU-B", "GPU-C"], 0, job.pid(), 1, 0.9))?;
    let exporter = exporter_beside(&setup)?.flag("--interval=500ms").start()?;
    let enforcer = setup.start()?;
    let seconds = |scrape: &Scrape, state| {
        let labels = [("index", "1"), ("state", state)];
        scrape.value("genv_user_device_seconds_total", &labels).unwrap_or_default()
    };
    exporter.wait_for("a busy device", |scrape| seconds(scrape, "busy") > 1.0)?;
    plans_nothing_for_long(&enforcer)?;

    // The job computes on the GPU that has index 0 now.
    let moved = scenario(&["GPU-B", "GPU-C"], 1, job.pid(), 0, 0.9);
    enforcer.setup().rewrite_scenario(&moved)?;
    let uuid = [("index", "1"), ("uuid", "GPU-C")];
    exporter.wait_for("the other GPU", |scrape| scrape.value("genv_device_up", &uuid).is_ok())?;
    plans_nothing_for_long(&enforcer)?;
    let enforcer = enforcer.kill()?.start()?;
    plans_nothing_for_long(&enforcer)?;
    let scrape = exporter.wait_for("unmeasured time", |it| seconds(it, "unmeasured") > 5.0)?;
    ensure!(seconds(&scrape, "idle") == 0.0);
    let used = [("index", "1")];
    ensure!(scrape.all("genv_environment_utilization_ratio", &used).is_empty());

    // The GPU is back, and the holder is idle.
    let back = scenario(&["GPU-A", "GPU-B", "GPU-C"], 2, job.pid(), 1, 0.0);
    enforcer.setup().rewrite_scenario(&back)?;
    enforcer.wait_for_status("an idle holder", |status| status["violations"][0]["rule"] == "idle")?;
    exporter.wait_for("idle time", |scrape| seconds(scrape, "idle") > 0.0)?;
    Ok(())
}
