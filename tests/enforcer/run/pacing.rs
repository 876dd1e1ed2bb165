//! How fast the enforcer acts, and what is a surprise to it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Enforcer, Setup, ends, ends_outsiders, is_alive, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};
use serde_json::Value;

/// Processes of a job: more than one user may lose in a cycle.
const JOB: usize = 21;

fn job(variables: &[(&str, &str)]) -> Result<(Vec<Sleeper>, Vec<u32>)> {
    let processes: Vec<_> = (0..JOB).map(|_| sleeper(variables)).collect::<Result<_>>()?;
    let pids = processes.iter().map(Sleeper::pid).collect();
    Ok((processes, pids))
}

/// Signals in the audit, each once.
fn signalled(enforcer: &Enforcer) -> Result<BTreeSet<u64>> {
    let audit = enforcer.audit()?.into_iter();
    let done = audit.filter(|line| line["result"] == "done" && line["action"] == "SIGTERM");
    let pids: Vec<u64> = done.filter_map(|line| line["pid"].as_u64()).collect();
    let distinct: BTreeSet<u64> = pids.iter().copied().collect();
    ensure!(distinct.len() == pids.len(), "one was signalled twice: {pids:?}");
    Ok(distinct)
}

fn is_paced(line: &Value) -> bool {
    line["reason"].as_str().is_some_and(|it| it.starts_with("paced"))
}

#[test]
fn a_job_of_many_processes_ends_over_cycles_and_stops_nothing() -> Result<()> {
    let (_processes, pids) = job(&[])?;
    let config = ends_outsiders("enforce", "for: 0s, warn: []")
        .replace("{share_of_users: 1}", "{share_of_users: 1, signals_per_minute: 32}");
    let enforcer = Setup::new(&used_by(&pids), &config)?.start()?;
    for pid in &pids {
        ends(*pid)?;
    }
    // The audit has how it went a moment after the process ended.
    until("all are in the audit", || Ok(signalled(&enforcer)?.len() == JOB))?;
    let paced = enforcer.audit()?.into_iter().filter(is_paced).count();
    // 12 are what one user may lose in a cycle.
    ensure!(paced == JOB - 12, "{paced}");
    let status = enforcer.status()?;
    ensure!(status["breaker"].is_null(), "{status:#}");
    Ok(())
}

/// An environment with device 0, a member, and a job of many processes that use the device.
struct Lab {
    enforcer: Enforcer,
    member: Sleeper,
    _processes: Vec<Sleeper>,
    pids: Vec<u32>,
}

impl Lab {
    /// With an enforcer that may send this many signals a minute, and this rule.
    fn new(signals_per_minute: u32, rule: &str) -> Result<Self> {
        let member = sleeper(&[])?;
        let (processes, pids) = job(&[("GENV_ENVIRONMENT_ID", "E")])?;
        let config = format!(
            "version: 1\nmode: enforce\n\
             breaker: {{share_of_users: 1, signals_per_minute: {signals_per_minute}}}\n\
             rules: [{{{rule}, action: detach, for: 0s, warn: []}}]\n"
        );
        let setup = Setup::new(&used_by(&pids), &config)?;
        let environment = Environment::new("E", victim(), member.pid(), &[0]);
        state::write(&setup.genv_directory(), 2, &[environment])?;
        Ok(Self { enforcer: setup.start()?, member, _processes: processes, pids })
    }

    /// Waits until processes wait, or do not wait any more, for their turn to end.
    fn wait_for_waiting(&self, some: bool) -> Result<()> {
        let left = self.enforcer.setup().state_directory().join("left.json");
        until("processes wait for their turn, or none does", || Ok(left.exists() == some))
    }

    /// Of the 8 signals and devices of a minute, one user may lose 6.
    fn ends_six_at_most(&self) -> Result<()> {
        self.wait_for_waiting(false)?;
        self.enforcer.wait_for_cycles(2)?;
        let alive = self.pids.iter().filter(|pid| is_alive(**pid)).count();
        ensure!(alive >= JOB - 6, "{alive}: {}", self.enforcer.log());
        Ok(())
    }
}

#[test]
fn a_device_is_taken_from_a_job_of_many_processes_and_they_end_over_cycles() -> Result<()> {
    let lab = Lab::new(32, "kind: max-devices-per-user, limit: 0")?;
    let enforcer = &lab.enforcer;
    for pid in &lab.pids {
        ends(*pid)?;
    }
    // The audit has how it went a moment after the process ended.
    until("all are in the audit", || Ok(signalled(enforcer)?.len() == JOB))?;
    ensure!(is_alive(lab.member.pid()));
    let devices = std::fs::read_to_string(enforcer.setup().genv_directory().join("devices.json"))?;
    ensure!(!devices.contains("\"E\""), "{devices}");
    let status = enforcer.status()?;
    ensure!(status["breaker"].is_null(), "{status:#}");
    Ok(())
}

#[test]
fn processes_that_wait_for_their_turn_go_on_where_their_rule_is_taken_out() -> Result<()> {
    let lab = Lab::new(8, "kind: max-devices-per-user, limit: 0")?;
    lab.wait_for_waiting(true)?;
    let config = "version: 1\nmode: enforce\nbreaker: {share_of_users: 1, signals_per_minute: 8}\nrules: []\n";
    lab.enforcer.setup().rewrite_config(config)?;
    lab.ends_six_at_most()
}

#[test]
fn processes_that_wait_for_their_turn_go_on_where_they_work_on_another_device_by_then() -> Result<()> {
    let rule = "kind: max-devices-per-user, limit: 0, match: {devices: [0]}";
    let lab = Lab::new(8, rule)?;
    lab.wait_for_waiting(true)?;
    let setup = lab.enforcer.setup();
    let environment = Environment::new("E", victim(), lab.member.pid(), &[1]);
    state::write(&setup.genv_directory(), 2, &[environment])?;
    // The remaining processes work together: each uses more than 5 %, and all use no more than the whole device.
    let left = || -> Vec<u32> {
        let pids = lab.pids.iter().copied();
        pids.filter(|pid| is_alive(*pid)).collect()
    };
    // The detach and five signals are six acts against the user.
    until("five have ended", || Ok(left().len() == JOB - 5))?;
    let works = "memory: 1gi}, {index: 1, memory: 1gi, utilization: 0.06}]";
    let works = used_by(&left()).replace("memory: 1gi}]", works);
    setup.rewrite_scenario(&works)?;
    lab.ends_six_at_most()
}
