//! The Ansible example, run on the machine that it sets up.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::{DAEMONS, boot, said, states};

const INVENTORY: &str = "all:
  vars: {ansible_connection: local, genv_package: /packages/genv.deb, genv_enforcer_yaml: /etc/own.yaml, \
   genv_prometheus: /etc/prometheus, genv_zsh: true}
  children:
    gpu: {hosts: {gpu01: {genv_listen: 127.0.0.2}}}
    prometheus: {hosts: {gpu01: {}}}
";

#[test]
fn it_sets_a_machine_up_and_changes_nothing_the_second_time() -> Result<()> {
    let machine = boot()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/ansible");
    machine.write("etc/genv.yml", &fs::read_to_string(folder.join("genv.yml"))?)?;
    machine.write("etc/here.yml", INVENTORY)?;
    machine.write("etc/own.yaml", "version: 1\nrules: [{kind: max-age, limit: 7d}]\n")?;
    machine.run(&["mkdir", "-p", "/etc/prometheus/targets/enforcers"])?;
    let playbook = ["ansible-playbook", "--inventory=/etc/here.yml", "/etc/genv.yml"];
    let play = || said(&machine, &[&["env", "HOME=/etc", "LC_ALL=C.UTF-8"], &playbook[..]].concat());
    play()?;
    for daemon in DAEMONS {
        let found = states(&machine, daemon)?;
        ensure!(found == ["enabled", "active"], "{daemon}: {found:?}");
    }
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))?;
    let listening = machine.run(&["systemctl", "show", "--property=Listen", "genv-exporter.socket"])?;
    ensure!(listening == "Listen=127.0.0.2:9820 (Stream)\n", "{listening}");
    let targets = machine.read("etc/prometheus/targets/enforcers/genv.yml")?;
    ensure!(targets == "- targets: [\"gpu01:9821\"]\n", "{targets}");
    machine.run(&["zsh", "-ic", "whence -w genv | grep -q function"])?;

    let again = play()?;
    ensure!(again.contains("changed=0") && !again.contains("changed: ["), "{again}");
    Ok(())
}
