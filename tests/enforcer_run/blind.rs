//! What the enforcer says while it sees nothing.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends_outsiders, is_alive, sleeper};
use genv_tests::nvml_sim::used_by;
use genv_tests::state;
use serde_json::Value;

/// Waits until this source is blind, or is not any more, and everything says so.
fn is_blind(enforcer: &Enforcer, source: &str, blind: bool) -> Result<()> {
    let named = |status: &Value| {
        let all = status["blind"].as_array().cloned().unwrap_or_default();
        all.iter().any(|it| it["source"] == source)
    };
    let status = enforcer.wait_for_status(source, |status| named(status) == blind)?;
    enforcer.wait_for_metrics("the metric says so", |scrape| {
        let all = scrape.all("genv_enforcer_blind", &[("source", source)]);
        all.iter().any(|(_, value)| (*value == 1.0) == blind)
    })?;
    let ready = if blind { 503 } else { 200 };
    genv_tests::patience::until("it is ready, or not", || {
        Ok(enforcer.get("/-/ready")?.status == ready)
    })?;
    assert_eq!(enforcer.get("/-/healthy")?.status, 200);
    let said = enforcer.setup().said(&["status"])?;
    ensure!(said.contains("Blind") == blind, "{said}");
    if blind {
        ensure!(!said.contains("Nobody breaks a rule"), "{said}");
        ensure!(
            status["blind"][0]["since_seconds"].as_f64() > Some(0.0),
            "{status:#}"
        );
        let log = enforcer.log();
        ensure!(log.contains("the enforcer is blind"), "{log}");
    }
    Ok(())
}

#[test]
fn a_source_that_shows_nothing_is_told_everywhere_and_seen_again() -> Result<()> {
    let healthy = used_by(&[]);
    let config = ends_outsiders("enforce", "for: 0s, warn: []");
    let setup = Setup::new(&healthy, &config)?;
    let genv = setup.genv_directory();
    state::write(&genv, 2, &[])?;
    let enforcer = setup.start()?;
    for source in ["gpu", "state"] {
        is_blind(&enforcer, source, false)?;
    }
    // A link in the place of the file, and the file again.
    let envs = genv.join("envs.json");
    fs::rename(&envs, genv.join("kept"))?;
    symlink("/dev/null", &envs)?;
    is_blind(&enforcer, "state", true)?;
    fs::rename(genv.join("kept"), &envs)?;
    is_blind(&enforcer, "state", false)?;
    // The directory is gone: nobody is outside of an environment for that.
    let process = sleeper(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    fs::rename(&genv, enforcer.setup().folder().join("away"))?;
    is_blind(&enforcer, "state", true)?;
    enforcer
        .setup()
        .rewrite_scenario(&used_by(&[process.pid()]))?;
    enforcer.wait_for_cycles(5)?;
    ensure!(is_alive(process.pid()), "{}", enforcer.log());
    enforcer.setup().rewrite_scenario(&healthy)?;
    fs::rename(enforcer.setup().folder().join("away"), &genv)?;
    is_blind(&enforcer, "state", false)?;
    // The driver hangs.
    let hanging = format!("{healthy}  faults: [{{hang: all}}]\n");
    enforcer.setup().rewrite_scenario(&hanging)?;
    is_blind(&enforcer, "gpu", true)?;
    enforcer.setup().rewrite_scenario(&healthy)?;
    is_blind(&enforcer, "gpu", false)
}

#[test]
fn without_a_driver_one_look_says_that_it_is_blind() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    let config = format!("--config={}", setup.config().display());
    let mut command = setup.command(&["run", "--once", "--gpu.source=nvml", &config])?;
    command.env_remove("GENV_SCENARIO").env(
        "GENV_NVML_LIBRARY",
        setup.folder().join("no-such-library.so"),
    );
    let output = genv_tests::patience::output(&mut command)?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(said.contains("Blind      gpu of"), "{said}");
    ensure!(!said.contains("Nobody breaks a rule"), "{said}");
    Ok(())
}
