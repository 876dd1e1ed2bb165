//! `genv remote` of genv 1.4.3 and of this project, where people log in from, and hosts of both.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::enforcer::{ends, is_alive, sleeper, victim};
use genv_tests::nvml_sim::{Simulation, on_device_0};
use genv_tests::peer::Peer;
use genv_tests::process::{Sleeper, program, write_script};
use genv_tests::shell::{self, Shell};
use genv_tests::ssh::{SshClient, SshServer};
use genv_tests::terminal::{PROMPT, Terminal};

/// Non-interactive logins have this instead of a sudo that asks for no password.
const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";

/// A host with both programs on one state, and a server for each program.
struct Host {
    simulation: Simulation,
    peer: Peer,
    ours: SshServer,
    theirs: SshServer,
}

/// A host with these processes, as a scenario has them.
fn scenario(devices: u32, processes: &str) -> String {
    format!("version: 1\nhosts:\n- devices: [{{count: {devices}, memory: 16gi}}]\n  processes: [{processes}]\n")
}

impl Host {
    fn new(devices: u32) -> Result<Self> {
        let simulation = Simulation::new(&scenario(devices, ""));
        let peer = Peer::new(&simulation)?;
        write_script(&peer.folder().join("bin/sudo"), SUDO)?;
        let host = Self {
            ours: SshServer::start(&peer.our_command("genv")?, &[])?,
            theirs: SshServer::start(&peer.command("genv"), &[])?,
            simulation,
            peer,
        };
        let client = SshClient::new(&[("ours", &host.ours), ("theirs", &host.theirs)])?;
        let genv = |name: &str| printed(Command::new(client.program()).args([name, "command -v genv"]));
        let ours = shell::installation()?.join("bin/genv");
        ensure!(genv("ours")? == format!("{}\n", ours.display()));
        ensure!(genv("theirs")?.ends_with("/venv/bin/genv\n"));
        Ok(host)
    }

    /// Makes an environment of a process, attached to a number of devices.
    fn environment(&self, eid: &str, name: &str, member: &Sleeper, devices: &str) -> Result<()> {
        let pid = member.pid().to_string();
        let user = ["--uid", "0", "--username", "root", "--pid", &pid];
        self.peer.our_genv(&[&["envs", "activate", "--eid", eid], &user[..]].concat())?;
        self.peer.our_genv(&["envs", "config", "--eid", eid, "name", "--name", name])?;
        self.peer.our_genv(&["devices", "attach", "--eid", eid, "--count", devices])?;
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
    // Theirs may clean the state up and write it.
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
    let host = Host::new(4)?;
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
fn genv_1_4_3_has_the_enforcer_of_a_host_with_ours_end_what_is_outside_of_environments() -> Result<()> {
    let host = Host::new(2)?;
    let (outside, member) = (sleeper(&[("A", "1")])?, sleeper(&[("A", "1")])?);
    let (uid, pid) = (victim().to_string(), member.pid().to_string());
    let user = ["--uid", &uid, "--username", "somebody", "--pid", &pid];
    host.peer.our_genv(&[&["envs", "activate", "--eid", "7"], &user[..]].concat())?;
    host.peer.our_genv(&["devices", "attach", "--eid", "7", "--index", "0"])?;
    // Not older than its environment.
    let inside = sleeper(&[("GENV_ENVIRONMENT_ID", "7")])?;
    host.simulation.rewrite(&scenario(2, &on_device_0(&[outside.pid(), inside.pid()])));

    // Where a host has the enforcer, it is next to genv.
    let genv = program("genv")?;
    let programs = genv.parent().context("no folder")?.display();
    let folder = host.peer.folder();
    let mut session = host.peer.our_command("genv")?;
    session.env("PATH", format!("{programs}:{}/bin:/usr/bin:/bin", folder.display()));
    session.env("STATE_DIRECTORY", folder.join("enforcer"));
    let server = SshServer::start(&session, &[])?;
    let client = SshClient::new(&[("gpu01", &server)])?;
    let said = printed(&mut host.their_login(&client, "-H gpu01 enforce --interval 0 --non-env-processes")?)?;
    ensure!(said.contains(&format!("process {} (sleep): done", outside.pid())), "{said}");
    ends(outside.pid())?;
    ensure!(is_alive(inside.pid()) && is_alive(member.pid()), "{said}");
    // Ours has ended it, and nothing else.
    let audit = fs::read_to_string(folder.join("enforcer/audit.jsonl"))?;
    ensure!(audit.lines().count() == 2, "{audit}");
    Ok(())
}

#[test]
fn ours_opens_an_environment_on_a_host_with_genv_1_4_3() -> Result<()> {
    let host = Host::new(3)?;
    // Login shells read /etc/profile first, which sets another PATH.
    let command = host.peer.command("genv");
    let path = command.get_envs().find(|(name, _)| *name == "PATH");
    let path = path.and_then(|(_, path)| path).context("no PATH")?;
    let profile = format!("PATH='{}'\nPS1='{PROMPT}'\n{}\n", path.display(), Shell::Bash.setup());
    fs::write(host.theirs.home().join(".profile"), profile)?;
    let client = SshClient::new(&[("gpu01", &host.theirs)])?;
    let mut command = our_login(&client, "-H gpu01 activate --gpus 2 --name mine")?;
    command.env("TERM", "xterm");
    let mut terminal = Terminal::run_in(command, Shell::Bash)?;
    terminal.wait(&format!("(genv) {PROMPT}"))?;
    let (shown, _) = terminal.run("echo devices=$CUDA_VISIBLE_DEVICES")?;
    ensure!(shown.contains("devices=0,1"), "{shown}");
    ensure!(host.peer.our_genv(&["envs", "query", "--query", "config.name"])? == "mine\n");
    Ok(())
}
