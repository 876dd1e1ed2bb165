//! `genv remote monitor` and `genv remote enforce`.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use genv_tests::http::{self, free_port};
use genv_tests::patience::{output, until};
use genv_tests::process::{Running, copy_program, write_script};
use genv_tests::ssh::SshClient;

use crate::remote_commands::support::{Host, answer, remote};

const T4: &str = "{name: Tesla T4, count: 2, memory: 16gi}";

#[test]
fn monitor_serves_the_metrics_of_all_hosts_and_publishes_the_files() -> Result<()> {
    let (first, second) = (Host::new(T4, &[])?, Host::new(T4, &[])?);
    let client = SshClient::new(&[("gpu01", &first.server), ("gpu02", &second.server)])?;
    let folder = tempfile::tempdir()?;
    let files = folder.path().join("files");
    let port = free_port()?;
    let (port_text, files_text) = (port.to_string(), files.display().to_string());
    let words = ["-H", "gpu[01-02]", "monitor", "-i", "1", "-p", &port_text, "--config-dir", &files_text];
    let mut command = remote(&client, &words)?;
    let _monitor = Running::spawn(command.stdin(Stdio::null()).stderr(Stdio::null()))?;
    until("both hosts are served", || {
        let Ok(answer) = http::get(port, "/metrics") else {
            return Ok(false);
        };
        let text = answer.text()?;
        Ok(["gpu01", "gpu02"].iter().all(|host| text.contains(&format!("genv_host_up{{hostname=\"{host}\"}} 1"))))
    })?;
    ensure!(fs::read_dir(&files)?.count() > 0);
    Ok(())
}

#[test]
fn a_daemon_is_not_started_where_no_host_may_fail_and_one_does() -> Result<()> {
    let client = SshClient::configured(&format!("Host down\n  Port {}\n", free_port()?), "")?;
    for command in ["monitor", "enforce"] {
        let refused = answer(&client, &["-e", "-H", "down", command])?;
        ensure!(refused.code == Some(1) && refused.stderr.starts_with("genv: down: "), "{refused:?}");
    }
    Ok(())
}

#[test]
fn enforce_becomes_the_enforcer_of_these_hosts_with_the_flags_of_genv_1() -> Result<()> {
    let folder = tempfile::tempdir()?;
    copy_program("genv", &folder.path().join("genv"))?;
    write_script(&folder.path().join("genv-enforcer"), "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 3\n")?;
    let client = SshClient::configured("", "")?;
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, "gpu03\n")?;
    let file = hosts.display().to_string();
    let words = format!(
        "remote -l admin -t 5 --sudo -q -H gpu01,b@gpu02:23 --hostfile {file} enforce \
         --interval 0 --max-devices-per-user 2 --non-env-processes"
    );
    let mut command = Command::new(folder.path().join("genv"));
    client.on_path(&mut command)?;
    let output = output(command.args(words.split(' ')))?;
    let printed = String::from_utf8(output.stdout)?;
    let expected = format!(
        "run --host=gpu01,b@gpu02:23 --hostfile={file} --ssh.login=admin --ssh.connect-timeout=5s --ssh.sudo \
         --log.level=error --genv-1 --interval 0 --max-devices-per-user 2 --non-env-processes"
    );
    ensure!(printed.lines().eq(expected.split(' ')), "{printed}");
    ensure!(output.status.code() == Some(3));
    Ok(())
}
