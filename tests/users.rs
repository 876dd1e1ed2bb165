//! Processes of several users, which only root can start.

use anyhow::{Context, Result, ensure};
use genv_tests::enforcer::sleeper_of;
use genv_tests::exporter::Setup;
use genv_tests::nvml_sim::{Simulation, used_by};
use genv_tests::process::{Sleeper, copy_program};
use genv_tests::root::{FIRST_UID, require_root};
use genv_tests::state::{self, Environment};

/// Users without a name on any machine.
const ALICE: u32 = FIRST_UID;
const BOB: u32 = FIRST_UID + 1;

fn process_of(uid: u32, claim: &str) -> Result<Sleeper> {
    sleeper_of(uid, &[("GENV_ENVIRONMENT_ID", claim)])
}

fn environment(eid: &str, uid: u32, member: &Sleeper) -> Environment {
    Environment {
        gpu_memory: Some("10gi"),
        ..Environment::new(eid, uid, member.pid(), &[0])
    }
}

#[test]
fn a_claim_counts_for_the_environments_own_user_only() -> Result<()> {
    require_root();
    let (alices, bobs) = (process_of(ALICE, "a")?, process_of(BOB, "b")?);
    let intruder = process_of(BOB, "a")?;
    let simulation = Simulation::new(&used_by(&[alices.pid(), bobs.pid(), intruder.pid()]));
    let setup = Setup::with_driver(&simulation)?;
    let environments = [
        environment("a", ALICE, &alices),
        environment("b", BOB, &bobs),
    ];
    state::write(&setup.folder().join("state"), 2, &environments)?;
    let exporter = setup.start()?;

    let scrape = exporter.wait_for("three processes", |scrape| {
        scrape.all("genv_process_memory_used_bytes", &[]).len() == 3
    })?;
    for (process, eid, uid) in [
        (&alices, "a", ALICE),
        (&bobs, "b", BOB),
        (&intruder, "", BOB),
    ] {
        let (pid, username) = (process.pid().to_string(), format!("uid:{uid}"));
        let labels = [
            ("pid", pid.as_str()),
            ("eid", eid),
            ("username", username.as_str()),
        ];
        scrape.value("genv_process_memory_used_bytes", &labels)?;
    }
    ensure!(scrape.value("genv_processes", &[("state", "outside")])? == 1.0);
    ensure!(scrape.value("genv_environment_processes", &[("eid", "a")])? == 1.0);
    ensure!(scrape.value("genv_user_processes", &[("username", "uid:54322")])? == 2.0);
    Ok(())
}

#[test]
fn what_an_ordinary_user_may_not_read_is_unknown() -> Result<()> {
    require_root();
    let (own, others) = (process_of(ALICE, "a")?, process_of(BOB, "a")?);
    let simulation = Simulation::new(&used_by(&[own.pid(), others.pid()]));
    // What alice's exporter reads must be readable for her.
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()?;
    let (program, library, scenario) = (
        folder.path().join("genv-exporter"),
        folder.path().join("libnvidia-ml.so.1"),
        folder.path().join("scenario.yaml"),
    );
    copy_program("genv-exporter", &program)?;
    std::fs::copy(simulation.library(), &library)?;
    std::fs::copy(simulation.scenario(), &scenario)?;
    let state = folder.path().join("state");
    state::write(&state, 2, &[environment("a", ALICE, &own)])?;

    let exporter = Setup::with_driver(&simulation)?
        .program(&program)
        .user(ALICE)
        .env("GENV_NVML_LIBRARY", &library)
        .env("GENV_SCENARIO", &scenario)
        .env("GENV_TMPDIR", &state)
        .start()?;
    let scrape = exporter.wait_for("two processes", |scrape| {
        scrape.all("genv_process_memory_used_bytes", &[]).len() == 2
    })?;
    ensure!(scrape.value("genv_processes", &[("state", "environment")])? == 1.0);
    ensure!(scrape.value("genv_processes", &[("state", "unknown")])? == 1.0);
    let snapshot: serde_json::Value = serde_json::from_slice(&exporter.get("/snapshot")?.body)?;
    let processes = snapshot["processes"].as_array().context("no processes")?;
    let unreadable = processes.iter().find(|it| it["pid"] == others.pid());
    let attribution = &unreadable.context("not listed")?["attribution"];
    assert_eq!(attribution["reason"], "environ_unreadable");
    Ok(())
}
