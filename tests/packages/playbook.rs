//! The Ansible example, run on the machine that it sets up.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::{DAEMONS, DEB, boot};

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
    for file in ["genv.yml", "hosts.yml"] {
        machine.write(&format!("etc/{file}"), &fs::read_to_string(folder.join(file)).context(file)?)?;
    }
    machine.write("etc/here.yml", INVENTORY)?;
    machine.write("etc/own.yaml", "version: 1\nrules: [{kind: max-age, limit: 7d}]\n")?;
    machine.run(&["mkdir", "-p", "/etc/prometheus/targets/enforcers"])?;
    let play = |words: &[&str]| -> Result<String> {
        let command = ["env", "HOME=/etc", "LC_ALL=C.UTF-8", "ansible-playbook", "/etc/genv.yml"];
        let output = machine.output(&[&command[..], words].concat())?;
        let said = String::from_utf8([output.stdout, output.stderr].concat())?;
        ensure!(output.status.success(), "{said}");
        Ok(said)
    };
    let hosts = play(&["--inventory=/etc/hosts.yml", "--list-hosts"])?;
    ensure!(hosts.contains("hosts (50)") && hosts.contains("gpu50"), "{hosts}");

    play(&["--inventory=/etc/here.yml"])?;
    for daemon in DAEMONS {
        ensure!(machine.property(daemon, "ActiveState")? == "active", "{daemon}");
        let said = machine.run(&["systemctl", "is-enabled", daemon])?;
        ensure!(said == "enabled\n", "{daemon}: {said}");
    }
    machine.wait_for_status("genv-enforcer", |status| status.starts_with("dry-run: 1 rules"))?;
    let listening = machine.run(&["systemctl", "show", "--property=Listen", "genv-exporter.socket"])?;
    ensure!(listening == "Listen=127.0.0.2:9820 (Stream)\n", "{listening}");
    let targets = machine.read("etc/prometheus/targets/enforcers/genv.yml")?;
    ensure!(targets == "- targets: [\"gpu01:9821\"]\n", "{targets}");
    machine.run(&["zsh", "-ic", "whence -w genv | grep -q function"])?;

    let again = play(&["--inventory=/etc/here.yml"])?;
    ensure!(again.contains("changed=0") && !again.contains("changed: ["), "{again}");
    machine.run(&["dpkg", "--status", "genv"])?;
    ensure!(machine.path(DEB).exists());
    Ok(())
}
