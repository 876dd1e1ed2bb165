//! What an ordinary user is shown of others' processes: nothing, also where one of them claims to be theirs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use genv_tests::process::{Sleeper, copy_program};
use genv_tests::root::FIRST_UID;
use genv_tests::state::{self, Environment};

use crate::shims::stage::{GENERATIONS, Stage, real, text};

const USER: u32 = FIRST_UID;

#[test]
#[ignore = "needs root"]
fn a_users_table_has_his_processes_alone() -> Result<()> {
    let mut stage = Stage::new()?;
    let sleeper = |uid: u32| -> Result<Sleeper> {
        let mut command = Command::new("sleep");
        command.arg("1000000").env_clear().env("GENV_ENVIRONMENT_ID", "mine").uid(uid).gid(uid);
        Sleeper::spawn(&mut command)
    };
    let (own, others) = (sleeper(USER)?, sleeper(USER + 1)?);
    stage.replace(own, others);
    state::write(&stage.state(), 2, &[Environment { pids: vec![], ..Environment::new("mine", USER, 0, &[0, 1]) }])?;
    // The build may be where nobody else may look: the user runs copies.
    let folder = stage.simulation.library_folder();
    let library = folder.join("libnvidia-ml.so.1");
    std::fs::remove_file(&library)?;
    copy(&genv_tests::nvml_sim::library(), &library)?;
    for folder in folder.ancestors().take(2).chain([stage.folder()]) {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    std::fs::remove_file(stage.shims().join("nvidia-smi"))?;
    copy_program("genv-shim", &stage.shims().join("nvidia-smi"))?;

    for generation in GENERATIONS {
        let real_folder = stage.folder().join(generation.to_string());
        std::fs::create_dir(&real_folder)?;
        copy(&real(generation), &real_folder.join("nvidia-smi"))?;
        let mut command = stage.shim("nvidia-smi", &[&real_folder]);
        let output = command.uid(USER).gid(USER).output()?;
        let table = text(&output.stdout);
        let rows: Vec<&str> = table.lines().filter(|line| line.contains(" sleep ")).collect();
        let own = format!(" {} ", stage.own.pid());
        assert_eq!(rows.len(), 2, "{output:?}");
        assert!(rows.iter().all(|row| row.contains(&own)), "{table}");
    }
    Ok(())
}

/// Copies a program or a library to where everybody may use it, by another process: see [`copy_program`].
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("install").arg("--mode=755").args([from, to]).status()?;
    ensure!(status.success(), "install ended with {status}");
    Ok(())
}
