//! Shells that are started within an environment: by tmux, by an editor, by another shell.

use anyhow::{Result, ensure};
use genv_tests::patience::DRIVER_PATIENCE;
use genv_tests::process::Sleeper;
use genv_tests::shell::{Account, Outcome, Shell};
use genv_tests::state::{self, Environment};

/// An account with an environment of which a process that goes on is a member.
pub(crate) fn with_environment(eid: &str, uid: u32) -> Result<(Account, Sleeper)> {
    let account = Account::new()?;
    let member = Sleeper::start(&[])?;
    let environment = Environment { gpu_memory: Some("4g"), ..Environment::new(eid, uid, member.pid(), &[1, 3]) };
    state::write(&account.state(), 4, &[environment])?;
    Ok((account, member))
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn members(account: &Account) -> Result<Vec<u64>> {
    Ok(state::member_pids(&state::read(&account.state())?["environments"][0]))
}

fn left(outcome: &Outcome) -> Vec<&str> {
    let names = outcome.variables.keys().filter_map(|name| name.to_str());
    names
        .filter(|name| {
            name.starts_with("CUDA_")
                || name.starts_with("GENV_") && !["GENV_TMPDIR", "GENV_DEVICES", DRIVER_PATIENCE.0].contains(name)
        })
        .collect()
}

pub(crate) const INHERITED: [(&str, &str); 4] = [
    ("GENV_ENVIRONMENT_ID", "it's $(one)"),
    ("CUDA_VISIBLE_DEVICES", "0"),
    ("GENV_GPUS", "9"),
    ("GENV_RESTORE", "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES="),
];

#[test]
fn a_shell_joins_the_environment_it_was_started_in() -> Result<()> {
    for shell in Shell::ALL {
        let (account, member) = with_environment(INHERITED[0].1, own_uid())?;
        let pid = format!("echo {}", shell.pid());
        let lines = [shell.setup(), shell.setup(), &pid].map(str::to_owned);
        let outcomes = account.lines(shell, &INHERITED, &lines)?;
        let [first, again, pid] = &outcomes[..] else { unreachable!() };
        for outcome in [first, again] {
            ensure!(
                outcome.code == 0 && outcome.stderr.is_empty() && outcome.stdout.is_empty(),
                "{shell}: {outcome:?}"
            );
            for (name, value) in [
                ("GENV_ENVIRONMENT_ID", Some(INHERITED[0].1)),
                ("CUDA_VISIBLE_DEVICES", Some("1,3")),
                ("CUDA_DEVICE_ORDER", Some("PCI_BUS_ID")),
                ("GENV_SHELL", Some("1")),
                // Not as the parent had it, but as it is.
                ("GENV_GPUS", None),
            ] {
                let found = outcome.variable(name).and_then(|value| value.to_str());
                ensure!(found == value, "{shell}: {name} is {found:?}");
            }
        }
        let pid: u64 = pid.stdout.trim().parse()?;
        ensure!(members(&account)? == [u64::from(member.pid()), pid], "{shell}");
    }
    Ok(())
}

#[test]
fn a_shell_leaves_an_environment_that_ended() -> Result<()> {
    for shell in Shell::ALL {
        let account = Account::new()?;
        let outcomes = account.lines(shell, &INHERITED, &[shell.setup().to_owned()])?;
        let [outcome] = &outcomes[..] else { unreachable!() };
        ensure!(outcome.code == 0 && outcome.stderr.is_empty(), "{shell}: a script is told nothing: {outcome:?}");
        ensure!(left(outcome) == ["CUDA_VISIBLE_DEVICES"], "{shell}: {outcome:?}");
        ensure!(outcome.variable("CUDA_VISIBLE_DEVICES").is_some_and(|value| value.is_empty()), "{shell}");
        ensure!(!account.state().exists(), "{shell}: nothing was to be written");
    }
    Ok(())
}

#[test]
fn a_shell_leaves_an_environment_of_another_user() -> Result<()> {
    let (account, member) = with_environment(INHERITED[0].1, own_uid() + 1)?;
    let outcomes = account.lines(Shell::Bash, &INHERITED, &[Shell::Bash.setup().to_owned()])?;
    ensure!(left(&outcomes[0]) == ["CUDA_VISIBLE_DEVICES"], "{outcomes:?}");
    ensure!(members(&account)? == [u64::from(member.pid())]);
    Ok(())
}

#[test]
fn a_container_keeps_the_environment_it_was_given() -> Result<()> {
    let mut inherited = INHERITED.to_vec();
    inherited.push(("GENV_CONTAINER", "1"));
    let outcomes = Account::new()?.lines(Shell::Bash, &inherited, &[Shell::Bash.setup().to_owned()])?;
    for (name, value) in &inherited {
        let found = outcomes[0].variable(name).and_then(|found| found.to_str());
        ensure!(found == Some(*value), "{name} is {found:?}");
    }
    Ok(())
}

#[test]
fn an_unreadable_state_leaves_the_shell_as_it_is() -> Result<()> {
    let account = Account::new()?;
    std::fs::write(account.state(), "no folder")?;
    let outcomes = account.lines(Shell::Bash, &INHERITED, &[Shell::Bash.setup().to_owned()])?;
    let outcome = &outcomes[0];
    ensure!(outcome.code == 0 && outcome.stderr.starts_with("genv: cannot"), "{outcome:?}");
    ensure!(outcome.stderr.lines().count() == 1, "{outcome:?}");
    ensure!(outcome.variable("CUDA_VISIBLE_DEVICES").is_some_and(|value| value == "0"));
    Ok(())
}
