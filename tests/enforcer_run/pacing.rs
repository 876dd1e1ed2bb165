//! How fast the enforcer acts, and what is a surprise to it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, ends_outsiders, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use serde_json::Value;

/// More than the breaker once allowed anybody.
const JOB: usize = 21;

fn job(variables: &[(&str, &str)]) -> Result<(Vec<Sleeper>, Vec<u32>)> {
    let processes: Vec<_> = (0..JOB)
        .map(|_| sleeper(variables))
        .collect::<Result<_>>()?;
    let pids = processes.iter().map(Sleeper::pid).collect();
    Ok((processes, pids))
}

/// Signals in the audit, each once.
fn signalled(enforcer: &Enforcer) -> Result<BTreeSet<u64>> {
    let audit = enforcer.audit()?.into_iter();
    let done = audit.filter(|line| line["result"] == "done" && line["action"] == "SIGTERM");
    let pids: Vec<u64> = done.filter_map(|line| line["pid"].as_u64()).collect();
    let distinct: BTreeSet<u64> = pids.iter().copied().collect();
    ensure!(
        distinct.len() == pids.len(),
        "one was signalled twice: {pids:?}"
    );
    Ok(distinct)
}

fn is_paced(line: &Value) -> bool {
    line["reason"]
        .as_str()
        .is_some_and(|it| it.starts_with("paced"))
}

#[test]
fn a_job_of_many_processes_ends_over_cycles_and_stops_nothing() -> Result<()> {
    let (_processes, pids) = job(&[])?;
    let config = ends_outsiders("enforce", "for: 0s, warn: []").replace(
        "{share_of_users: 1}",
        "{share_of_users: 1, signals_per_minute: 32}",
    );
    let enforcer = Setup::new(&used_by(&pids), &config)?.start()?;
    for pid in &pids {
        ends(*pid)?;
    }
    // The audit has how it went a moment after the process ended.
    until("all are in the audit", || {
        Ok(signalled(&enforcer)?.len() == JOB)
    })?;
    let paced = enforcer.audit()?.into_iter().filter(is_paced).count();
    // 12 are what one user may lose in a cycle.
    ensure!(paced == JOB - 12, "{paced}");
    let status = enforcer.status()?;
    ensure!(status["breaker"].is_null(), "{status:#}");
    Ok(())
}

#[test]
fn a_device_is_taken_from_a_job_of_many_processes_and_they_end_over_cycles() -> Result<()> {
    let member = sleeper(&[])?;
    let (_processes, pids) = job(&[("GENV_ENVIRONMENT_ID", "E")])?;
    let config = "version: 1
mode: enforce
breaker: {share_of_users: 1, signals_per_minute: 32}
rules: [{kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}]
";
    let setup = Setup::new(&used_by(&pids), config)?;
    let environment = Environment::new("E", victim(), member.pid(), &[0]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let enforcer = setup.start()?;
    for pid in &pids {
        ends(*pid)?;
    }
    // The audit has how it went a moment after the process ended.
    until("all are in the audit", || {
        Ok(signalled(&enforcer)?.len() == JOB)
    })?;
    ensure!(is_alive(member.pid()));
    let devices = std::fs::read_to_string(enforcer.setup().genv_directory().join("devices.json"))?;
    ensure!(!devices.contains("\"E\""), "{devices}");
    let status = enforcer.status()?;
    ensure!(status["breaker"].is_null(), "{status:#}");
    Ok(())
}

#[test]
fn what_waits_for_its_turn_goes_on_where_its_rule_is_taken_out() -> Result<()> {
    let member = sleeper(&[])?;
    let (_processes, pids) = job(&[("GENV_ENVIRONMENT_ID", "E")])?;
    let config = "version: 1
mode: enforce
breaker: {share_of_users: 1, signals_per_minute: 8}
rules: [{kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}]
";
    let setup = Setup::new(&used_by(&pids), config)?;
    let environment = Environment::new("E", victim(), member.pid(), &[0]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    let enforcer = setup.start()?;
    let left = enforcer.setup().state_directory().join("left.json");
    until("some wait for their turn", || Ok(left.exists()))?;
    let (rules, _) = config.split_once("rules:").unwrap_or_default();
    enforcer
        .setup()
        .rewrite_config(&format!("{rules}rules: []\n"))?;
    until("nothing waits any more", || Ok(!left.exists()))?;
    enforcer.wait_for_cycles(2)?;
    // Of 8 signals and devices a minute, one user may lose 6.
    let alive = pids.iter().filter(|pid| is_alive(**pid)).count();
    ensure!(alive >= JOB - 6, "{alive}");
    Ok(())
}

#[test]
fn what_waits_for_its_turn_goes_on_where_it_works_on_another_device_by_then() -> Result<()> {
    let member = sleeper(&[])?;
    let (_processes, pids) = job(&[("GENV_ENVIRONMENT_ID", "E")])?;
    let config = "version: 1
mode: enforce
breaker: {share_of_users: 1, signals_per_minute: 8}
rules: [{kind: max-devices-per-user, limit: 0, match: {devices: [0]}, action: detach, for: 0s, warn: []}]
";
    let setup = Setup::new(&used_by(&pids), config)?;
    let environment = |gpu| Environment::new("E", victim(), member.pid(), &[gpu]);
    state::write(&setup.genv_directory(), 2, &[environment(0)])?;
    let enforcer = setup.start()?;
    let left = enforcer.setup().state_directory().join("left.json");
    until("some wait for their turn", || Ok(left.exists()))?;
    state::write(&enforcer.setup().genv_directory(), 2, &[environment(1)])?;
    let works = "memory: 1gi}, {index: 1, memory: 1gi, utilization: 0.05}]";
    let works = used_by(&pids).replace("memory: 1gi}]", works);
    enforcer.setup().rewrite_scenario(&works)?;
    until("nothing waits any more", || Ok(!left.exists()))?;
    enforcer.wait_for_cycles(2)?;
    // Of 8 signals and devices a minute, one user may lose 6.
    let alive = pids.iter().filter(|pid| is_alive(**pid)).count();
    ensure!(alive >= JOB - 6, "{alive}");
    Ok(())
}
