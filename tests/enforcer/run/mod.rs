mod acting;
mod administration;
mod blind;
mod disputed;
mod hindered;
mod killed;
mod leases;
mod left_behind;
mod pacing;
mod planted;
mod surroundings;
mod telling;
mod trouble;
mod watchdog;

use anyhow::Result;
use genv_tests::enforcer::{Setup, ends_outsiders, enforcing, sleeper, victim};
use genv_tests::nvml_sim::used_by;
use genv_tests::process::Sleeper;
use genv_tests::state::{self, Environment};

/// An enforcer with a rule that detaches both devices of the victim's environment `e1`, and with further rules; and the
/// member of `e1`.
fn taking_both(further_rules: &str) -> Result<(Setup, Sleeper)> {
    let member = sleeper(&[])?;
    let detaches = "- {kind: max-devices-per-user, limit: 0, action: detach, for: 0s, warn: []}\n";
    let setup = Setup::new(&used_by(&[]), &enforcing(&format!("{detaches}{further_rules}")))?;
    let own = Environment::new("e1", victim(), member.pid(), &[0, 1]);
    state::write(&setup.genv_directory(), 2, &[own])?;
    Ok((setup, member))
}

/// A process outside of any environment, and an enforcer that ends it.
fn outsider(mode: &str, when: &str) -> Result<(Sleeper, Setup)> {
    let process = sleeper(&[])?;
    let setup = Setup::new(&used_by(&[process.pid()]), &ends_outsiders(mode, when))?;
    Ok((process, setup))
}
