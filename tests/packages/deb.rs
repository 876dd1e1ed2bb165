//! The Debian package: installed, removed and purged.

use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::USER;
use genv_tests::patience::until;

use crate::{
    CONFIG, DAEMONS, DEB, boot, changed, driver_is_missed, install, left, root_is, start_daemons, start_member, states,
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
    for file in [
        "usr/share/man/man1/genv-activate.1.gz",
        "usr/share/man/man1/genv-exporter.1.gz",
        "usr/share/man/man1/genv-enforcer-check.1.gz",
        "usr/share/bash-completion/completions/genv",
        "usr/share/zsh/vendor-completions/_genv",
        "usr/share/fish/vendor_completions.d/genv.fish",
    ] {
        ensure!(machine.path(file).metadata()?.len() > 100, "{file}");
    }
    for shim in ["nvidia-smi", "docker"] {
        let script = format!("command -v {shim}");
        let found =
            machine.run(&["env", "GENV_DEVICES=2", "genv", "exec", "--gpus", "1", "--", "sh", "-c", &script])?;
        ensure!(found.trim_end() == format!("/usr/lib/genv/shims/{shim}"), "{found}");
    }
    root_is(|words| machine.run(words), "genv", "/usr/lib/genv")?;
    // The documentation of genv 1.x gives this command for removal.
    machine.run(&["bash", "-c", "rm -rf $(genv root)"])?;
    machine.run(&["genv", "--version"])?;
    let output = machine.output(&["genv", "root"])?;
    ensure!(output.status.code() == Some(1) && output.stdout.is_empty());
    Ok(())
}

#[test]
fn its_daemons_run_as_their_users_and_see_environments_of_others() -> Result<()> {
    let machine = boot()?;
    install(&machine, DEB)?;
    let member = start_member(&machine)?;
    let outsider = machine.start("outsider", &["sleep", "1000000"], "sleep")?;
    machine.use_devices(&[member, outsider])?;
    start_daemons(&machine)?;
    let scrape = machine.scrape(9820)?;
    scrape.value("genv_environment_info", &[("env_name", "training"), ("username", USER)])?;
    for (state, processes) in [("environment", 1.0), ("outside", 1.0), ("unknown", 0.0)] {
        let found = scrape.value("genv_processes", &[("state", state)])?;
        ensure!(found.to_bits() == f64::to_bits(processes), "{state}: {found}");
    }
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 4 rules, "))?;
    for (daemon, user, most_exposure) in [("genv-exporter", "genv-exporter", 1.5), ("genv-enforcer", "genv", 2.0)] {
        let pid = machine.main_pid(daemon)?;
        let uid: u32 = machine.run(&["id", "--user", user])?.trim().parse()?;
        ensure!(machine.path(&format!("proc/{pid}")).metadata()?.uid() == uid, "{daemon}");
        machine.judge(daemon, most_exposure)?;
    }
    Ok(())
}

#[test]
fn a_glibc_that_is_too_old_is_named_and_nothing_is_installed() -> Result<()> {
    let machine = boot()?;
    // As if this machine's were.
    let script = "sed -i 's/libc6 (>= [0-9.]*)/libc6 (>= 9.9)/' DEBIAN/control";
    let refused = install(&machine, changed(&machine, script)?);
    let said = refused.err().context("it is installed")?.to_string();
    ensure!(said.contains("genv : Depends: libc6 (>= 9.9) but 2.36"), "{said}");
    ensure!(!machine.path("usr/bin/genv").exists(), "something is there");
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
    // Of the machine, not of the package, as the units' settings are.
    machine.run(&["rm", "/etc/genv/scenario.yaml"])?;
    machine.run(&["apt-get", "purge", "--yes", "genv"])?;
    let left = left(&machine)?;
    ensure!(left.is_empty(), "{left}");
    ensure!(machine.is_alive(member), "its process has ended");
    let state = machine.read("var/tmp/genv/envs.json")?;
    ensure!(state.contains("training"), "{state}");
    Ok(())
}

#[test]
fn what_clears_old_files_away_leaves_the_state_alone() -> Result<()> {
    let machine = boot()?;
    install(&machine, DEB)?;
    start_member(&machine)?;
    machine.write("var/tmp/other", "")?;
    // As Debian 13 has it, with files that are old as soon as they are there.
    machine.write("etc/tmpfiles.d/tmp.conf", "q /var/tmp 1777 root root 0\n")?;
    until("others are cleared away", || {
        machine.run(&["systemd-tmpfiles", "--clean"])?;
        Ok(!machine.path("var/tmp/other").exists())
    })?;
    let state = machine.read("var/tmp/genv/envs.json").context("the state")?;
    ensure!(state.contains("training"), "{state}");
    Ok(())
}
