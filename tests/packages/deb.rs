//! The Debian package: installed, removed and purged.

use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result, ensure};
use genv_tests::documentation::Page;
use genv_tests::patience::until;

use crate::listed::is_listed;
use crate::{
    CONFIG, DAEMONS, DEB, boot, driver_is_missed, install, left, root_is, start_daemons, start_member, states,
};

#[test]
fn installed_it_says_what_to_do_next_and_starts_nothing_by_itself() -> Result<()> {
    let machine = boot()?;
    let said = install(&machine, DEB)?;
    ensure!(said.contains("systemctl enable --now genv-exporter genv-enforcer"), "{said}");
    driver_is_missed(&said)?;
    ensure!(!said.contains("systemd does not run here"), "{said}");
    for daemon in DAEMONS {
        let found = states(&machine, daemon)?;
        ensure!(found == ["disabled", "inactive"], "{daemon}: {found:?}");
    }
    let state = machine.path("var/tmp/genv").metadata()?;
    ensure!(state.mode() == 0o40_777 && state.uid() == 0, "{:o} {}", state.mode(), state.uid());
    is_listed(&machine, "deb", &machine.run(&["dpkg", "--listfiles", "genv"])?)?;
    for shim in ["nvidia-smi", "docker"] {
        let script = format!("command -v {shim}");
        let found =
            machine.run(&["env", "GENV_DEVICES=2", "genv", "exec", "--gpus", "1", "--", "sh", "-c", &script])?;
        ensure!(found.trim_end() == format!("/usr/lib/genv/shims/{shim}"), "{found}");
    }
    // The example of 'genv-shim --help'.
    let pages = Page::all()?;
    let mut lines = pages.iter().flat_map(|page| page.text.lines());
    let example = lines.find_map(|line| line.strip_prefix("  ln -s ")).context("no page has the example")?;
    let script = format!("cd && mkdir shims && ln -s {example} && test -x shims/nvidia-smi");
    machine.run(&["env", "HOME=/root", "bash", "-ec", &script])?;

    root_is(|words| machine.run(words), "genv", "/usr/lib/genv")?;
    // The documentation of genv 1.x gives this command for removal.
    machine.run(&["bash", "-c", "rm -rf $(genv root)"])?;
    machine.run(&["genv", "--version"])?;
    let output = machine.output(&["genv", "root"])?;
    ensure!(output.status.code() == Some(1) && output.stdout.is_empty());
    Ok(())
}

#[test]
fn removed_it_leaves_configuration_and_environments_and_purged_only_those() -> Result<()> {
    let machine = boot()?;
    install(&machine, DEB)?;
    start_daemons(&machine)?;
    let member = start_member(&machine)?;
    machine.run(&["apt-get", "remove", "--yes", "genv"])?;
    for daemon in DAEMONS {
        ensure!(states(&machine, daemon)?[1] == "inactive", "{daemon} runs");
    }
    ensure!(!machine.path("usr/bin/genv").exists());
    ensure!(machine.path(CONFIG).exists(), "{CONFIG} is gone");
    let output = machine.output(&["bash", "-lic", "type genv"])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(said.contains("genv: not found") && !said.contains("No such file"), "{said}");

    install(&machine, DEB)?;
    for daemon in DAEMONS {
        ensure!(states(&machine, daemon)?[0] == "enabled", "{daemon}");
    }
    machine.write("var/tmp/other", "")?;
    // As Debian 13 clears /var/tmp, with an age after which every file is old.
    machine.write("etc/tmpfiles.d/tmp.conf", "q /var/tmp 1777 root root 0\n")?;
    until("old files are removed", || {
        machine.run(&["systemd-tmpfiles", "--clean"])?;
        Ok(!machine.path("var/tmp/other").exists())
    })?;

    // The scenario belongs to the machine, as the settings of units do.
    machine.run(&["rm", "/etc/genv/scenario.yaml"])?;
    machine.run(&["apt-get", "purge", "--yes", "genv"])?;
    let left = left(&machine)?;
    ensure!(left.is_empty(), "{left}");
    ensure!(machine.is_alive(member), "its process has ended");
    let state = machine.read("var/tmp/genv/state.json")?;
    ensure!(state.contains("training"), "{state}");
    Ok(())
}
