//! The reports in status, metrics and commands about signals that did not end a process, about ended processes that are
//! still listed, and about devices that cannot be judged.

use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, as_victim, ends, ends_outsiders, enforcing, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::{Sleeper, signal};
use genv_tests::state::{self, Environment};
use rustix::process::Signal;
use serde_json::{Value, json};

const AT_ONCE: &str = "for: 0s, warn: []";

fn has_stage(stage: &str) -> impl Fn(&Value) -> bool {
    move |status| status["violations"][0]["stage"] == stage
}

fn ensure_all(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

fn explained(enforcer: &Enforcer, pid: u32) -> Result<String> {
    enforcer.setup().said(&["explain", &pid.to_string()])
}

#[test]
fn a_stopped_process_is_ended_by_sigterm() -> Result<()> {
    let process = sleeper(&[])?;
    signal(process.pid(), Signal::STOP)?;
    let config = ends_outsiders("enforce", AT_ONCE);
    let _enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    ends(process.pid())
}

#[test]
fn a_process_that_ignores_sigterm_is_not_called_ended() -> Result<()> {
    let mut stubborn = Command::new("sh");
    stubborn.args(["-c", "trap '' TERM; while :; do sleep 0.05; done"]);
    let process = Sleeper::spawn(as_victim(&mut stubborn))?;
    let pid = process.pid();
    until("it ignores SIGTERM", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let ignored = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
        Ok(ignored.is_some_and(|it| it & (1 << 14) != 0))
    })?;
    let config = ends_outsiders("enforce", AT_ONCE);
    let enforcer = Setup::new(&used_by(&[pid]), &config)?.start()?;
    enforcer.wait_for_status("it is signalled", has_stage("acted"))?;
    let named = format!("still there: process {pid}");
    let status = enforcer.setup().said(&["status"])?;
    ensure_all(&status, &["SIGTERM was sent at", &named, "nothing more follows"])?;
    let explained = explained(&enforcer, pid)?;
    ensure_all(&explained, &["sent it a signal", "nothing more follows"])?;
    let report = enforcer.setup().said(&["report"])?;
    ensure_all(&report, &[&format!("sent SIGTERM to process {pid}")])?;
    for text in [status, explained, report] {
        for part in ["was ended", "ended process", "its time has come"] {
            ensure!(!text.contains(part), "{part}: {text}");
        }
    }
    ensure!(is_alive(pid));
    Ok(())
}

#[test]
fn a_process_that_was_ended_and_is_listed_still_freezes_nothing() -> Result<()> {
    let mut process = sleeper(&[])?;
    let config = ends_outsiders("enforce", AT_ONCE);
    // The driver goes on listing the process.
    let enforcer = Setup::new(&used_by(&[process.pid()]), &config)?.start()?;
    process.ended()?;
    let status = enforcer
        .wait_for_status("it is over", |status| status["violations"] == json!([]) && status["frozen"] == json!([]))?;
    enforcer.wait_for_cycles(3)?;
    assert_eq!(enforcer.status()?["frozen"], json!([]), "{status:#}");
    assert_eq!(status["unknown_processes"], json!({}), "{status:#}");
    Ok(())
}

#[test]
fn a_listed_process_that_ended_long_ago_hides_no_idle_device() -> Result<()> {
    let (holder, mut ended) = (sleeper(&[("GENV_ENVIRONMENT_ID", "e1")])?, sleeper(&[])?);
    let ended_pid = ended.pid();
    let scenario = format!(
        "version: 1\nhosts:\n- devices: [{{}}]\n  processes:\n\
         \x20 - {{pid: {}, devices: [{{index: 0, memory: 4gi, utilization: 0}}]}}\n\
         \x20 - {{pid: {ended_pid}, devices: [{{index: 0, memory: 1mi}}]}}\n",
        holder.pid()
    );
    signal(ended_pid, Signal::KILL)?;
    ended.ended()?;
    let rules = "- {kind: idle, over: 1s, action: detach, warn: []}\n";
    let setup = Setup::new(&scenario, &enforcing(rules))?;
    let environment = Environment::new("e1", victim(), holder.pid(), &[0]);
    state::write(&setup.genv_directory(), 1, &[environment])?;
    let _enforcer = setup.start()?;
    ends(holder.pid())
}

#[test]
fn a_device_of_which_no_use_is_measured_is_reported_as_not_judged() -> Result<()> {
    let process = sleeper(&[("GENV_ENVIRONMENT_ID", "e1")])?;
    let scenario = format!(
        "version: 1\nhosts:\n- devices: [{{faults: [{{not_supported: [process_utilization]}}]}}]\n\
         \x20 processes: [{{pid: {}, devices: [{{index: 0, memory: 4gi}}]}}]\n",
        process.pid()
    );
    let rules = "- {kind: idle, over: 1s, action: detach, warn: []}\n";
    let setup = Setup::new(&scenario, &enforcing(rules))?;
    let environment = Environment::new("e1", victim(), process.pid(), &[0]);
    state::write(&setup.genv_directory(), 1, &[environment])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("it is not judged", |status| status["not_judged"][0]["gpus"] == json!([0]))?;
    let status = enforcer.setup().said(&["status"])?;
    let why = "the utilization of device 0 is not measured";
    ensure_all(&status, &["Not judged by idle on ", why])?;
    ensure!(!status.contains("Nobody breaks a rule"), "{status}");
    let explained = explained(&enforcer, process.pid())?;
    ensure_all(&explained, &["idle (detach): not judged", why])?;
    ensure!(is_alive(process.pid()));
    Ok(())
}

#[test]
fn a_report_keeps_its_time() -> Result<()> {
    let process = sleeper(&[])?;
    let config = "version: 1\nmode: enforce\nrules:\n- {kind: non-env-processes, for: 0s}\n";
    let enforcer = Setup::new(&used_by(&[process.pid()]), config)?.start()?;
    let status = enforcer.wait_for_status("it is reported", has_stage("acted"))?;
    enforcer.wait_for_cycles(1)?;
    let reported = enforcer.status()?["violations"][0]["at_seconds"].clone();
    enforcer.wait_for_cycles(5)?;
    let later = enforcer.status()?["violations"][0]["at_seconds"].clone();
    assert_eq!(later, reported, "{status:#}");
    Ok(())
}
