//! Who is in an environment, and what happens to it when shells come and go.

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::process_of_another;
use genv_tests::process::Sleeper;
use genv_tests::shell::{Account, Shell, first_eid};
use genv_tests::state::{self, Environment};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use serde_json::Value;

/// A list of the state.
pub(crate) fn listed(account: &Account, key: &str) -> Result<Vec<Value>> {
    let mut state = state::read(&account.state())?;
    serde_json::from_value(state[key].take()).context("no list")
}

#[test]
fn a_pid_that_names_another_users_environment_does_not_keep_a_shell_from_its_own() -> Result<()> {
    let account = Account::new()?;
    let (other, member, _process) = process_of_another()?;
    // The shell's pid is not known before it runs: it writes the state itself.
    let environment = Environment::new(&first_eid("PID"), other, member, &[]);
    state::write(&account.home().join("template"), 4, &[environment])?;
    std::fs::create_dir_all(account.state())?;
    let lines = [
        Shell::Bash.setup(),
        "sed s/PID/$$/ ~/template/state.json > $GENV_TMPDIR/state.json; echo $$",
        "genv activate",
        "echo $GENV_ENVIRONMENT_ID",
    ]
    .map(str::to_owned);
    let outcomes = account.lines(Shell::Bash, &[], &lines)?;
    let pid = outcomes[1].stdout.trim();
    ensure!(outcomes[2].code == 0, "{outcomes:?}");
    ensure!(outcomes[3].stdout.trim() == format!("{}-2", first_eid(pid)), "{outcomes:?}");
    Ok(())
}

#[test]
fn an_environment_ends_with_its_last_shell_even_if_that_does_not_deactivate() -> Result<()> {
    let account = Account::new()?;
    let script = format!("{}; genv activate --gpus 4", Shell::Bash.setup());
    for _ in 0..2 {
        // The second one gets all devices, since the first has ended.
        let (code, _, said) = account.script("bash", &[], &script)?;
        ensure!(code == 0, "{said}");
        ensure!(listed(&account, "environments")?.len() == 1);
    }
    // A look removes it: later processes of the user cannot make its end doubtful to others.
    account.script("bash", &[], "genv devices")?;
    ensure!(listed(&account, "environments")?.is_empty());
    Ok(())
}

#[test]
fn a_subshell_is_named_since_the_environment_ends_with_it() -> Result<()> {
    let account = Account::new()?;
    let said = |line: &str| -> Result<String> {
        let script = format!("{}; {line}", Shell::Bash.setup());
        Ok(account.script("bash", &["--norc", "-i"], &script)?.2)
    };
    for line in ["genv activate | cat", "x=$(genv activate)", "(genv activate)"] {
        ensure!(said(line)?.contains("genv: this is a subshell"), "{line}");
    }
    ensure!(!said("genv activate")?.contains("subshell"));
    let script = format!("{}; (genv activate)", Shell::Bash.setup());
    let (_, _, said) = account.script("bash", &[], &script)?;
    ensure!(!said.contains("subshell"), "{said}");
    Ok(())
}

#[test]
fn what_cannot_be_applied_to_the_active_environment_is_refused() -> Result<()> {
    let account = Account::new()?;
    let own = "genv activate --id $GENV_ENVIRONMENT_ID";
    let script = format!(
        "{}; genv activate --gpus 1; {own} || echo fails; for flag in '--for 3h' '--gpus 3' '--name z'; do {own} $flag && echo succeeds; done; \
         genv extend 1h --eid none; echo $?; genv status",
        Shell::Bash.setup()
    );
    let (_, stdout, stderr) = account.script("bash", &[], &script)?;
    ensure!(!stdout.contains("fails") && !stdout.contains("succeeds"), "{stdout}{stderr}");
    ensure!(stderr.matches("'genv extend' change it").count() == 3, "{stderr}");
    ensure!(stderr.contains("there is no environment none. 'genv envs' lists those that there are"), "{stderr}");
    ensure!(stdout.starts_with("1\n") && stdout.contains("to device 0"), "{stdout}");
    Ok(())
}

#[test]
fn a_member_that_nobody_waits_for_has_ended() -> Result<()> {
    let account = Account::new()?;
    let member = Sleeper::start(&[])?;
    let uid = rustix::process::getuid().as_raw();
    let make = format!(
        "genv envs activate --eid e1 --uid {uid} --pid {}; for gpu in 0 2; do genv devices attach --eid e1 --index $gpu; done",
        member.pid()
    );
    let (code, _, said) = account.script("bash", &[], &make)?;
    ensure!(code == 0, "{said}");
    let list = || account.script("bash", &[], "genv envs --no-header; genv devices find --eid e1");
    ensure!(list()?.1.contains("0,2\n"), "{:?}", list()?);
    // Its parent, this process, does not ask how it ended.
    let pid = i32::try_from(member.pid())?;
    let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let leave = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), leave)?;
    ensure!(list()?.1 == "\n", "{:?}", list()?);
    let (code, printed, said) = account.script("bash", &[], "genv exec --gpus 4 -- printenv CUDA_VISIBLE_DEVICES")?;
    ensure!(code == 0 && printed == "0,1,2,3\n", "{printed}{said}");
    Ok(())
}
