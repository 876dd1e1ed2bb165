//! Whose a process is, the kernel says, whatever the shared state says.

use anyhow::{Result, ensure};
use genv_tests::changed_user::ChangedUser;
use genv_tests::enforcer::{Enforcer, Setup, ends, is_alive, sleeper_of};
use genv_tests::exporter;
use genv_tests::metrics::Scrape;
use genv_tests::nvml_sim::{Simulation, used_by};
use genv_tests::root::{apart, own_mounts, require_root, subordinate_uids, subordinate_uids_of_a_directory, users};
use genv_tests::state::{self, Environment};

use crate::enforcer::stage::{ALICE, ANYTHING, BOB};

const MALLORY: u32 = BOB + 1;

/// A rule that acts as soon as it can.
fn at_once(kind: &str) -> String {
    format!(
        "version: 1\nmode: enforce\nbreaker: {{share_of_users: 1}}\n\
         rules:\n- {{kind: {kind}, action: terminate, for: 0s, warn: []}}\n"
    )
}

/// An enforcer of these rules on a machine where these processes use device 0.
fn enforce(config: &str, pids: &[u32], environments: &[Environment]) -> Result<Enforcer> {
    let setup = Setup::new(&used_by(pids), config)?;
    state::write(&setup.genv_directory(), 2, environments)?;
    setup.start()
}

#[test]
fn a_record_that_lists_pid_1_ends_nobody_elses_processes() -> Result<()> {
    require_root();
    for uid in [MALLORY, 0] {
        let others = [sleeper_of(ALICE, &ANYTHING)?, sleeper_of(BOB, &ANYTHING)?];
        let own = sleeper_of(MALLORY, &[("GENV_ENVIRONMENT_ID", "own")])?;
        let listed = Environment::new("E", uid, 1, &[1]);
        // Its own processes are ended, so that the rule is seen to act.
        let genuine = Environment::new("own", MALLORY, own.pid(), &[1]);
        let pids = [others[0].pid(), others[1].pid(), own.pid()];
        let enforcer = enforce(&at_once("env-devices"), &pids, &[listed, genuine])?;
        ends(own.pid())?;
        enforcer.wait_for_cycles(3)?;
        ensure!(others.iter().all(|other| is_alive(other.pid())));
        ensure!(enforcer.audit()?.iter().all(|line| line["pid"] != pids[0] && line["pid"] != pids[1]));
    }
    Ok(())
}

#[test]
fn what_sudo_su_and_setuid_programs_start_in_an_environment_is_ended_by_no_rule() -> Result<()> {
    require_root();
    let sudo = ChangedUser::start(ALICE, 0, &ANYTHING)?;
    let su = ChangedUser::start(ALICE, BOB, &ANYTHING)?;
    let setuid = ChangedUser::with_real_user(ALICE, BOB, ALICE, &ANYTHING)?;
    let outside = sleeper_of(BOB, &ANYTHING)?;
    let mut environment = Environment::new("E", ALICE, sudo.pid(), &[1]);
    environment.pids.extend([su.pid(), setuid.pid()]);
    let spared = [sudo.child(), su.child(), setuid.child()];
    let pids = [&spared[..], &[outside.pid()]].concat();
    for kind in ["non-env-processes", "env-devices"] {
        let enforcer = enforce(&at_once(kind), &pids, std::slice::from_ref(&environment))?;
        if kind == "non-env-processes" {
            ends(outside.pid())?;
        }
        enforcer.wait_for_cycles(2)?;
        ensure!(spared.iter().all(|&pid| is_alive(pid)), "{kind}");
    }
    let scene = Setup::new(&used_by(&spared), &at_once("non-env-processes"))?;
    state::write(&scene.genv_directory(), 2, &[environment])?;
    let config = format!("--config={}", scene.config().display());
    let explained = scene.said(&["explain", &su.child().to_string(), &config, "--gpu.source=simulated"])?;
    ensure!(explained.contains("user_changed"), "{explained}");
    Ok(())
}

#[test]
fn what_a_spawner_of_roots_starts_for_a_user_is_ended_by_no_rule() -> Result<()> {
    require_root();
    let spawned = ChangedUser::start(0, ALICE, &[("GENV_ENVIRONMENT_ID", "hub")])?;
    let outside = sleeper_of(BOB, &[("GENV_ENVIRONMENT_ID", "hub")])?;
    let hub = Environment::new("hub", 0, spawned.pid(), &[0]);
    let pids = [spawned.child(), outside.pid()];
    let enforcer = enforce(&at_once("non-env-processes"), &pids, &[hub])?;
    ends(outside.pid())?;
    enforcer.wait_for_cycles(2)?;
    ensure!(is_alive(spawned.child()));
    Ok(())
}

#[test]
fn what_sudo_and_su_start_on_a_device_is_charged_to_no_user() -> Result<()> {
    require_root();
    let started = [ChangedUser::start(ALICE, 0, &ANYTHING)?, ChangedUser::start(ALICE, BOB, &ANYTHING)?];
    for changed in started {
        let simulation = Simulation::new(&format!(
            "version: 1\nhosts:\n- devices: [{{}}]\n\
             \x20 processes: [{{pid: {}, devices: [{{index: 0, memory: 1gi, utilization: 0.9}}]}}]\n",
            changed.child()
        ));
        let setup = exporter::Setup::with_driver(&simulation)?;
        let environment = Environment::new("E", ALICE, changed.pid(), &[0]);
        state::write(&setup.folder().join("state"), 1, &[environment])?;
        let exporter = setup.start()?;
        let alice = format!("uid:{ALICE}");
        let of = |scrape: &Scrape, state| {
            let labels = [("username", alice.as_str()), ("state", state)];
            scrape.value("genv_user_device_seconds_total", &labels)
        };
        let counted = |scrape: &Scrape| of(scrape, "unmeasured").is_ok_and(|it| it > 0.5);
        let scrape = exporter.wait_for("time of the holder", counted)?;
        ensure!(of(&scrape, "idle")? == 0.0 && of(&scrape, "busy")? == 0.0);
        let used = scrape.all("genv_user_utilized_device_seconds_total", &[]);
        ensure!(used.iter().all(|(_, seconds)| *seconds == 0.0), "{used:?}");
        for (labels, joules) in scrape.all("genv_user_energy_joules_total", &[]) {
            ensure!(joules == 0.0 || labels["username"] == "(none)", "{labels:?}");
        }
    }
    Ok(())
}

#[test]
fn who_writes_his_uid_into_anothers_record_has_none_of_its_processes_ended() -> Result<()> {
    require_root();
    // The shell was started before its environment was, and has no claim.
    let job = ChangedUser::start(ALICE, ALICE, &[("GENV_ENVIRONMENT_ID", "E")])?;
    let outside = sleeper_of(BOB, &ANYTHING)?;
    let rewritten = Environment::new("E", MALLORY, job.pid(), &[1]);
    let pids = [job.child(), outside.pid()];
    for kind in ["non-env-processes", "env-devices"] {
        let enforcer = enforce(&at_once(kind), &pids, std::slice::from_ref(&rewritten))?;
        if kind == "non-env-processes" {
            ends(outside.pid())?;
        }
        enforcer.wait_for_cycles(2)?;
        ensure!(is_alive(job.child()), "{kind}");
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
        let config = "version: 1\nmode: enforce\nbreaker: {share_of_users: 1}\nrules:\n\
            - {kind: non-env-processes, action: terminate, for: 0s, warn: [], match: {groups: [students]}}\n\
            - {kind: non-env-processes, name: bobs, action: report, for: 0s, match: {users: [bob]}}\n";
        let enforcer = enforce(config, &pids, &[environment])?;
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

#[test]
fn root_in_a_container_is_the_containers_and_not_roots() -> Result<()> {
    require_root();
    let scenario = "version: 1\nusers: {root: 0}\nhosts:\n- devices: [{}, {}]\n  environments: []\n  processes:\n\
        \x20 - {pid: 4000001, user: root, container_id: 4f2a6e4f2a6e4f2a, devices: [{index: 0}]}\n\
        \x20 - {pid: 4000002, user: root, container_id: 5b5b5b5b5b5b5b5b, devices: [{index: 0}]}\n\
        \x20 - {pid: 4000003, user: root, devices: [{index: 0}]}\n";
    let config = "version: 1\nnever: {users: [root, 'uid:0', 'container:5b5b5b5b5b5b']}\nrules:\n\
        - {kind: non-env-processes, action: terminate, for: 0s, warn: [], \
           match: {users: [root, 'container:4f2a6e4f2a6e', 'container:5b5b5b5b5b5b']}}\n";
    let enforcer = Setup::new(scenario, config)?.start()?;
    let status =
        enforcer.wait_for_status("the violation is known", |status| status["violations"][0]["username"].is_string())?;
    let violations = status["violations"].as_array().cloned().unwrap_or_default();
    let of = |pid: u32| violations.iter().find(|it| it["subject"] == format!("process {pid}"));
    let container = of(4_000_001).expect("root in a container breaks the rule");
    ensure!(container["username"] == "container:4f2a6e4f2a6e", "{status:#}");
    // A simulated process cannot be ended, but the rules wanted to.
    let wanted = |pid: u32| -> Result<bool> {
        let audit = enforcer.audit()?;
        Ok(audit.iter().any(|line| line["pid"] == pid && line["reason"] == "it ended by itself"))
    };
    genv_tests::patience::until("it is to be ended", || wanted(4_000_001))?;
    enforcer.wait_for_cycles(1)?;
    ensure!(!wanted(4_000_002)? && !wanted(4_000_003)?, "{:#?}", enforcer.audit()?);
    Ok(())
}
