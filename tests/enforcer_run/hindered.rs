//! What one user can do to the work of all: hold the lock of genv's state, and write more records than anybody has.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{Setup, as_victim, ends, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::patience::until;
use genv_tests::process::Running;
use genv_tests::state::{self, Environment};
use serde_json::Value;

#[test]
fn who_holds_the_lock_is_named_and_stops_nothing_but_detaches() -> Result<()> {
    let member = sleeper(&[])?;
    let setup = Setup::new(
        &used_by(&[]),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\n\
         rules:\n- {kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}\n",
    )?;
    let genv = setup.genv_directory();
    let own = Environment::new("e1", victim(), member.pid(), &[0, 1]);
    state::write(&genv, 2, &[own])?;
    let lock = genv.join("genv.lock");
    fs::write(&lock, "")?;
    for (path, mode) in [(setup.folder(), 0o755), (lock.as_path(), 0o666)] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let mut flock = Command::new("flock");
    flock
        .args(["--no-fork"])
        .arg(&lock)
        .args(["sleep", "1000000"]);
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
    let threads =
        || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{}/task", enforcer.pid()))?.count()) };
    let before = threads()?;
    enforcer.wait_for_cycles(20)?;
    ensure!(threads()? <= before + 1, "a thread waits for each attempt");
    let scrape = enforcer.scrape()?;
    assert_eq!(scrape.value("genv_enforcer_state_lock_held", &[])?, 1.0);
    assert_eq!(
        enforcer
            .log()
            .matches("a process holds the lock of genv's state")
            .count(),
        1
    );
    let intended = enforcer.audit()?;
    ensure!(
        intended.iter().all(|line| line["result"] != "intended"),
        "{intended:?}"
    );

    holder.kill()?;
    let attachments = || -> Result<usize> {
        let devices: Value = serde_json::from_slice(&fs::read(genv.join("devices.json"))?)?;
        let devices = devices["devices"].as_array().context("no devices")?;
        let held = devices.iter().filter_map(|it| it["attachments"].as_array());
        Ok(held.map(Vec::len).sum())
    };
    until("the devices are taken", || Ok(attachments()? == 0))?;
    enforcer.wait_for_status("nobody is named", |status| !named(status))?;
    let scrape = enforcer.scrape()?;
    assert_eq!(scrape.value("genv_enforcer_state_lock_held", &[])?, 0.0);
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
    // The one that is used stands behind all others, and is attached elsewhere.
    let mut all: Vec<Environment> = (0..5000)
        .map(|number| Environment::new(&format!("e{number:05}"), victim(), others.pid(), &[1]))
        .collect();
    all.push(Environment::new("mine", victim(), member.pid(), &[1]));
    state::write(&setup.genv_directory(), 2, &all)?;
    let enforcer = setup.start()?;
    ends(process.pid())?;
    let status = enforcer.wait_for_status("it is named", |status| {
        status["disputed_records_total"] == 1
    })?;
    let why = status["disputed_records"][0]["why"].to_string();
    ensure!(why.contains("too many records: 5001"), "{status:#}");
    enforcer.wait_for_cycles(2)
}
