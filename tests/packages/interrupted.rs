//! An upgrade by a dpkg that is killed on its way.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use genv_tests::machine::Machine;

use crate::package::Package;
use crate::{CONFIG, DEB, boot, dpkg_status, install};

const OWN: &str = "version: 1\ninterval: 100ms\nrules: [{kind: max-age, limit: 7d}]\n";

/// Begins an upgrade in which dpkg meets this in place of one of the programs that it calls.
fn upgrade_until_killed(machine: &Machine, program: &str, script: &str) -> Result<()> {
    Package::Deb.install_earlier(machine)?;
    machine.write(CONFIG, OWN)?;
    machine.run(&["systemctl", "enable", "--now", "genv-enforcer"])?;
    let stub = format!("usr/local/sbin/{program}");
    machine.write(&stub, &format!("#!/bin/bash\n{script}\n"))?;
    fs::set_permissions(machine.path(&stub), fs::Permissions::from_mode(0o755))?;
    let path = "PATH=/usr/local/sbin:/usr/sbin:/usr/bin";
    let output = machine.output(&["env", path, "dpkg", "--force-confold", "--install", DEB])?;
    ensure!(
        !output.status.success() && output.status.code().is_none_or(|code| code > 128),
        "dpkg was not killed: {output:?}"
    );
    fs::remove_file(machine.path(&stub))?;
    Ok(())
}

/// Whether the package is whole, with the administrator's configuration, and the daemon runs.
fn is_whole(machine: &Machine) -> Result<()> {
    let status = dpkg_status(machine)?;
    ensure!(
        status.starts_with("install ok installed ") && !status.contains("0.0.9"),
        "{status}"
    );
    ensure!(machine.read(CONFIG)? == OWN, "{}", machine.read(CONFIG)?);
    machine.wait_for_status("genv-enforcer", |status| {
        status.starts_with("dry-run: 1 rules")
    })?;
    // Not the program that is there no more.
    let program = format!("/proc/{}/exe", machine.main_pid("genv-enforcer")?);
    let program = machine.run(&["readlink", &program])?;
    ensure!(program == "/usr/bin/genv-enforcer\n", "{program}");
    Ok(())
}

#[test]
fn killed_while_it_configures_it_is_finished_by_dpkg() -> Result<()> {
    let machine = boot()?;
    // dpkg, and the script of the package that it runs.
    let script = "kill -KILL \"$(awk '{ print $4 }' /proc/$PPID/stat)\" $PPID";
    upgrade_until_killed(&machine, "systemd-sysusers", script)?;
    let status = dpkg_status(&machine)?;
    ensure!(
        status.starts_with("install ok half-configured "),
        "{status}"
    );
    machine.run(&["genv", "envs"])?;
    ensure!(machine.property("genv-enforcer", "ActiveState")? == "active");
    machine.run(&["dpkg", "--force-confold", "--configure", "-a"])?;
    is_whole(&machine)
}

#[test]
fn killed_while_it_unpacks_it_is_finished_by_installing_again() -> Result<()> {
    let machine = boot()?;
    let script = "[[ $* == *--fsys-tarfile* ]] || exec /usr/bin/dpkg-deb \"$@\"\n\
                  /usr/bin/dpkg-deb \"$@\" | head -c 5000000; kill -KILL $PPID";
    upgrade_until_killed(&machine, "dpkg-deb", script)?;
    let status = dpkg_status(&machine)?;
    ensure!(
        status.starts_with("install reinstreq half-installed "),
        "{status}"
    );
    ensure!(machine.property("genv-enforcer", "ActiveState")? == "active");
    // apt asks for this first; of a package of which only a part is there it finds nothing to configure.
    machine.output(&["dpkg", "--configure", "-a"])?;
    install(&machine, DEB)?;
    is_whole(&machine)
}
