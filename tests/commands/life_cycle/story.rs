//! A day with genv, line by line: what is printed, said and returned.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use genv_tests::shell::{Account, Outcome, Shell, first_eid};

/// Runs lines in one bash on a machine with two devices, and tells of each but those that print nothing for people.
pub(crate) fn told(account: &Account, lines: &[&str]) -> Result<String> {
    let setup = Shell::Bash.setup();
    let lines: Vec<String> = [setup, "echo $$"].into_iter().chain(lines.iter().copied()).map(str::to_owned).collect();
    let outcomes = account.lines(Shell::Bash, &[("GENV_DEVICES", "2")], &lines)?;
    let [_, pid, outcomes @ ..] = &outcomes[..] else { anyhow::bail!("no outcomes") };
    let pid = pid.stdout.trim();
    let home = account.home();
    let home = home.to_str().context("a path")?;
    let mut told = String::new();
    for Outcome { line, stdout, stderr, code, .. } in outcomes {
        writeln!(told, "$ {line}")?;
        told.push_str(stdout);
        for said in stderr.lines() {
            writeln!(told, "[stderr] {said}")?;
        }
        if *code != 0 {
            writeln!(told, "[exit code {code}]")?;
        }
    }
    Ok(told.replace(&first_eid(pid), "PID").replace(pid, "PID").replace(home, "HOME"))
}

#[test]
fn outside_of_an_environment_commands_say_so() -> Result<()> {
    let told = told(
        &Account::new()?,
        &[
            "genv status",
            "genv status --json",
            "genv attach",
            "genv detach",
            "genv config",
            "genv config gpus 2",
            "genv deactivate",
            "genv attach --refresh",
            "genv config --refresh",
            "genv home",
            "genv home --quiet",
            "genv lock echo hi",
            "test -e $GENV_TMPDIR",
        ],
    )?;
    insta::assert_snapshot!(told);
    Ok(())
}

#[test]
fn an_environment_is_configured_attached_and_left() -> Result<()> {
    let told = told(
        &Account::new()?,
        &[
            "genv activate",
            "genv activate",
            "genv activate --id $GENV_ENVIRONMENT_ID",
            "genv status",
            "genv config",
            "genv attach",
            "genv config gpus 2",
            "genv config gpus",
            "genv config gpu-memory 4GB",
            "genv config name 'my env; $(id)'",
            "genv config",
            "echo $GENV_GPUS $GENV_GPU_MEMORY $GENV_ENVIRONMENT_NAME $CUDA_VISIBLE_DEVICES",
            "genv attach",
            "genv status",
            "genv status --json",
            "genv detach --index 0; echo $CUDA_VISIBLE_DEVICES",
            "genv attach --index '0, 1'; genv detach --index 0,99; echo $? $CUDA_VISIBLE_DEVICES",
            "genv detach --index '0, 1'; echo $CUDA_VISIBLE_DEVICES; genv attach --index 1",
            "genv attach --index 0; echo $CUDA_VISIBLE_DEVICES",
            "genv attach --index 0; echo $CUDA_VISIBLE_DEVICES",
            "genv config gpus 1; genv attach; echo $CUDA_VISIBLE_DEVICES",
            "genv detach; echo $CUDA_VISIBLE_DEVICES",
            "genv attach --index 1; echo $CUDA_VISIBLE_DEVICES",
            "genv attach --count 3",
            "genv attach --count 2; echo $CUDA_VISIBLE_DEVICES",
            "genv attach --config; echo $CUDA_VISIBLE_DEVICES",
            "genv lock sh -c 'exit 7'",
            "genv deactivate",
            "genv status",
            "env | grep -e CUDA -e GENV_E -e GENV_G",
        ],
    )?;
    insta::assert_snapshot!(told);
    Ok(())
}

#[test]
fn a_configuration_is_saved_and_loaded_on_activation() -> Result<()> {
    let told = told(
        &Account::new()?,
        &[
            "genv activate --name x --gpus 1 --gpu-memory 4g",
            "genv config --save",
            "mkdir .genv",
            "genv home",
            "genv config --save",
            "grep . .genv/*",
            "genv config --clear",
            "genv config",
            "genv config --load",
            "genv config --clear name",
            "genv config gpu-memory --clear",
            "genv config gpus 2",
            "genv config --quiet --save",
            "grep . .genv/*",
            "genv deactivate",
            "genv activate --name other",
            "genv config; echo $CUDA_VISIBLE_DEVICES",
            "genv deactivate",
            "genv activate --no-load --gpus 1",
            "genv config; echo $CUDA_VISIBLE_DEVICES",
            "genv deactivate",
            "genv activate --no-attach",
            "genv config; echo $CUDA_VISIBLE_DEVICES",
            "genv deactivate",
            "echo '$(id)' > .genv/gpus; genv activate",
            "genv status",
        ],
    )?;
    insta::assert_snapshot!(told);
    Ok(())
}

#[test]
fn spellings_of_older_versions_are_understood() -> Result<()> {
    let account = Account::new()?;
    let script = "eval \"$(genv init -)\"; genv activate --id old && genv status && genv exec envs query --query eid && genv version";
    let (code, printed, said) = account.script("bash", &[], script)?;
    ensure!(code == 0 && said.is_empty(), "{said}");
    ensure!(printed.starts_with("Environment old is active."), "{printed}");
    ensure!(printed.ends_with(concat!("\nold\n", env!("CARGO_PKG_VERSION"), "\n")), "{printed}");
    Ok(())
}

#[test]
fn root_names_a_folder_that_holds_only_links_to_this_genv_or_none() -> Result<()> {
    let account = Account::new()?;
    let script = "PATH=$(genv root)/bin:/usr/bin:/bin; type -p genv && genv root";
    let (code, printed, said) = account.script("bash", &[], script)?;
    ensure!(code == 0, "{said}");
    let root = genv_tests::shell::installation()?.join("lib/genv");
    let root = root.display();
    ensure!(printed == format!("{root}/bin/genv\n{root}\n"), "{printed}");

    // Another program may have a folder of this name, or not.
    for other in ["mkdir -p own/lib/genv/bin && touch own/lib/genv/bin/genv;", ""] {
        let script = format!("mkdir -p own/bin; {other} cp $(type -p genv) own/bin; own/bin/genv root");
        let (code, printed, said) = account.script("bash", &[], &script)?;
        ensure!(code == 1 && printed.is_empty(), "{printed}");
        ensure!(said.starts_with("genv: cannot find the folder of genv's own files: "), "{said}");
        std::fs::remove_dir_all(account.home().join("own"))?;
    }
    Ok(())
}
