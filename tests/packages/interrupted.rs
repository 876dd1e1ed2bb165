//! An upgrade by a dpkg or an rpm that is killed on its way.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use genv_tests::machine::Machine;

use crate::package::{OWN, Package, rpm};
use crate::{CONFIG, DEB, RPM, boot, dpkg_status, install, start_member};

/// Kills dpkg or rpm, and the script of the package that it runs.
const KILL: &str = "kill -KILL \"$(awk '{ print $4 }' /proc/$PPID/stat)\" $PPID";

/// Upgrades by a command that meets this in place of one of the programs that it calls, and is killed by it. Between the two
/// versions genv works, and what runs goes on.
fn upgrade_until_killed(
    machine: &Machine,
    package: Package,
    command: &[&str],
    (program, script): (&str, &str),
) -> Result<()> {
    package.install_earlier(machine)?;
    machine.write(CONFIG, OWN)?;
    machine.run(&["systemctl", "enable", "--now", "genv-enforcer"])?;
    let pid = machine.main_pid("genv-enforcer")?;
    let member = start_member(machine)?;
    // Before those in /usr/bin on PATH, also on that of rpm's scripts.
    let stub = format!("usr/sbin/{program}");
    machine.write(&stub, &format!("#!/bin/bash\n{script}\n"))?;
    fs::set_permissions(machine.path(&stub), fs::Permissions::from_mode(0o755))?;
    let output = machine.output(command)?;
    ensure!(
        !output.status.success() && output.status.code().is_none_or(|code| code > 128),
        "it was not killed: {output:?}"
    );
    fs::remove_file(machine.path(&stub))?;
    let environments = machine.run(&["genv", "envs"])?;
    ensure!(environments.contains("training"), "{environments}");
    ensure!(machine.is_alive(member), "its process has ended");
    ensure!(machine.main_pid("genv-enforcer")? == pid, "it did not go on");
    Ok(())
}

/// Runs a command, which fails or not; whether it says this, as documented.
fn says(machine: &Machine, words: &[&str], line: &str) -> Result<()> {
    let output = machine.output(words)?;
    let said = String::from_utf8([output.stdout, output.stderr].concat())?;
    ensure!(said.contains(line), "{words:?}: {said}");
    let guide = include_str!("../../docs/install.md");
    ensure!(guide.contains(line), "docs/install.md does not say: {line}");
    Ok(())
}

/// Whether apt does nothing until dpkg has been asked to finish.
fn apt_waits_for_dpkg(machine: &Machine) -> Result<()> {
    let line = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a'";
    says(machine, &["apt-get", "install", "--yes", DEB], line)
}

/// Whether the package is whole, with the administrator's configuration, and the daemon runs.
fn is_whole(machine: &Machine, package: Package) -> Result<()> {
    package.is_whole(machine)?;
    ensure!(machine.read(CONFIG)? == OWN, "{}", machine.read(CONFIG)?);
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))?;
    // Not the program that is there no more.
    let program = format!("/proc/{}/exe", machine.main_pid("genv-enforcer")?);
    let program = machine.run(&["readlink", &program])?;
    ensure!(program == "/usr/bin/genv-enforcer\n", "{program}");
    Ok(())
}

#[test]
fn killed_while_it_configures_it_is_finished_by_dpkg() -> Result<()> {
    let machine = boot()?;
    let upgrade = ["dpkg", "--force-confold", "--install", DEB];
    let stub = ("systemd-sysusers", KILL);
    upgrade_until_killed(&machine, Package::Deb, &upgrade, stub)?;
    let status = dpkg_status(&machine)?;
    ensure!(status.starts_with("install ok half-configured "), "{status}");
    apt_waits_for_dpkg(&machine)?;
    machine.run(&["dpkg", "--force-confold", "--configure", "-a"])?;
    is_whole(&machine, Package::Deb)
}

#[test]
fn killed_while_it_unpacks_it_is_finished_by_installing_again() -> Result<()> {
    let machine = boot()?;
    let upgrade = ["dpkg", "--force-confold", "--install", DEB];
    let script = "[[ $* == *--fsys-tarfile* ]] || exec /usr/bin/dpkg-deb \"$@\"\n\
                  /usr/bin/dpkg-deb \"$@\" | head -c 5000000; kill -KILL $PPID";
    upgrade_until_killed(&machine, Package::Deb, &upgrade, ("dpkg-deb", script))?;
    let status = dpkg_status(&machine)?;
    ensure!(status.starts_with("install reinstreq half-installed "), "{status}");
    apt_waits_for_dpkg(&machine)?;
    // Of a package of which only a part is there it finds nothing to configure.
    machine.run(&["dpkg", "--configure", "-a"])?;
    let line = "E: The package genv needs to be reinstalled, but I can't find an archive for it.";
    says(&machine, &["apt-get", "remove", "--yes", "genv"], line)?;
    let line = "package is in a very bad inconsistent state";
    says(&machine, &["dpkg", "--remove", "genv"], line)?;
    install(&machine, DEB)?;
    is_whole(&machine, Package::Deb)
}

#[test]
fn killed_before_the_script_of_the_package_rpm_finishes_it_by_force() -> Result<()> {
    let machine = boot()?;
    let upgrade = ["rpm", "--nodeps", "--upgrade", RPM];
    let stub = ("systemd-sysusers", KILL);
    upgrade_until_killed(&machine, Package::Rpm, &upgrade, stub)?;
    let both = machine.run(&["rpm", "--query", "genv"])?;
    ensure!(both.lines().count() == 2 && both.starts_with("genv-0.0.9-1."), "{both}");
    says(&machine, &upgrade, "is already installed")?;
    rpm(&machine, &["--upgrade", "--force", RPM])?;
    is_whole(&machine, Package::Rpm)
}
