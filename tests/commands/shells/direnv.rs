//! genv under direnv, which evaluates `.envrc` in a bash of its own and exports to the shell what changed.

use std::fs;

use anyhow::{Result, ensure};
use genv_tests::shell::Account;

fn in_project(envrc: &str, script: &str) -> Result<(Account, (i32, String, String))> {
    let account = Account::new()?;
    let project = account.home().join("project");
    fs::create_dir(&project)?;
    fs::write(project.join(".envrc"), envrc)?;
    let allowed = account.command("direnv")?.args(["allow", "project"]).status()?;
    ensure!(allowed.success(), "direnv: {allowed}");
    let script = format!("cd project && {script}");
    let outcome = account.script("bash", &[], &script)?;
    Ok((account, outcome))
}

#[test]
fn activating_in_an_envrc_is_refused_with_the_way_that_works() -> Result<()> {
    for envrc in [
        "genv activate --gpus 1",
        "eval \"$(genv shell --init)\"\ngenv activate --gpus 1",
        "eval \"$(genv shell --init)\"\n(genv activate --gpus 1)",
        "export GENV_PREACTIVATE=1 GENV_PREACTIVATE_GPUS=1\neval \"$(genv shell --init)\"",
    ] {
        let script = "eval \"$(direnv export bash)\"; echo \"${GENV_ENVIRONMENT_ID-none} ${CUDA_VISIBLE_DEVICES-none}\"; genv envs";
        let (_account, (_, stdout, stderr)) = in_project(envrc, script)?;
        ensure!(stdout == "none none\nID  USER  NAME  CREATED  DEVICES  PID(S)\n", "{envrc}: {stdout:?} {stderr}");
        for part in [
            "genv: cannot activate in .envrc: ",
            "'genv activate' in your shell",
            "'mkdir -p .genv && genv config --save'",
        ] {
            ensure!(stderr.contains(part), "{envrc}: {stderr}");
        }
    }
    Ok(())
}

#[test]
fn shells_and_commands_that_direnv_runs_activate() -> Result<()> {
    let activate = "eval \"$(genv shell --init)\"; genv activate --gpus 1; echo $CUDA_VISIBLE_DEVICES";
    let script = format!("direnv exec . bash -c '{activate}'");
    let (_account, (code, stdout, stderr)) = in_project("export A=1", &script)?;
    ensure!((code, &*stdout) == (0, "0\n"), "{code} {stdout} {stderr}");

    // A command in an environment of its own ends before .envrc does.
    let envrc = "export FOUND=$(genv exec --gpus 1 -- printenv CUDA_VISIBLE_DEVICES)";
    let script = "eval \"$(direnv export bash)\"; echo $FOUND";
    let (_account, (code, stdout, stderr)) = in_project(envrc, script)?;
    ensure!((code, &*stdout) == (0, "0\n"), "{code} {stdout} {stderr}");
    Ok(())
}

#[test]
fn a_folder_with_an_envrc_is_configured_by_a_folder_of_genv() -> Result<()> {
    let script = "mkdir .genv && echo 2 >.genv/gpus; eval \"$(genv shell --init)\"; eval \"$(direnv export bash)\"
        genv activate; echo $A $CUDA_VISIBLE_DEVICES; cd ..; eval \"$(direnv export bash)\"; echo ${A-none} $CUDA_VISIBLE_DEVICES";
    let (_account, (code, stdout, stderr)) = in_project("export A=1", script)?;
    ensure!((code, &*stdout) == (0, "1 0,1\nnone 0,1\n"), "{code} {stdout} {stderr}");
    Ok(())
}
