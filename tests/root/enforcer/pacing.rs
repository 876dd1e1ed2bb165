//! Ends of several users that fall due together.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, ends, is_alive, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;
use genv_tests::root::{FIRST_UID, apart, own_mounts, require_root};
use genv_tests::state::{self, Environment};
use rustix::mount::{MountFlags, mount};
use serde_json::Value;

use super::stage::ANYTHING;

/// Four users with a process each; the rule spares the last one.
fn four_users() -> Result<(Vec<Sleeper>, Vec<u32>, String)> {
    let uids = FIRST_UID..FIRST_UID + 4;
    let processes: Vec<_> = uids.map(|uid| sleeper_of(uid, &ANYTHING)).collect::<Result<_>>()?;
    let pids = processes.iter().map(Sleeper::pid).collect();
    let spared = FIRST_UID + 3;
    let config = format!(
        "version: 1\nmode: enforce\nbreaker: {{share_of_users: 0.5}}\nrules:\n\
         - {{kind: non-env-processes, action: terminate, for: 0s, warn: [], match: {{except_users: ['uid:{spared}']}}}}\n"
    );
    Ok((processes, pids, config))
}

#[test]
fn promise_08_most_users_at_once_open_the_breaker_which_names_them() -> Result<()> {
    require_root();
    let (_processes, pids, config) = four_users()?;
    let enforcer = Setup::new(&used_by(&pids), &config)?.start()?;
    let status = enforcer.wait_for_status("the breaker opens", |it| it["breaker"].is_string())?;
    enforcer.wait_for_cycles(2)?;
    ensure!(pids.iter().all(|pid| is_alive(*pid)));
    let why = status["breaker"].as_str().unwrap_or_default();
    ensure!(why.starts_with("3 of 4 users would be hit at once"), "{why}");
    for uid in FIRST_UID..FIRST_UID + 3 {
        ensure!(why.contains(&format!("uid:{uid}")), "{why}");
    }
    Ok(())
}

#[test]
fn what_a_pause_put_off_ends_over_cycles_and_opens_no_breaker() -> Result<()> {
    require_root();
    let (_processes, pids, config) = four_users()?;
    let setup = Setup::new(&used_by(&pids), &config)?;
    setup.said(&["pause", "--for", "1h"])?;
    let enforcer = setup.start()?;
    enforcer.wait_for_status("all wait", |status| {
        let violations = status["violations"].as_array();
        violations.is_some_and(|all| all.len() == 3 && all.iter().all(|violation| violation["stage"] == "held"))
    })?;
    enforcer.setup().said(&["pause", "--for", "0"])?;
    for pid in &pids[..3] {
        ends(*pid)?;
    }
    ensure!(is_alive(pids[3]));
    let status = enforcer.status()?;
    ensure!(status["breaker"].is_null(), "{status:#}");
    // Two of four users are half of them.
    let audit = enforcer.audit()?.into_iter();
    let paced = audit.filter(|line| line["reason"].as_str().is_some_and(|it| it.starts_with("paced")));
    ensure!(paced.count() == 1);
    Ok(())
}

#[test]
fn devices_that_cannot_be_taken_use_up_no_pace_and_each_intention_has_an_outcome() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        devices_that_cannot_be_taken()
    })
}

fn devices_that_cannot_be_taken() -> Result<()> {
    let setup = Setup::new(
        &used_by(&[]),
        "version: 1\nmode: enforce\nbreaker: {share_of_users: 1, signals_per_minute: 4}\n\
         rules:\n- {kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}\n\
         - {kind: non-env-processes, action: terminate, for: 0s, warn: []}\n",
    )?;
    // The disk of genv's state is full.
    let genv = setup.genv_directory();
    fs::create_dir_all(&genv)?;
    mount("tmpfs", &genv, "tmpfs", MountFlags::empty(), c"mode=777,size=64k")?;
    let mut members = Vec::new();
    let mut environments = Vec::new();
    for (uid, device) in (FIRST_UID..).zip(0..2) {
        let member = sleeper_of(uid, &ANYTHING)?;
        environments.push(Environment::new(&format!("e{uid}"), uid, member.pid(), &[device]));
        members.push(member);
    }
    state::write(&genv, 2, &environments)?;
    fs::write(genv.join("genv.lock"), "")?;
    let mut filler = File::create(genv.join("filler"))?;
    while filler.write_all(&[0; 512]).is_ok() {}
    let enforcer = setup.start()?;
    enforcer.wait_for_cycles(10)?;
    let outside = sleeper_of(FIRST_UID + 2, &ANYTHING)?;
    enforcer.setup().rewrite_scenario(&used_by(&[outside.pid()]))?;
    ends(outside.pid())?;
    let (_, setup) = enforcer.terminate()?;
    let audit = fs::read_to_string(setup.state_directory().join("audit.jsonl"))?;
    let lines = audit.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>()?;
    let ids = |intended: bool| -> BTreeSet<String> {
        let lines = lines.iter().filter(|it| (it["result"] == "intended") == intended);
        lines.map(|it| it["id"].to_string()).collect()
    };
    ensure!(ids(true).len() > 10 && ids(true).is_subset(&ids(false)), "{audit}");
    ensure!(!audit.contains("paced"), "{audit}");
    Ok(())
}
