//! `genv remote` of genv 1.4.3 and of this project: both print the same of hosts of both, byte for byte, and ours opens
//! environments on hosts with genv 1.4.3.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::{Sleeper, write_script};
use genv_tests::shell::{self, Shell};
use genv_tests::ssh::{SshClient, SshServer};
use genv_tests::state;
use genv_tests::terminal::{PROMPT, Terminal};

/// Non-interactive logins have this instead of a sudo that asks for no password.
const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";

/// A host with both programs, each on a state of its own and with a server of its own.
struct Host {
    _simulation: Simulation,
    peer: Peer,
    /// Where ours has its state.
    own: Peer,
    ours: SshServer,
    theirs: SshServer,
}

impl Host {
    fn new() -> Result<Self> {
        let simulation =
            Simulation::new("version: 1\nhosts:\n- devices: [{count: 4, memory: 16gi}]\n  processes: []\n");
        let (peer, own) = (Peer::new(&simulation)?, Peer::new(&simulation)?);
        for folder in [&peer, &own] {
            write_script(&folder.folder().join("bin/sudo"), SUDO)?;
        }
        let host = Self {
            ours: SshServer::start(&own.our_command("genv")?, &[])?,
            theirs: SshServer::start(&peer.command("genv"), &[])?,
            _simulation: simulation,
            peer,
            own,
        };
        let client = SshClient::new(&[("ours", &host.ours), ("theirs", &host.theirs)])?;
        let genv = |name: &str| printed(Command::new(client.program()).args([name, "command -v genv"]));
        let ours = shell::installation()?.join("bin/genv");
        ensure!(genv("ours")? == format!("{}\n", ours.display()));
        ensure!(genv("theirs")?.ends_with("/venv/bin/genv\n"));
        Ok(host)
    }

    /// Makes an environment of a process, attached to a number of devices, in the state of genv 1.4.3. Ours imports it.
    fn environment(&self, eid: &str, name: &str, member: &Sleeper, devices: &str) -> Result<()> {
        let pid = member.pid().to_string();
        let user = ["--uid", "0", "--username", "root", "--pid", &pid];
        self.peer.genv(&[&["envs", "activate", "--eid", eid], &user[..]].concat())?;
        self.peer.genv(&["envs", "config", "--eid", eid, "name", "--name", name])?;
        self.peer.genv(&["devices", "attach", "--eid", eid, "--count", devices])?;
        let folder = self.own.state_directory();
        fs::create_dir_all(&folder)?;
        for name in [state::FILE, state::COPY] {
            // The first environment finds none.
            let _ = fs::remove_file(folder.join(name));
        }
        for name in ["envs.json", "devices.json"] {
            fs::copy(self.peer.state_directory().join(name), folder.join(name))?;
        }
        self.own.our_genv(&["exec", "--", "true"])?;
        ensure!(state::read(&folder)?.to_string().contains(&format!("\"eid\":\"{eid}\"")));
        Ok(())
    }

    /// genv 1.4.3 where somebody can log in to hosts of this client, and to no other.
    fn their_login(&self, client: &SshClient, line: &str) -> Result<Command> {
        let mut command = self.peer.command("genv");
        client.on_path(&mut command)?;
        command.env_remove("GENV_TMPDIR").env_remove("GENV_SCENARIO");
        command.arg("remote").args(line.split_whitespace());
        Ok(command)
    }
}

/// Ours, likewise.
fn our_login(client: &SshClient, line: &str) -> Result<Command> {
    let mut command = Command::new(shell::installation()?.join("bin/genv"));
    client.on_path(&mut command)?;
    command.arg("remote").args(line.split_whitespace());
    Ok(command)
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "{command:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

/// What both programs print of a host with ours, and then of a host with genv 1.4.3: four times the same.
fn same(host: &Host, line: &str) -> Result<String> {
    let line = format!("-H gpu01 {line}");
    let mut answers = Vec::new();
    for server in [&host.ours, &host.theirs] {
        let client = SshClient::new(&[("gpu01", server)])?;
        answers.push(printed(&mut our_login(&client, &line)?)?);
        answers.push(printed(&mut host.their_login(&client, &line)?)?);
    }
    ensure!(answers.iter().all(|it| *it == answers[0]), "{line}: {answers:?}");
    Ok(answers.swap_remove(0))
}

#[test]
fn both_print_the_same_of_hosts_of_both() -> Result<()> {
    let host = Host::new()?;
    // A host on which nobody has used genv yet.
    ensure!(same(&host, "devices --format csv")?.contains("gpu01,4,4\n"));

    let members = [Sleeper::start(&[])?, Sleeper::start(&[])?];
    host.environment("7", "solo", &members[0], "2")?;
    host.environment("e-2", "$(touch x) \"é\"", &members[1], "1")?;
    let devices = same(&host, "devices --format csv")?;
    ensure!(devices == "HOST,TOTAL,AVAILABLE\ngpu01,4,1\n\nTotal 4 devices with 1 available on 1 hosts\n", "{devices}");
    let environments = same(&host, "envs --format csv --timestamp")?;
    ensure!(environments.lines().count() == 5, "a header, two environments and a summary: {environments}");
    ensure!(environments.contains("\ngpu01,e-2,root,$(touch x) \"é\","), "{environments}");
    let found = same(&host, "query --name solo --query hostname eid creation")?;
    ensure!(found.starts_with("gpu01,7,"), "{found}");
    Ok(())
}

#[test]
fn ours_opens_an_environment_on_a_host_with_genv_1_4_3() -> Result<()> {
    let host = Host::new()?;
    let member = Sleeper::start(&[])?;
    host.environment("e1", "busy", &member, "1")?;
    // Login shells read /etc/profile first, which sets another PATH.
    let command = host.peer.command("genv");
    let path = command.get_envs().find(|(name, _)| *name == "PATH");
    let path = path.and_then(|(_, path)| path).context("no PATH")?;
    let profile = format!("PATH='{}'\nPS1='{PROMPT}'\n{}\n", path.display(), Shell::Bash.setup());
    fs::write(host.theirs.home().join(".profile"), profile)?;
    let client = SshClient::new(&[("gpu01", &host.theirs)])?;
    // A device with an environment does not count there.
    let refused = our_login(&client, "-H gpu01 activate --gpus 4")?.stdin(Stdio::null()).output()?;
    ensure!(refused.status.code() == Some(4), "{refused:?}");
    let mut command = our_login(&client, "-H gpu01 activate --gpus 2 --name mine")?;
    command.env("TERM", "xterm");
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    terminal.wait(&format!("(genv) {PROMPT}"))?;
    let (shown, _) = terminal.run("echo devices=$CUDA_VISIBLE_DEVICES")?;
    ensure!(shown.contains("devices=1,2"), "{shown}");
    ensure!(host.peer.genv(&["envs", "query", "--query", "config.name"])? == "busy\nmine\n");
    Ok(())
}
