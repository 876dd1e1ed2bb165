//! The RPM, by the rpm that Debian has: what it needs is named as Debian does not name it.

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::Machine;

use crate::listed::is_listed;
use crate::{
    CONFIG, DAEMONS, DEB, RPM, TARBALL, boot, driver_is_missed, left, root_is, rpm, start_daemons, start_member,
};

#[test]
fn it_states_its_glibc_and_is_installed_and_removed() -> Result<()> {
    let machine = boot()?;
    // Of Debian's packages rpm knows nothing, so that to it no glibc is new enough.
    let output = machine.output(&["rpm", "--install", RPM])?;
    let said = String::from_utf8(output.stderr)?;
    let line = format!("libc.so.6(GLIBC_{})(64bit) is needed by genv-", stated_glibc(&machine)?);
    ensure!(!output.status.success() && said.contains(&line), "{said}");
    let said = rpm(&machine, &["--install", RPM])?;
    ensure!(said.contains("systemctl enable --now genv-exporter genv-enforcer"), "{said}");
    driver_is_missed(&said)?;
    let list = machine.run(&["rpm", "--verify", "--nodeps", "genv"])?;
    ensure!(list.is_empty(), "{list}");
    is_listed(&machine, "rpm", &machine.run(&["rpm", "--query", "--list", "genv"])?)?;
    root_is(|words| machine.run(words), "genv", "/usr/lib/genv")?;

    start_daemons(&machine)?;
    let member = start_member(&machine)?;
    let own = "version: 1\nrules: [{kind: max-age, limit: 7d}]\n";
    machine.write(CONFIG, own)?;
    rpm(&machine, &["--erase", "genv"])?;
    for daemon in DAEMONS {
        ensure!(machine.property(daemon, "ActiveState")? == "inactive", "{daemon} runs");
    }
    ensure!(!machine.path("usr/bin/genv").exists());
    ensure!(machine.read(&format!("{CONFIG}.rpmsave"))? == own);
    // Where there is more than what the package brought.
    let left = left(&machine)?;
    ensure!(left == "/etc/genv\n/var/lib/genv-enforcer\n", "{left}");
    ensure!(machine.is_alive(member), "its process has ended");
    Ok(())
}

/// The glibc that the Debian package requires, which the other packages and the documentation must state too.
fn stated_glibc(machine: &Machine) -> Result<String> {
    let depends = machine.run(&["dpkg-deb", "--field", DEB, "Depends"])?;
    let version = depends.split_once("libc6 (>= ");
    let version = version.and_then(|(_, rest)| rest.split_once(')'));
    let needed = version.with_context(|| depends.clone())?.0;
    let listed = machine.run(&["rpm", "--query", "--package", "--requires", RPM])?;
    let of_glibc = |line: &&str| line.contains(".so.") && line.contains("(GLIBC_2.");
    let newest = listed.lines().filter(of_glibc).filter_map(|line| {
        let minor = line.split_once("(GLIBC_2.")?.1.split(['.', ')']).next()?;
        minor.parse::<u32>().ok()
    });
    let newest = newest.max().context("no glibc")?;
    ensure!(needed == format!("2.{newest}"), "{needed}: {listed}");
    let script = machine.run(&["bash", "-c", &format!("tar -xzOf {TARBALL} --wildcards '*/install.sh'")])?;
    ensure!(script.contains(&format!("glibc {needed} or newer")), "{script}");
    let guide = include_str!("../../docs/install.md");
    for line in [format!("with glibc {needed} or newer"), format!("libc6 (>= {needed})")] {
        ensure!(guide.contains(&line), "docs/install.md does not say: {line}");
    }
    Ok(needed.to_owned())
}
