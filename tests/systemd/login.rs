//! Users who log in by SSH, as on the machines of a lab.

use std::fs;
use std::io::Write as _;
use std::process::{ChildStdin, Stdio};

use anyhow::{Context as _, Result, ensure};
use genv_tests::machine::{Machine, SCENARIO};
use genv_tests::patience::{Lines, ended, until};
use genv_tests::process::Running;

pub(crate) const ALICE: &str = "alice";
pub(crate) const BOB: &str = "bob";

/// The key of the test machine that logs every user in.
const KEY: &str = "/etc/ssh/test-key";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Logout {
    Exit,
    /// The connection is lost: the shell gets SIGHUP.
    Lost,
}

pub(crate) struct Login {
    client: Running,
    keyboard: ChildStdin,
    screen: Lines,
}

/// Lets both users log in, and sets genv up in their shells as the quick start has it.
pub(crate) fn prepare(machine: &Machine) -> Result<()> {
    machine.run(&["useradd", "--create-home", BOB])?;
    machine.write("etc/environment", &format!("GENV_SCENARIO=/{SCENARIO}\n"))?;
    machine.run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", KEY])?;
    for user in [ALICE, BOB] {
        machine.run(&["usermod", "--shell", "/bin/bash", user])?;
        let script = format!(
            "set -e; home=~{user}; mkdir -m 700 $home/.ssh; cp {KEY}.pub $home/.ssh/authorized_keys\n\
             echo 'eval \"$(genv shell --init)\"' >> $home/.bashrc; chown -R {user}: $home"
        );
        machine.run(&["bash", "-c", &script])?;
    }
    Ok(())
}

/// What logind does when users log out, at once.
pub(crate) fn logind(machine: &Machine, settings: &str) -> Result<()> {
    let text = format!("[Login]\nUserStopDelaySec=0\n{settings}\n");
    machine.write("etc/systemd/logind.conf.d/test.conf", &text)?;
    // A unit that is restarted too often is refused otherwise.
    for verb in ["reset-failed", "restart"] {
        machine.run(&["systemctl", verb, "systemd-logind"])?;
    }
    Ok(())
}

/// Has the driver show these processes, each with a context on its device, of so many devices.
pub(crate) fn contexts(machine: &Machine, devices: usize, jobs: &[(u32, usize)]) -> Result<()> {
    let uses = jobs
        .iter()
        .map(|(pid, index)| format!("{{pid: {pid}, devices: [{{index: {index}, memory: 1gi, utilization: 0.9}}]}}"));
    let uses = uses.collect::<Vec<_>>().join(", ");
    let text = format!("version: 1\nhosts:\n- devices: [{{count: {devices}}}]\n  processes: [{uses}]\n");
    machine.write(SCENARIO, &text)
}

impl Login {
    pub(crate) fn start(machine: &Machine, user: &str) -> Result<Self> {
        let to = format!("{user}@127.0.0.1");
        let ssh = ["ssh", "-q", "-tt", "-i", KEY];
        let ssh = [&ssh[..], &["-o", "StrictHostKeyChecking=no", &to]].concat();
        let mut command = machine.command(&ssh);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = Running::spawn(&mut command)?;
        let keyboard = client.stdin.take().context("no stdin")?;
        let screen = Lines::of(client.stdout.take().context("no stdout")?);
        Ok(Self { client, keyboard, screen })
    }

    pub(crate) fn types(&mut self, line: &str) -> Result<()> {
        writeln!(self.keyboard, "{line}").with_context(|| self.shown())
    }

    pub(crate) fn runs(&mut self, machine: &Machine, line: &str) -> Result<()> {
        let done = "/tmp/done";
        machine.run(&["rm", "-f", done])?;
        self.types(&format!("{line}; echo $? > {done}"))?;
        let mut code = String::new();
        until("the line has ended", || {
            code = fs::read_to_string(machine.path(done)).unwrap_or_default();
            Ok(code.ends_with('\n'))
        })
        .with_context(|| self.shown())?;
        ensure!(code == "0\n", "{line}: {code}: {}", self.shown());
        Ok(())
    }

    pub(crate) fn ends(mut self, how: Logout) -> Result<()> {
        self.types(match how {
            Logout::Exit => "exit",
            Logout::Lost => "kill -KILL $PPID",
        })?;
        ended(&mut self.client).map(drop)
    }

    pub(crate) fn shown(&self) -> String {
        self.screen.come().collect::<Vec<_>>().join("\n")
    }
}
