//! `genv exec` and `genv lock`: a command that ends as it would alone.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::is_alive;
use genv_tests::patience::{Lines, ended, output, until};
use genv_tests::process::signal;
use genv_tests::shell::{Account, Shell};
use genv_tests::state;
use rustix::process::Signal;

use crate::life_cycle::members::listed;

pub(crate) fn genv(account: &Account, words: &[&str]) -> Result<Command> {
    let mut command = account.command("bash")?;
    let arguments = ["-c", "exec genv \"$@\"", "genv"];
    command.args(arguments).args(words).stdin(Stdio::null());
    Ok(command)
}

pub(crate) fn run(account: &Account, words: &[&str]) -> Result<(i32, String, String)> {
    run_with(account, &[], words)
}

/// The exit code, stdout and stderr of a genv command with these variables.
pub(crate) fn run_with(account: &Account, variables: &[(&str, &str)], words: &[&str]) -> Result<(i32, String, String)> {
    let done = output(genv(account, words)?.envs(variables.iter().copied()))?;
    let code = done.status.code().context("a signal ended it")?;
    Ok((code, String::from_utf8(done.stdout)?, String::from_utf8(done.stderr)?))
}

#[test]
fn the_exit_code_is_the_commands() -> Result<()> {
    let account = Account::new()?;
    std::fs::write(account.home().join("no-program"), "")?;
    let in_environment = format!("{}; genv activate --gpus 1; genv lock sh -c 'exit 7'", Shell::Bash.setup());
    for (script, code) in [
        ("genv exec -- true", 0),
        ("genv exec --gpus 1 false", 1),
        ("genv exec -- sh -c 'exit 255'", 255),
        ("genv exec -- sh -c 'kill -9 $$'", 137),
        ("genv exec -- sh -c 'kill -15 $$'", 143),
        ("genv exec -- nosuchprogram", 127),
        ("genv exec -- ./no-program", 126),
        ("genv exec -- sh -c 'genv exec -- sh -c \"exit 9\"'", 9),
        ("genv lock sh -c 'kill -9 $$'", 137),
        ("genv lock nosuchprogram", 127),
        (&in_environment, 7),
    ] {
        // Bash becomes its last command otherwise, and ends by the command's signal.
        let script = format!("{script}; exit $?");
        let (ended, printed, said) = account.script("bash", &[], &script)?;
        ensure!(ended == code, "{script} ended with {ended}: {printed}{said}");
        let genvs_own = [126, 127].contains(&code);
        ensure!(said.starts_with("genv: cannot run ") == genvs_own, "{script}: {said}");
    }
    // The last shell has not left its environment.
    run(&account, &["exec", "--", "true"])?;
    ensure!(listed(&account, "environments")?.is_empty());
    Ok(())
}

#[test]
fn the_command_has_its_environment_and_no_more_than_that() -> Result<()> {
    let account = Account::new()?;
    let print = "env | grep -e ^GENV_E -e ^GENV_G -e ^CUDA | sort; genv status --json | grep -c '\"pids\"'; echo $PATH";
    let words =
        ["exec", "--gpus", "2", "--gpu-memory", "4g", "--name", "my job", "--eid", "job", "--", "sh", "-c", print];
    let (_, printed, _) = run(&account, &words)?;
    let shims = genv_tests::shell::installation()?.join("lib/genv/shims");
    let expected = [
        "CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES=0,1",
        "GENV_ENVIRONMENT_ID=job",
        "GENV_ENVIRONMENT_NAME=my job",
        "GENV_GPUS=2",
        "GENV_GPU_MEMORY=4g",
        "1",
    ];
    ensure!(printed.starts_with(&expected.join("\n")), "{printed}");
    let path = printed.lines().last().context("no PATH")?;
    ensure!(path.starts_with(&format!("{}:", shims.display())), "{path}");
    // It ended with its command.
    ensure!(listed(&account, "environments")?.is_empty());
    Ok(())
}

#[test]
fn a_signal_to_genv_reaches_the_command() -> Result<()> {
    let account = Account::new()?;
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    for words in [&["exec", "--gpus", "1", "--"][..], &["lock"]] {
        let mut command = genv(&account, words)?;
        command.args(["sh", "-c", script]).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let printed = Lines::of(child.stdout.take().context("no stdout")?);
        ensure!(printed.next_line()? == "ready");
        signal(child.id(), Signal::TERM)?;
        let ended = ended(&mut child)?;
        ensure!(ended.code() == Some(5), "{words:?}: {ended}");
    }
    Ok(())
}

#[test]
fn the_command_keeps_its_devices_when_genv_is_killed() -> Result<()> {
    let account = Account::new()?;
    let words = ["exec", "--gpus", "4", "--", "sh", "-c", "echo $$; read line"];
    let mut child = genv(&account, &words)?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let input = child.stdin.take();
    let printed = Lines::of(child.stdout.take().context("no stdout")?);
    let command: u32 = printed.next_line()?.parse()?;
    until("the command is the member of its environment", || {
        Ok(state::member_pids(&listed(&account, "environments")?[0]) == [u64::from(command)])
    })?;
    signal(child.id(), Signal::KILL)?;
    ensure!(ended(&mut child)?.signal() == Some(9));
    ensure!(run(&account, &["exec", "--gpus", "1", "--", "true"])?.0 == 4);
    // The command reads the end of its input, and ends.
    drop(input);
    until("the command has ended", || Ok(!is_alive(command)))?;
    ensure!(run(&account, &["exec", "--gpus", "4", "--", "true"])?.0 == 0);
    Ok(())
}

#[test]
fn one_at_a_time_of_those_who_lock() -> Result<()> {
    let account = Account::new()?;
    let setup = Shell::Bash.setup();
    // Each adds 1 to a number that all read before any writes, if they were not locked out.
    let count = "n=$(cat n); sleep 0.05; echo $((n + 1)) > n";
    std::fs::write(account.home().join("n"), "0\n")?;
    let script =
        format!("{setup}; genv activate --gpus 2; for i in 1 2 3 4; do genv lock sh -c '{count}' & done; wait; cat n");
    let (code, printed, said) = account.script("bash", &[], &script)?;
    ensure!(code == 0 && printed == "4\n", "{printed}{said}");
    Ok(())
}

#[test]
fn a_program_that_is_missing_is_told_before_anybody_waits_for_devices() -> Result<()> {
    let account = Account::new()?;
    std::fs::create_dir(account.home().join("folder"))?;
    for (words, code, part) in [
        ("--wait=1h -- ./nosuchprogram", 127, "cannot run ./nosuchprogram: No such file"),
        ("--wait -- ./folder", 126, "Permission denied"),
        ("--wait 10m -- true", 127, "write --wait=10m"),
        ("--detach --wait 10m -- true", 127, "write --wait=10m"),
        ("-- 10m", 127, "cannot run 10m: No such file"),
    ] {
        let script = format!("genv exec --gpus 4 -- sh -c 'genv exec --gpus 1 {words}; exit $?'");
        let (ended, printed, said) = account.script("bash", &[], &script)?;
        ensure!(ended == code && printed.is_empty(), "{words}: {ended} {printed}{said}");
        ensure!(said.contains(part) && said.lines().count() == 1, "{words}: {said}");
    }
    Ok(())
}
