//! What cannot be done is refused in one line, with the right exit code, and changes nothing.

use anyhow::{Result, ensure};
use genv_tests::enforcer::process_of_another;
use genv_tests::shell::{Account, Shell};

/// Calls, and the exit codes that they must have; in an environment with device 0 of two.
const REFUSED: &[(&str, i32)] = &[
    ("genv config gpus x", 2),
    ("genv config gpu-memory 4", 2),
    ("genv config name $'\\e]0;title\\a'", 2),
    ("genv config nothing", 2),
    ("genv config gpus 1 2", 2),
    ("genv config gpus 1 --clear", 2),
    ("genv config --save", 1),
    ("genv config --load", 1),
    ("genv attach --index 99", 4),
    ("genv attach --index 1", 4),
    ("genv attach --count 3 --wait", 4),
    ("genv attach --count 2", 4),
    ("genv attach --count 2 --wait=1ms", 6),
    ("genv attach --count 2 --wait=soon", 2),
    ("genv detach --index 99", 4),
    ("genv activate --id other", 1),
    ("genv exec --gpus 2 --wait=1ms -- true", 6),
    ("genv exec --eid theirs -- true", 1),
    ("genv exec", 2),
];

/// As [`REFUSED`], in a shell that is in no environment.
const REFUSED_OUTSIDE: &[(&str, i32)] = &[
    ("genv activate --gpus 3", 4),
    ("genv activate --gpus 2 --gpu-memory 999999g", 4),
    ("genv activate --gpus 2 --wait=1ms", 6),
    ("genv activate --name $'a\\nb'", 2),
    ("genv activate --eid theirs", 1),
    ("GENV_DEVICES=x genv activate --gpus 1", 2),
    ("echo gpus = -1 > genv.toml; genv activate || (rm genv.toml; exit 1)", 1),
    ("echo gpus = -1 > genv.toml; genv exec -- true || (code=$?; rm genv.toml; exit $code)", 1),
    ("GENV_ENVIRONMENT_ID=nosuch genv attach --count 1", 3),
    ("GENV_ENVIRONMENT_ID=theirs genv attach --count 1", 1),
    ("GENV_ENVIRONMENT_ID=theirs genv detach", 1),
    ("GENV_ENVIRONMENT_ID=theirs genv config gpus 1", 1),
];

/// Runs `prepare`, then each call, and sees to it that it changes neither state nor shell.
fn all_are_refused(prepare: &str, calls: &[(&str, i32)]) -> Result<()> {
    const STATE: &str = "cat $GENV_TMPDIR/*.json";
    let account = Account::new()?;
    let (other, member, _process) = process_of_another()?;
    let theirs = genv_tests::state::Environment::new("theirs", other, member, &[1]);
    genv_tests::state::write(&account.state(), 2, &[theirs])?;
    let mut lines = vec![Shell::Bash.setup(), prepare, STATE];
    lines.extend(calls.iter().flat_map(|(call, _)| [*call, STATE]));
    let lines: Vec<String> = lines.into_iter().map(str::to_owned).collect();
    let outcomes = account.lines(Shell::Bash, &[("GENV_DEVICES", "2")], &lines)?;
    let (prepared, outcomes) = outcomes.split_at(3);
    for outcome in prepared {
        ensure!(outcome.code == 0 && outcome.stderr.is_empty(), "{outcome:?}");
    }
    let before = &prepared[2];
    ensure!(before.stdout.contains("theirs"), "{before:?}");
    for (outcomes, (call, code)) in outcomes.chunks(2).zip(calls) {
        let [refused, after] = outcomes else { anyhow::bail!("{call} was not run") };
        ensure!(refused.code == *code, "{call}: {refused:?}");
        ensure!(refused.stdout.is_empty(), "{call} printed {:?}", refused.stdout);
        let mut said: Vec<&str> = refused.stderr.lines().collect();
        // Those who wait are told so first.
        if *code == 6 {
            ensure!(said.remove(0).contains("waiting for devices"), "{call}: {refused:?}");
        }
        ensure!(said.len() == 1, "{call} said {:?}", refused.stderr);
        ensure!(said[0].starts_with("genv: "), "{call} said {:?}", refused.stderr);
        ensure!(!said[0].contains(char::is_control), "{call} said {:?}", refused.stderr);
        ensure!(after.stdout == before.stdout, "{call} changed {} to {}", before.stdout, after.stdout);
        ensure!(after.variables == before.variables, "{call} changed {:?}", after.variables);
    }
    Ok(())
}

#[test]
fn in_an_environment() -> Result<()> {
    all_are_refused("genv activate --name x --gpus 1 --gpu-memory 4g", REFUSED)
}

#[test]
fn outside_of_an_environment() -> Result<()> {
    all_are_refused("genv activate --gpus 0; genv deactivate", REFUSED_OUTSIDE)
}

#[test]
fn on_a_machine_without_devices() -> Result<()> {
    for (variables, words) in [
        ([("GENV_DEVICES", "0")], "this machine has none"),
        ([("GENV_NVML_LIBRARY", "/nonexistent/nvml.so")], "/nonexistent/nvml.so"),
    ] {
        let lines = [Shell::Bash.setup(), "genv activate --gpus 1", "genv status", "genv activate"].map(str::to_owned);
        let outcomes = Account::new()?.lines(Shell::Bash, &variables, &lines)?;
        let refused = &outcomes[1];
        ensure!(refused.code == 4 && refused.stderr.contains(words), "{refused:?}");
        ensure!(refused.stderr.lines().count() == 1, "{refused:?}");
        ensure!(outcomes[2].stdout.starts_with("No environment"), "{:?}", outcomes[2]);
        // An environment needs no device.
        ensure!(outcomes[3].code == 0, "{:?}", outcomes[3]);
    }
    Ok(())
}
