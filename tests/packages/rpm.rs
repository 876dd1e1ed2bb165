//! The RPM, by the rpm that Debian has: what it needs is named as Debian does not name it.

use anyhow::{Result, ensure};

use crate::{CONFIG, DAEMONS, RPM, boot, start_member};

#[test]
fn it_is_installed_upgraded_and_removed() -> Result<()> {
    let machine = boot()?;
    let rpm = |words: &[&str]| {
        let script = "rpm --nodeps \"$@\" 2>&1";
        machine.run(&[&["bash", "-c", script, "bash"], words].concat())
    };
    let needed = machine.run(&["rpm", "--query", "--package", "--requires", RPM])?;
    ensure!(needed.contains("libc.so.6(GLIBC_2.30)(64bit)"), "{needed}");
    let said = rpm(&["--install", RPM])?;
    ensure!(
        said.contains("systemctl enable --now genv-exporter genv-enforcer"),
        "{said}"
    );
    let list = machine.run(&["rpm", "--verify", "--nodeps", "genv"])?;
    ensure!(list.is_empty(), "{list}");

    machine.run(&[&["systemctl", "enable", "--now"], &DAEMONS[..]].concat())?;
    machine.judge("genv-exporter", 1.5)?;
    machine.judge("genv-enforcer", 2.0)?;
    let member = start_member(&machine)?;
    let own = "version: 1\nrules: [{kind: max-age, limit: 7d}]\n";
    machine.write(CONFIG, own)?;
    let pid = machine.main_pid("genv-exporter")?;
    rpm(&["--upgrade", "--force", RPM])?;
    ensure!(machine.read(CONFIG)? == own, "{}", machine.read(CONFIG)?);
    ensure!(
        machine.main_pid("genv-exporter")? != pid,
        "the exporter goes on as it was"
    );
    machine.wait_for_status("genv-enforcer", |status| {
        status.starts_with("dry-run: 1 rules")
    })?;

    rpm(&["--erase", "genv"])?;
    for daemon in DAEMONS {
        ensure!(
            machine.property(daemon, "ActiveState")? == "inactive",
            "{daemon} runs"
        );
    }
    ensure!(!machine.path("usr/bin/genv").exists());
    ensure!(machine.read(&format!("{CONFIG}.rpmsave"))? == own);
    ensure!(machine.is_alive(member), "its process has ended");
    Ok(())
}
