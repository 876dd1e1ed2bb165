//! An upgrade of each package from an earlier version.

use anyhow::{Result, ensure};
use genv_tests::machine::Machine;

use crate::package::{OWN, Package};
use crate::{CONFIG, DAEMONS, boot, root_is, start_daemons, start_member, states};

/// The processes of both daemons.
fn pids(machine: &Machine) -> Result<Vec<u32>> {
    let pids = DAEMONS.iter().map(|daemon| machine.main_pid(daemon));
    pids.collect()
}

fn keeps_configuration_and_environments(package: Package) -> Result<()> {
    let machine = boot()?;
    package.install_earlier(&machine)?;
    machine.write(CONFIG, OWN)?;
    start_daemons(&machine)?;
    let member = start_member(&machine)?;
    let before = machine.run(&["genv", "envs", "--json"])?;
    let earlier = pids(&machine)?;

    let said = package.install(&machine)?;
    ensure!(!said.contains("cannot use"), "{said}");
    package.is_whole(&machine)?;
    root_is(|words| machine.run(words), "genv", "/usr/lib/genv")?;
    ensure!(machine.read(CONFIG)? == OWN, "{}", machine.read(CONFIG)?);
    let beside = machine.read(package.new_configuration())?;
    ensure!(beside == machine.read("usr/share/genv/enforcer.yaml")?, "{beside}");
    for ((daemon, pid), earlier) in DAEMONS.into_iter().zip(pids(&machine)?).zip(earlier) {
        ensure!(pid != earlier, "{daemon} goes on as it was");
        let found = states(&machine, daemon)?;
        ensure!(found == ["enabled", "active"], "{daemon}: {found:?}");
    }
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))?;
    ensure!(machine.is_alive(member), "its process has ended");
    let after = machine.run(&["genv", "envs", "--json"])?;
    ensure!(before.contains("training") && after.contains("training"), "{before}{after}");
    Ok(())
}

#[test]
fn by_apt_it_keeps_configuration_and_environments_and_starts_the_daemons_again() -> Result<()> {
    keeps_configuration_and_environments(Package::Deb)
}

#[test]
fn by_rpm_it_keeps_configuration_and_environments_and_starts_the_daemons_again() -> Result<()> {
    keeps_configuration_and_environments(Package::Rpm)
}

fn leaves_the_enforcer_alone_that_it_cannot_configure(package: Package) -> Result<()> {
    let machine = boot()?;
    package.install_earlier(&machine)?;
    start_daemons(&machine)?;
    let earlier = pids(&machine)?;
    machine.write(CONFIG, "version: 0\nrules: []\n")?;
    let said = package.install(&machine)?;
    for line in [
        "enforcer.yaml:1:10: version 0 is not known: this program reads version 1",
        "this version cannot use /etc/genv/enforcer.yaml; a genv-enforcer that runs goes on as it was",
    ] {
        ensure!(said.contains(line), "{line}: {said}");
    }
    package.is_whole(&machine)?;
    let now = pids(&machine)?;
    ensure!(now[0] != earlier[0], "the exporter goes on as it was");
    ensure!(now[1] == earlier[1], "the enforcer was started again");
    for daemon in DAEMONS {
        ensure!(states(&machine, daemon)?[1] == "active", "{daemon}");
    }

    // What it says is to be done then.
    machine.write(CONFIG, "version: 1\nrules: [{kind: max-age, limit: 7d}]\n")?;
    machine.run(&["systemctl", "restart", "genv-enforcer"])?;
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))
}

#[test]
fn by_apt_with_a_configuration_that_the_new_version_cannot_use_the_enforcer_goes_on_as_it_was() -> Result<()> {
    leaves_the_enforcer_alone_that_it_cannot_configure(Package::Deb)
}

#[test]
fn by_rpm_with_a_configuration_that_the_new_version_cannot_use_the_enforcer_goes_on_as_it_was() -> Result<()> {
    leaves_the_enforcer_alone_that_it_cannot_configure(Package::Rpm)
}
