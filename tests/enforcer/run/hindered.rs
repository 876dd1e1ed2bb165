//! What one user can do to slow the enforcer for all: hold the lock of genv's state, start many processes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, as_victim, ends, ends_outsiders, sleeper};
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::{Running, Sleeper};
use genv_tests::state;
use serde_json::Value;

use crate::run::taking_both;

#[test]
fn who_holds_the_lock_is_named_and_stops_nothing_but_detaches() -> Result<()> {
    let outsider = sleeper(&[])?;
    let (setup, _member) = taking_both("- {kind: non-env-processes, action: terminate, for: 0s, warn: []}\n")?;
    let genv = setup.genv_directory();
    let lock = genv.join("genv.lock");
    fs::write(&lock, "")?;
    for (path, mode) in [(setup.folder(), 0o755), (lock.as_path(), 0o666)] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let mut flock = Command::new("flock");
    flock.args(["--no-fork", "--exclusive"]).arg(&lock).args(["sleep", "1000000"]);
    let mut holder = Running::spawn(as_victim(flock.stdin(Stdio::null())))?;
    let held = format!("process {} (sleep)", holder.id());
    until("it is held", || {
        let locks = fs::read_to_string("/proc/locks")?;
        let comm = fs::read_to_string(format!("/proc/{}/comm", holder.id()))?;
        Ok(locks.contains(&format!(" {} ", holder.id())) && comm == "sleep\n")
    })?;

    let enforcer = setup.start()?;
    let named = |status: &Value| status["faults"].to_string().contains(&held);
    let status = enforcer.wait_for_status("the holder is named", named)?;
    ensure!(status["violations"][0]["stage"] == "due", "{status:#}");
    let threads = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{}/task", enforcer.pid()))?.count()) };
    let before = threads()?;
    // Ends of processes go on.
    enforcer.setup().rewrite_scenario(&used_by(&[outsider.pid()]))?;
    ends(outsider.pid())?;
    enforcer.wait_for_cycles(20)?;
    // A few threads read for a moment.
    ensure!(threads()? <= before + 5, "a thread waits for each attempt");
    let scrape = enforcer.scrape()?;
    assert_eq!(scrape.value("genv_enforcer_state_lock_held", &[])?, 1.0);
    assert_eq!(enforcer.log().matches("a process holds the lock of genv's state").count(), 1);
    let intended = enforcer.audit()?;
    ensure!(intended.iter().all(|line| line["result"] != "intended" || line["action"] == "SIGTERM"), "{intended:?}");

    holder.kill()?;
    until("the devices are taken", || are_taken(&genv))?;
    enforcer.wait_for_status("no holder is named", |status| !named(status))?;
    enforcer.wait_for_metrics("the lock is not held", |scrape| {
        scrape.value("genv_enforcer_state_lock_held", &[]).ok() == Some(0.0)
    })?;
    Ok(())
}

fn are_taken(genv: &Path) -> Result<bool> {
    let state = state::read(genv)?;
    let devices = state["devices"].as_array().context("no devices")?;
    Ok(devices.iter().all(|it| it["attachments"].as_array().is_none_or(Vec::is_empty)))
}

#[test]
fn what_is_no_lock_stops_no_detach() -> Result<()> {
    let (setup, _member) = taking_both("")?;
    let genv = setup.genv_directory();
    fs::create_dir_all(genv.join("genv.lock/x"))?;
    let enforcer = setup.start()?;
    until("the devices are taken", || are_taken(&genv)).with_context(|| enforcer.log())?;
    ensure!(enforcer.log().contains("genv.lock is no lock"), "{}", enforcer.log());
    Ok(())
}

/// The number in a line of the log that counts what it does not name.
fn more_of_this_user(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" more of this user")?;
    before.rsplit(' ').next()
}

#[test]
fn of_many_processes_of_a_user_log_and_audit_have_some_and_how_many_there_are() -> Result<()> {
    let processes: Vec<_> = (0..150).map(|_| sleeper(&[])).collect::<Result<_>>()?;
    let pids: Vec<u32> = processes.iter().map(Sleeper::pid).collect();
    let rules = ends_outsiders("dry-run", "for: 0s, warn: []");
    let enforcer = Setup::new(&used_by(&pids), &rules)?.start()?;
    enforcer.wait_for_status("a hundred and the rest are named", |status| {
        let all = status["violations"].as_array();
        all.is_some_and(|it| it.len() == 101 && it.iter().any(|it| it["rule"] == "(too many)"))
    })?;
    let counted = |scrape: &Scrape, rule: &str| -> f64 {
        let of_rule = scrape.all("genv_enforcer_violations", &[("rule", rule)]);
        of_rule.iter().map(|it| it.1).sum()
    };
    enforcer.wait_for_metrics("all are counted", |scrape| {
        counted(scrape, "non-env-processes") == 150.0 && counted(scrape, "(too many)") == 1.0
    })?;
    // On a busy machine several cycles see them, each a part: each names twenty lines, and counts the rest.
    let log = enforcer.log();
    let lines = log.matches("rule=\"non-env-processes\"").count();
    let more: Vec<usize> = log.lines().filter_map(|line| more_of_this_user(line)?.parse().ok()).collect();
    // Each process has a line that it breaks a rule, and one of the action.
    ensure!(!more.is_empty() && lines >= 20 && lines + more.iter().sum::<usize>() == 300, "{log}");
    assert_eq!(log.matches("rule=\"(too many)\"").count(), 1, "{log}");
    let audit = enforcer.audit()?;
    let named = audit.iter().filter(|it| it["pid"].is_u64()).count() as u64;
    let more: Vec<u64> = audit.iter().filter_map(|it| it["more"].as_u64()).collect();
    ensure!(!more.is_empty() && named >= 20 && named + more.iter().sum::<u64>() == 150, "{audit:?}");
    assert_eq!(audit.iter().filter(|it| it["action"] == "report").count(), 1, "{audit:?}");
    let report = enforcer.setup().said(&["report", "--json"])?;
    let report: Value = serde_json::from_str(&report)?;
    for (rule, number) in [("non-env-processes", 150), ("(too many)", 1)] {
        let mut rows = report["rows"].as_array().into_iter().flatten();
        let would = rows.find(|it| it["rule"] == rule).map(|it| &it["would"]);
        assert_eq!(would, Some(&Value::from(number)), "{rule}: {report:#}");
    }
    Ok(())
}
