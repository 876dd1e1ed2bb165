//! Whose a process is, the kernel says, whatever the shared state says.

use anyhow::{Result, ensure};
use genv_tests::changed_user::ChangedUser;
use genv_tests::enforcer::{Enforcer, Setup, ends, enforcing, is_alive, sleeper_of};
use genv_tests::nvml_sim::used_by;
use genv_tests::root::{apart, own_mounts, require_root, subordinate_uids, subordinate_uids_of_a_directory, users};
use genv_tests::state::{self, Environment};

use crate::{ALICE, ANYTHING, BOB};

const MALLORY: u32 = BOB + 1;

/// A rule that acts as soon as it can.
fn at_once(kind: &str) -> String {
    enforcing(&format!("- {{kind: {kind}, action: terminate, for: 0s, warn: []}}\n"))
}

/// An enforcer of these rules on a machine where these processes use device 0.
fn enforce(config: &str, pids: &[u32], environments: &[Environment]) -> Result<Enforcer> {
    let setup = Setup::new(&used_by(pids), config)?;
    state::write(&setup.genv_directory(), 2, environments)?;
    setup.start()
}

#[test]
fn who_runs_as_another_user_than_its_environments_is_ended_by_no_rule() -> Result<()> {
    require_root();
    let sudo = ChangedUser::start(ALICE, 0, &ANYTHING)?;
    let su = ChangedUser::start(ALICE, BOB, &ANYTHING)?;
    let setuid = ChangedUser::with_real_user(ALICE, BOB, ALICE, &ANYTHING)?;
    let spawned = ChangedUser::start(0, ALICE, &[("GENV_ENVIRONMENT_ID", "hub")])?;
    let job = ChangedUser::start(ALICE, ALICE, &[("GENV_ENVIRONMENT_ID", "rewritten")])?;
    // The rules end one of these each.
    let (outside, elsewhere) = (sleeper_of(BOB, &ANYTHING)?, sleeper_of(MALLORY, &[("GENV_ENVIRONMENT_ID", "own")])?);
    let mut own = Environment::new("E", ALICE, sudo.pid(), &[1]);
    own.pids.extend([su.pid(), setuid.pid()]);
    let environments = [
        own,
        Environment::new("hub", 0, spawned.pid(), &[1]),
        // Another user wrote its uid into this record, and lists pid 1 in the next one.
        Environment::new("rewritten", MALLORY, job.pid(), &[1]),
        Environment::new("first", MALLORY, 1, &[1]),
        Environment::new("own", MALLORY, elsewhere.pid(), &[1]),
    ];
    let spared = [&sudo, &su, &setuid, &spawned, &job].map(ChangedUser::child);
    let pids = [&spared[..], &[outside.pid(), elsewhere.pid()]].concat();
    for (kind, ended) in [("non-env-processes", &outside), ("env-devices", &elsewhere)] {
        let enforcer = enforce(&at_once(kind), &pids, &environments)?;
        ends(ended.pid())?;
        enforcer.wait_for_cycles(2)?;
        ensure!(spared.iter().all(|pid| is_alive(*pid)), "{kind}: {}", enforcer.log());
    }
    Ok(())
}

#[test]
fn a_subordinate_uid_is_its_owners_for_attribution_rules_and_notices() -> Result<()> {
    require_root();
    apart(|| {
        own_mounts();
        let folder = tempfile::tempdir()?;
        users(folder.path(), &["alice", "bob"], &[("students", &["alice"])])?;
        let ranges = format!("alice:700000:1000\n{BOB}:800000:1000\nalice:{BOB}:1\n");
        subordinate_uids(folder.path(), &ranges)?;
        let claims = [("GENV_ENVIRONMENT_ID", "E")];
        let inside = sleeper_of(700_007, &claims)?;
        let below = ChangedUser::start(ALICE, 700_007, &ANYTHING)?;
        let outside = sleeper_of(700_999, &ANYTHING)?;
        // Bob's own uid is in a range, and those of the other range are his.
        let bobs = [sleeper_of(BOB, &ANYTHING)?, sleeper_of(800_000, &claims)?];
        let environment = Environment::new("E", ALICE, below.pid(), &[1]);
        let pids = [inside.pid(), below.child(), outside.pid(), bobs[0].pid(), bobs[1].pid()];
        let config = "\
            - {kind: non-env-processes, action: terminate, for: 0s, warn: [], match: {groups: [students]}}\n\
            - {kind: non-env-processes, name: bobs, action: report, for: 0s, match: {users: [bob]}}\n";
        let enforcer = enforce(&enforcing(config), &pids, &[environment])?;
        ends(outside.pid())?;
        let status = enforcer.wait_for_status("bob's are reported", |status| {
            let violations = status["violations"].as_array();
            violations.is_some_and(|it| it.iter().filter(|it| it["username"] == "bob").count() == 2)
        })?;
        let ended = enforcer.audit()?;
        let ended = ended.iter().find(|line| line["result"] == "done");
        let ended = ended.expect("the audit has what was done");
        ensure!(ended["username"] == "alice" && ended["uid"] == ALICE, "{ended}");
        ensure!(is_alive(inside.pid()) && is_alive(below.child()), "{status:#}");
        ensure!(bobs.iter().all(|process| is_alive(process.pid())));
        Ok(())
    })
}

#[test]
fn a_uid_that_only_a_directory_service_may_know_is_charged_to_nobody_and_ended_by_no_rule() -> Result<()> {
    require_root();
    for has_service in [false, true] {
        apart(|| {
            own_mounts();
            let folder = tempfile::tempdir()?;
            users(folder.path(), &["alice", "bob"], &[])?;
            subordinate_uids(folder.path(), "alice:700000:1000\n")?;
            if has_service {
                subordinate_uids_of_a_directory(folder.path())?;
            }
            // In no range that is known here, outside of any environment, and below alice's member.
            let outside = sleeper_of(900_000, &ANYTHING)?;
            let below = ChangedUser::start(ALICE, 900_001, &ANYTHING)?;
            let known = sleeper_of(700_000, &ANYTHING)?;
            let environment = Environment::new("E", ALICE, below.pid(), &[1]);
            let pids = [outside.pid(), below.child(), known.pid()];
            let enforcer = enforce(&at_once("non-env-processes"), &pids, &[environment])?;
            ends(known.pid())?;
            if has_service {
                enforcer.wait_for_cycles(3)?;
                ensure!(is_alive(outside.pid()));
                let scrape = enforcer.scrape()?;
                let unknown = scrape.value("genv_enforcer_unknown_processes", &[]);
                ensure!(unknown.is_ok_and(|number| number >= 2.0), "{:?}", enforcer.status());
            } else {
                ends(outside.pid())?;
            }
            ensure!(is_alive(below.child()));
            Ok(())
        })?;
    }
    Ok(())
}
