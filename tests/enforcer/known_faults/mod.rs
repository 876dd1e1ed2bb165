//! What genv 1.4.3 is known to do wrong in the life of an environment and in enforcing rules, one test for each fault.
//!
//! Those that other tests show:
//!
//! | fault of genv 1.4.3 | shown by |
//! |---|---|
//! | names from `.genv/name`, `--name` and `--eid` are executed | `commands/shells/scenarios.rs`: "a name or id of several words is one", "a .genv folder is loaded and attached on activation"; every byte: `commands/shells/quoting.rs` |
//! | `CUDA_VISIBLE_DEVICES` stays set; an empty value comes back unset | `commands/shells/scenarios.rs`: "an unset variable is unset again", "an empty variable is empty again" |
//! | `GENV_ENVS` grows without end | `commands/shells/scenarios.rs`: "nothing grows, however often" |
//! | errors in zsh and fish | `commands/shells/scenarios.rs`, which runs all its scenarios in each |
//! | `--name 'my env'` is split | `commands/shells/scenarios.rs`: "a name or id of several words is one" |
//! | failures return 0 | `commands/shells/scenarios.rs`: "failures keep their exit codes and change nothing"; `commands/shells/init.rs` |
//! | `.genv` is not loaded on activation | `commands/shells/scenarios.rs`: "a .genv folder is loaded and attached on activation" |
//! | a failed `activate --gpus 5` leaves an environment behind | `commands/shells/scenarios.rs`: "failures keep their exit codes and change nothing" |
//! | `gpus -1`, `gpu-memory abc` are accepted, index 99 and `4GB` end in tracebacks | `commands/life_cycle/bad_input.rs`, `commands/life_cycle/story.rs` |
//! | killed while saving | `commands/state.rs`, and each step in the unit tests of the state |
//! | a process that cannot be read counts as outside; claiming `nosuch`, or nothing, evades every rule | `root/users/mod.rs`, `devices/attribution.rs`, `fixtures/attribution-cases.json` |
//! | what is damaged in one environment ends the enforcement | `enforcer/run/trouble.rs`: "a damaged environment stops nothing else"; `peer/enforce/mod.rs` |
//! | a driver that hangs holds everything | `enforcer/run/trouble.rs`: "promise 09" |
//! | SIGTERM to a bare pid | `root/enforcer/recycled.rs`: "promise 01", twice |
//! | `[N/A]`, a failing driver, a non-UTF-8 environ, damaged state end the monitor | `devices/faults/driver.rs`, `devices/attribution.rs` |
//! | the shim misaligns and loses lines | `commands/shims/output.rs` |

mod crowded;
mod enforcement;
mod names;
mod state_files;
mod waiting;

use std::fs;

use anyhow::{Context, Result, ensure};
use genv_tests::process::Sleeper;
use genv_tests::shell::{Account, Outcome, Shell};
use genv_tests::state::{self, Environment};
use serde_json::Value;

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// An account on whose machine a process is in the environment `e1`, which has device 0 of four.
fn with_environment(owner: u32) -> Result<(Account, Sleeper)> {
    let account = Account::new()?;
    let member = Sleeper::start(&[])?;
    let environment = Environment::new("e1", owner, member.pid(), &[0]);
    state::write(&account.state(), 4, &[environment])?;
    Ok((account, member))
}

fn read(account: &Account, name: &str) -> Result<Value> {
    let content = fs::read(account.state().join(name)).context(name.to_owned())?;
    Ok(serde_json::from_slice(&content)?)
}

/// Changes a file of the state as somebody with an editor could.
fn edit(account: &Account, name: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
    let mut content = read(account, name)?;
    change(&mut content);
    Ok(fs::write(account.state().join(name), serde_json::to_vec(&content)?)?)
}

/// Sets genv up in a shell, and runs the lines.
fn run(account: &Account, shell: Shell, lines: &[&str]) -> Result<Vec<Outcome>> {
    run_with(account, shell, &[], lines)
}

fn run_with(account: &Account, shell: Shell, variables: &[(&str, &str)], lines: &[&str]) -> Result<Vec<Outcome>> {
    let lines = std::iter::once(shell.setup()).chain(lines.iter().copied());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    let mut outcomes = account.lines(shell, variables, &lines)?;
    outcomes.remove(0);
    Ok(outcomes)
}

/// Sees to it that all lines have succeeded.
fn all_done(outcomes: &[Outcome]) -> Result<()> {
    for outcome in outcomes {
        ensure!(outcome.code == 0, "{outcome:?}");
    }
    Ok(())
}

/// What people do in a day.
const EVERY_COMMAND: [&str; 10] = [
    "genv envs",
    "genv devices",
    "genv usage snapshot",
    "genv free",
    "genv activate --gpus 1",
    "genv status",
    "genv config name x",
    "genv attach --count 2",
    "genv lock true",
    "genv deactivate",
];
