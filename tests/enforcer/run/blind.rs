use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, ends_outsiders, is_alive, sleeper, sleeper_of, victim};
use genv_tests::nvml_sim::{library, used_by};
use genv_tests::patience::until;
use genv_tests::state;
use serde_json::{Value, json};

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
    until("it is ready, or not", || Ok(enforcer.get("/-/ready")?.status == ready))?;
    assert_eq!(enforcer.get("/-/healthy")?.status, 200);
    // On a busy machine a cycle may miss an answer of /proc, too.
    let mut said = String::new();
    until("the status says so", || {
        said = enforcer.setup().said(&["status"])?;
        Ok(said.contains("Blind") == blind)
    })
    .with_context(|| enforcer.log())?;
    if blind {
        ensure!(!said.contains("Nobody breaks a rule"), "{said}");
        ensure!(status["blind"][0]["since_seconds"].as_f64() > Some(0.0), "{status:#}");
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
    let file = genv.join(state::FILE);
    fs::rename(&file, genv.join("kept"))?;
    symlink("/dev/null", &file)?;
    is_blind(&enforcer, "state", true)?;
    fs::rename(genv.join("kept"), &file)?;
    is_blind(&enforcer, "state", false)?;
    // No file, and the file again.
    fs::rename(&file, genv.join("kept"))?;
    is_blind(&enforcer, "state", true)?;
    fs::rename(genv.join("kept"), &file)?;
    is_blind(&enforcer, "state", false)?;
    // The directory is gone: nobody is outside of an environment for that.
    let process = sleeper(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    fs::rename(&genv, enforcer.setup().folder().join("away"))?;
    is_blind(&enforcer, "state", true)?;
    enforcer.setup().rewrite_scenario(&used_by(&[process.pid()]))?;
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

fn why(setup: &Setup) -> Result<String> {
    let directory = setup.state_directory().display().to_string();
    let mut why = setup.program("genv", &["why", "--state-directory", &directory])?;
    Ok(String::from_utf8(genv_tests::patience::output(&mut why)?.stdout)?)
}

/// Waits until `genv-enforcer status` and `genv why` print these parts. On a busy machine a cycle may miss an answer.
fn prints(enforcer: &Enforcer, in_status: &[&str], in_why: &[&str]) -> Result<()> {
    let mut printed = [String::new(), String::new()];
    until("both print these parts", || {
        printed = [enforcer.setup().said(&["status"])?, why(enforcer.setup())?];
        let has = |text: &str, parts: &[&str]| parts.iter().all(|part| text.contains(part));
        Ok(has(&printed[0], in_status) && has(&printed[1], in_why))
    })
    .with_context(|| format!("{in_status:?}, {in_why:?}: {printed:?}"))
}

#[test]
fn what_is_shown_in_part_only_is_said_and_the_host_is_judged_by_the_rest() -> Result<()> {
    let hidden_on = |devices: &[u8]| {
        let device = |gpu: u8| match devices.contains(&gpu) {
            true => "{faults: [{not_supported: [processes]}]}",
            false => "{}",
        };
        format!("version: 1\nhosts:\n- devices: [{}, {}]\n", device(0), device(1))
    };
    let setup = Setup::new(&hidden_on(&[]), "version: 1\nrules: [{kind: idle}]\n")?;
    let genv = setup.genv_directory();
    state::write(&genv, 2, &[])?;
    let enforcer = setup.start()?;
    prints(&enforcer, &["Nobody breaks a rule."], &["breaks no rule"])?;

    for (devices, what, ready) in [
        (&[1][..], "the processes on device 1 are not known", 200),
        (&[0, 1], "the processes on devices 0 and 1 are not known", 503),
    ] {
        enforcer.setup().rewrite_scenario(&hidden_on(devices))?;
        let unknown = "Who breaks a rule is not known: the enforcer is blind: devices of";
        let in_why = ["It is unknown whether", "the enforcer is blind"];
        prints(&enforcer, &["Blind      devices of", what, unknown], &in_why)?;
        until("it is ready, or not", || Ok(enforcer.get("/-/ready")?.status == ready))?;
    }
    enforcer.setup().rewrite_scenario(&hidden_on(&[]))?;
    prints(&enforcer, &["Nobody breaks a rule."], &[])?;

    // More records of a user than are read.
    let record = |number: u32| json!({"eid": format!("crowd-{number}"), "uid": victim() + 1, "members": []});
    state::edit(&genv, |state| {
        state["environments"] = (0..9_000).map(record).collect();
        Ok(())
    })?;
    prints(&enforcer, &["Blind      records of"], &[])?;
    until("it is ready", || Ok(enforcer.get("/-/ready")?.status == 200))?;
    state::write(&genv, 2, &[])?;
    prints(&enforcer, &["Nobody breaks a rule."], &[])?;
    let log = enforcer.log();
    ensure!(log.matches("the enforcer sees the source again").count() >= 2, "{log}");
    Ok(())
}

#[test]
fn while_a_process_is_unknown_or_the_enforcer_has_ended_it_is_not_known_who_breaks_a_rule() -> Result<()> {
    let hidden = sleeper_of(victim(), &[])?;
    let setup = Setup::new(&used_by(&[hidden.pid()]), &ends_outsiders("enforce", "for: 0s, warn: []"))?;
    state::write(&setup.genv_directory(), 2, &[])?;
    let enforcer = setup.start()?;
    let unknown = "Nobody is known to break a rule. Of 1 unknown process it cannot be told.";
    // On a busy machine a cycle may miss an answer of /proc.
    let says_so = || Ok(enforcer.setup().said(&["status"])?.contains(unknown));
    until(unknown, says_so).with_context(|| enforcer.log())?;
    // By this metric the alert GenvUserProcessesUnknown fires.
    let user = genv_core::proc::username(victim());
    enforcer.wait_for_metrics("an unknown process", |scrape| {
        scrape.value("genv_enforcer_unknown_user_processes", &[("username", &user)]).is_ok_and(|it| it == 1.0)
    })?;
    enforcer.wait_for_cycles(2)?;
    ensure!(is_alive(hidden.pid()), "{}", enforcer.log());

    let (_, setup) = enforcer.terminate()?;
    // A day passes.
    let path = setup.state_directory().join("status.json");
    let mut status: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let ended = status["updated_timestamp_seconds"].as_f64().unwrap_or_default();
    status["updated_timestamp_seconds"] = (ended - 86_400.0).into();
    fs::write(&path, status.to_string())?;
    let said = setup.said(&["status"])?;
    let not_known = "is not known: the enforcer has ended or hangs";
    ensure!(said.contains(not_known), "{said}");
    ensure!(!said.contains("Nobody"), "{said}");
    let why = why(&setup)?;
    ensure!(why.contains("It is unknown whether") && !why.contains("breaks no rule"), "{why}");
    Ok(())
}

#[test]
fn no_process_is_ended_by_a_list_that_contradicts_its_device_however_absurd() -> Result<()> {
    for gibibytes in [10_u64, 400] {
        let process = sleeper(&[])?;
        let scenario = |fault: &str| {
            format!(
                "version: 1\nhosts:\n- devices: [{{count: 2, memory: 24gi, memory_used: 6gi, faults: [{fault}]}}]\n\
                 \x20 processes: [{{pid: {}, devices: [{{index: 1, memory: 1gi}}]}}]\n",
                process.pid()
            )
        };
        let amount = gibibytes << 30;
        let fault = format!("{{wrong: nvmlDeviceGetComputeRunningProcesses, number: {amount}}}");
        let setup = Setup::new(&scenario(&fault), &ends_outsiders("enforce", "for: 0s, warn: []"))?
            .env("GENV_NVML_LIBRARY", &library().to_string_lossy())
            .flag("--gpu.source=nvml");
        state::write(&setup.genv_directory(), 2, &[])?;
        let enforcer = setup.start()?;
        enforcer.wait_for_status("unknown processes", |status| {
            let blind = status["blind"].to_string();
            // Device 0 holds memory without a process, and may be blind too.
            blind.contains("processes on device 1 are") || blind.contains("processes on devices 0 and 1 are")
        })?;
        enforcer.wait_for_cycles(5)?;
        ensure!(is_alive(process.pid()), "{gibibytes} GiB: {}", enforcer.log());
        // The truth is acted upon.
        enforcer.setup().rewrite_scenario(&scenario(""))?;
        ends(process.pid())?;
    }
    Ok(())
}

#[test]
fn without_a_driver_one_look_says_that_it_is_blind() -> Result<()> {
    let setup = Setup::new(&used_by(&[]), "version: 1\nrules: []\n")?;
    let mut command = setup.command(&["run", "--once", "--gpu.source=nvml", &setup.config_flag()])?;
    command.env_remove("GENV_SCENARIO").env("GENV_NVML_LIBRARY", setup.folder().join("no-such-library.so"));
    let output = genv_tests::patience::output(&mut command)?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(said.contains("Blind      gpu of"), "{said}");
    ensure!(!said.contains("Nobody breaks a rule"), "{said}");
    Ok(())
}
