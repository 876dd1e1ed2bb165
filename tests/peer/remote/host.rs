//! A host with this project's genv and with genv 1.4.3, and somebody who can log in there.

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::peer::Peer;
use genv_tests::process::{Sleeper, write_script};
use genv_tests::shell;
use genv_tests::ssh::{SshClient, SshServer};

/// What logs in non-interactively has instead of a sudo that asks for no password.
const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";

/// A host with both on one state, which are reached by SSH: one server for each.
pub(crate) struct Host {
    simulation: Simulation,
    pub(crate) peer: Peer,
    pub(crate) ours: SshServer,
    pub(crate) theirs: SshServer,
}

fn scenario(devices: u32, processes: &str) -> String {
    format!("version: 1\nhosts:\n- devices: [{{count: {devices}, memory: 16gi}}]\n  processes: [{processes}]\n")
}

impl Host {
    pub(crate) fn new(devices: u32, processes: &str) -> Result<Self> {
        let simulation = Simulation::new(&scenario(devices, processes));
        let peer = Peer::new(&simulation)?;
        write_script(&peer.folder().join("bin/sudo"), SUDO)?;
        let host = Self {
            ours: SshServer::start(&peer.our_command("genv")?, &[])?,
            theirs: SshServer::start(&peer.command("genv"), &[])?,
            simulation,
            peer,
        };
        let client = SshClient::new(&[("ours", &host.ours), ("theirs", &host.theirs)])?;
        let genv = |name: &str| printed(Command::new(client.bin().join("ssh")).args([name, "command -v genv"]));
        let ours = shell::installation()?.join("bin/genv");
        ensure!(genv("ours")? == format!("{}\n", ours.display()));
        ensure!(genv("theirs")?.ends_with("/venv/bin/genv\n"));
        Ok(host)
    }

    /// Has these processes on its devices from now on.
    pub(crate) fn uses(&self, devices: u32, processes: &str) {
        self.simulation.rewrite(&scenario(devices, processes));
    }

    /// Runs our genv there.
    pub(crate) fn genv(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        self.peer.our_genv(&words)
    }

    /// Makes an environment of a process, attached to these devices, by ours.
    pub(crate) fn environment(&self, eid: &str, name: &str, member: &Sleeper, attach: &str) -> Result<()> {
        let pid = member.pid();
        self.genv(&format!("envs activate --eid {eid} --uid 0 --username root --pid {pid}"))?;
        self.peer.our_genv(&["envs", "config", "--eid", eid, "name", "--name", name])?;
        if !attach.is_empty() {
            self.genv(&format!("devices attach --eid {eid} {attach}"))?;
        }
        Ok(())
    }
}

/// genv 1.4.3 where somebody is who can log in to these hosts, and to no other.
pub(crate) fn login(client: &SshClient, host: &Host, arguments: &str) -> Result<Command> {
    let mut command = host.peer.command("genv");
    client.on_path(&mut command)?;
    command.env_remove("GENV_TMPDIR").env_remove("GENV_SCENARIO").args(["remote"]).args(arguments.split_whitespace());
    Ok(command)
}

pub(crate) fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "{command:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}
