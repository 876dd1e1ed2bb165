//! A driver that never answers, and a lock that is never released.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience::{NO_PATIENCE, until};
use genv_tests::process::Running;
use genv_tests::shell::{Account, Shell};
use rustix::fs::{FlockOperation, flock};

use crate::known_faults::{EVERY_COMMAND, all_done, read, run, run_with, uid, with_environment};

/// The variables with which the account's programs load a driver that never answers.
fn hanging_driver(simulation: &Simulation) -> Result<[(&'static str, String); 4]> {
    let path = |path: &Path| path.to_str().map(str::to_owned).context("a path");
    let library = simulation.library();
    Ok([
        ("GENV_DEVICES", String::new()),
        ("GENV_NVML_LIBRARY", path(&library)?),
        ("GENV_SCENARIO", path(&simulation.scenario())?),
        (NO_PATIENCE.0, NO_PATIENCE.1.to_owned()),
    ])
}

/// Waits until a program has a thread that asks the GPUs.
fn wait_until_it_asks(child: &mut Child) -> Result<()> {
    let tasks = format!("/proc/{}/task", child.id());
    until("it asks the GPUs", || {
        for task in fs::read_dir(&tasks)? {
            // It may end meanwhile.
            let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
            if name.trim() == "gpu" {
                return Ok(true);
            }
        }
        ensure!(child.try_wait()?.is_none(), "it ended without asking");
        Ok(false)
    })
}

#[test]
fn a_driver_that_hangs_does_not_hold_the_lock() -> Result<()> {
    let simulation =
        Simulation::new("version: 1\nhosts:\n- devices: [{count: 4, memory: 16gi}]\n  faults: [{hang: all}]\n");
    let variables = hanging_driver(&simulation)?;
    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));

    // Nobody knows the devices yet: only the driver could tell.
    let account = Account::new()?;
    let mut asking = account.command("bash")?;
    asking.args(["-c", "exec genv exec --gpus 1 -- true"]).envs(variables).stdin(Stdio::null()).stderr(Stdio::null());
    let mut asking = Running::spawn(&mut asking)?;
    wait_until_it_asks(&mut asking)?;
    let commands = ["genv activate", "genv config gpus 2", "genv status", "genv deactivate"];
    all_done(&run_with(&account, Shell::Bash, &variables, &commands)?)?;

    // Where they are known it is not waited for, but by those who ask what only it knows.
    let (account, _member) = with_environment(uid())?;
    let mut commands = EVERY_COMMAND.to_vec();
    commands.retain(|command| *command != "genv usage snapshot");
    let outcomes = run_with(&account, Shell::Bash, &variables, &commands)?;
    all_done(&outcomes)?;
    let visible = outcomes[3].variable("CUDA_VISIBLE_DEVICES");
    ensure!(visible.is_some_and(|it| it == "1"), "{visible:?}");
    Ok(())
}

#[test]
fn whoever_holds_the_lock_is_named_and_stops_no_question() -> Result<()> {
    let (account, _member) = with_environment(uid())?;
    let lock = File::create(account.state().join("genv.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let questions = ["genv envs", "genv devices", "genv status", "genv usage snapshot", "genv free"];
    all_done(&run(&account, Shell::Bash, &questions)?)?;
    let before = read(&account, "envs.json")?;
    let outcomes = run(&account, Shell::Bash, &["genv activate", "genv status"])?;
    let refused = &outcomes[0];
    ensure!(refused.code == 6 && refused.stderr.contains("genv.lock"), "{refused:?}");
    ensure!(refused.stderr.contains(&format!("process {} ", std::process::id())), "{refused:?}");
    ensure!(refused.variable("GENV_ENVIRONMENT_ID").is_none());
    ensure!(read(&account, "envs.json")? == before);
    drop(lock);
    all_done(&run(&account, Shell::Bash, &["genv activate"])?)
}
