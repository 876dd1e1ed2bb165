//! What one user can do to slow the enforcer for all: hold the lock of genv's state, write thousands of records, start many
//! processes.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, as_victim, ends, ends_outsiders, sleeper, victim};
use genv_tests::lease::lease;
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::{Running, Sleeper};
use genv_tests::state::{self, Environment};
use serde_json::Value;

use crate::run::taking_both;

#[test]
fn who_holds_the_lock_is_named_and_stops_nothing_but_detaches() -> Result<()> {
    holds_the_lock("--exclusive")
}

#[test]
fn who_shares_the_lock_with_others_is_named_too() -> Result<()> {
    holds_the_lock("--shared")
}

fn holds_the_lock(how: &str) -> Result<()> {
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
    flock.args(["--no-fork", how]).arg(&lock).args(["sleep", "1000000"]);
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
    let attachments = || -> Result<usize> {
        let devices: Value = serde_json::from_slice(&fs::read(genv.join("devices.json"))?)?;
        let devices = devices["devices"].as_array().context("no devices")?;
        let held = devices.iter().filter_map(|it| it["attachments"].as_array());
        Ok(held.map(Vec::len).sum())
    };
    until("the devices are taken", || Ok(attachments()? == 0))?;
    enforcer.wait_for_status("no holder is named", |status| !named(status))?;
    enforcer.wait_for_metrics("the lock is not held", |scrape| {
        scrape.value("genv_enforcer_state_lock_held", &[]).ok() == Some(0.0)
    })?;
    Ok(())
}

#[test]
fn what_is_no_lock_stops_no_detach() -> Result<()> {
    stops_no_detach(|lock| Ok(fs::create_dir_all(lock.join("x"))?))
}

#[test]
fn a_lease_on_the_lock_stops_no_detach() -> Result<()> {
    stops_no_detach(lease)
}

/// Checks that the enforcer takes devices despite the planted obstacle in the place of `genv.lock`.
fn stops_no_detach<T>(plant: impl FnOnce(&Path) -> Result<T>) -> Result<()> {
    let (setup, _member) = taking_both("")?;
    let genv = setup.genv_directory();
    let _planted = plant(&genv.join("genv.lock"))?;
    let enforcer = setup.start()?;
    until("the devices are taken", || {
        let devices: Value = serde_json::from_slice(&fs::read(genv.join("devices.json"))?)?;
        let devices = devices["devices"].as_array().context("no devices")?;
        Ok(devices.iter().all(|it| it["attachments"] == serde_json::json!([])))
    })
    .with_context(|| enforcer.log())?;
    ensure!(enforcer.log().contains("genv.lock is no lock"), "{}", enforcer.log());
    Ok(())
}

#[test]
fn records_that_no_user_needs_slow_nothing_and_are_named_once() -> Result<()> {
    let (member, others) = (sleeper(&[])?, sleeper(&[])?);
    let process = sleeper(&[("GENV_ENVIRONMENT_ID", "mine")])?;
    let setup = Setup::new(
        &used_by(&[process.pid()]),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\n\
         rules:\n- {kind: env-devices, action: terminate, for: 0s, warn: []}\n\
         - {kind: max-age, limit: 365d, action: detach, warn: [1m]}\n",
    )?;
    // The last record is the one whose process breaks a rule: its device is another.
    let mut all: Vec<Environment> =
        (0..5000).map(|number| Environment::new(&format!("e{number:05}"), victim(), others.pid(), &[1])).collect();
    all.push(Environment::new("mine", victim(), member.pid(), &[1]));
    state::write(&setup.genv_directory(), 2, &all)?;
    let enforcer = setup.start()?;
    ends(process.pid())?;
    let too_many = |status: &Value| -> Vec<Value> {
        let violations = status["violations"].as_array().cloned();
        let violations = violations.unwrap_or_default().into_iter();
        violations.filter(|it| it["rule"] == "(too many)").collect()
    };
    let status = enforcer.wait_for_status("it is a violation", |status| {
        too_many(status).len() == 1 && status["violations"].as_array().map(Vec::len) == Some(1)
    })?;
    let found = too_many(&status)[0]["found"].to_string();
    ensure!(found.contains("has 5,001 records of environments"), "{found}");
    assert_eq!(status["disputed_records_total"], 0);
    enforcer.wait_for_cycles(2)?;
    // Metrics, log, audit, report and `genv why` have one violation too.
    let scrape = enforcer.scrape()?;
    let counted = scrape.all("genv_enforcer_violations", &[("rule", "(too many)")]);
    assert_eq!(counted.iter().map(|it| it.1).collect::<Vec<_>>(), [1.0]);
    assert_eq!(enforcer.log().matches("5,001 records").count(), 1);
    let audit = enforcer.audit()?;
    let reported: Vec<_> = audit.iter().filter(|it| it["action"] == "report").collect();
    assert_eq!(reported.len(), 1, "{audit:?}");
    let setup = enforcer.setup();
    let report = setup.said(&["report"])?;
    ensure!(report.contains("(too many)"), "{report}");
    let folder = setup.state_directory();
    let user = format!("uid:{}", victim());
    let words = ["why", "--user", &user, "--state-directory"];
    let mut why = setup.program("genv", &words)?;
    let why = genv_tests::patience::output(why.arg(&folder))?;
    let why = String::from_utf8(why.stdout)?;
    assert_eq!(why.matches("5,001 records").count(), 1, "{why}");
    Ok(())
}

#[test]
fn of_many_processes_of_a_user_log_and_audit_have_some_and_how_many_there_are() -> Result<()> {
    let processes: Vec<_> = (0..150).map(|_| sleeper(&[])).collect::<Result<_>>()?;
    let pids: Vec<u32> = processes.iter().map(Sleeper::pid).collect();
    let config = ends_outsiders("dry-run", "for: 0s, warn: []");
    let enforcer = Setup::new(&used_by(&pids), &config)?.start()?;
    let status = enforcer.wait_for_status("all are found", |status| {
        let all = status["violations"].as_array();
        all.is_some_and(|it| it.iter().any(|it| it["rule"] == "(too many)"))
    })?;
    assert_eq!(status["violations"].as_array().map(Vec::len), Some(101));
    // On a busy machine the driver's answer may be late, and such a cycle counts no violation.
    enforcer.wait_for_metrics("all are counted", |scrape| {
        let of_rule = scrape.all("genv_enforcer_violations", &[("rule", "non-env-processes")]);
        of_rule.iter().map(|it| it.1).sum::<f64>() == 150.0
    })?;
    let log = enforcer.log();
    // Half of the lines report a broken rule, and half report the pending action.
    let lines = log.matches("rule=\"non-env-processes\"").count();
    assert_eq!(lines, 20, "{log}");
    ensure!(log.contains("and 280 more of this user"), "{log}");
    let audit = enforcer.audit()?;
    let with_pid = audit.iter().filter(|it| it["pid"].is_u64()).count();
    let more: Vec<_> = audit.iter().filter_map(|it| it["more"].as_u64()).collect();
    assert_eq!((with_pid, &more[..]), (20, &[130][..]), "{audit:?}");
    let report = enforcer.setup().said(&["report", "--json"])?;
    let report: Value = serde_json::from_str(&report)?;
    let rows = report["rows"].as_array().into_iter().flatten();
    let mut of_rule = rows.filter(|it| it["rule"] == "non-env-processes");
    let would = of_rule.next().map(|it| &it["would"]);
    assert_eq!(would, Some(&Value::from(150)), "{report:#}");
    Ok(())
}
