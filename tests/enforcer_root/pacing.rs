//! Ends of several users that fall due together.

use anyhow::{Result, ensure};
use genv_tests::enforcer::{Setup, ends, is_alive, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;
use genv_tests::root::{FIRST_UID, require_root};

use super::stage::ANYTHING;

/// Four users with a process each; the rule spares the last one.
fn four_users() -> Result<(Vec<Sleeper>, Vec<u32>, String)> {
    let uids = FIRST_UID..FIRST_UID + 4;
    let processes: Vec<_> = uids
        .map(|uid| sleeper_of(uid, &ANYTHING))
        .collect::<Result<_>>()?;
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
    ensure!(
        why.starts_with("3 of 4 users would be hit at once"),
        "{why}"
    );
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
        violations.is_some_and(|all| {
            all.len() == 3 && all.iter().all(|violation| violation["stage"] == "held")
        })
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
    let paced = audit.filter(|line| {
        line["reason"]
            .as_str()
            .is_some_and(|it| it.starts_with("paced"))
    });
    ensure!(paced.count() == 1);
    Ok(())
}
