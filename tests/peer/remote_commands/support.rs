//! Hosts with simulated devices, and somebody who can log in to them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use genv_tests::nvml_sim::Simulation;
use genv_tests::patience;
use genv_tests::process::{Sleeper, program};
use genv_tests::shell::{self, Shell, installed, search_path};
use genv_tests::ssh::{SshClient, SshServer};
use genv_tests::terminal::PROMPT;
use tempfile::TempDir;

/// A machine with genv and its own state.
pub(crate) struct Host {
    pub(crate) server: SshServer,
    _folder: TempDir,
    state: PathBuf,
    simulation: Simulation,
}

impl Host {
    /// One with these devices, as a scenario lists them. `options` are lines of sshd_config.
    pub(crate) fn new(devices: &str, options: &[&str]) -> Result<Self> {
        Self::with(devices, "", options, None)
    }

    /// One with processes on its devices too, on which people work in a shell where genv is set up.
    pub(crate) fn with(devices: &str, processes: &str, options: &[&str], login: Option<Shell>) -> Result<Self> {
        let simulation =
            Simulation::new(&format!("version: 1\nhosts:\n- devices: [{devices}]\n  processes: [{processes}]\n"));
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("state");
        let mut session = Command::new("true");
        session
            .env("PATH", search_path()?)
            .env("LANG", "C.UTF-8")
            .env("GENV_SCENARIO", simulation.scenario())
            .env("GENV_TMPDIR", &state)
            .envs([patience::DRIVER_PATIENCE]);
        if let Some(shell) = login {
            session.env("SHELL", installed(shell.name()));
        }
        let server = SshServer::start(&session, options)?;
        if let Some(shell) = login {
            set_up(&server, shell)?;
        }
        Ok(Self { server, _folder: folder, state, simulation })
    }

    /// Runs genv there, as somebody who sits at it.
    pub(crate) fn genv(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(shell::installation()?.join("bin/genv"));
        command.env("GENV_SCENARIO", self.simulation.scenario()).env("GENV_TMPDIR", &self.state).args(words);
        let output = patience::output(&mut command)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "genv {words:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Makes an environment of a process, attached as `attach` says.
    pub(crate) fn environment(&self, eid: &str, name: &str, member: &Sleeper, attach: &[&str]) -> Result<()> {
        let pid = member.pid().to_string();
        let user = ["--uid", "0", "--username", "root"];
        self.genv(&[&["envs", "activate", "--eid", eid, "--pid", &pid], &user[..]].concat())?;
        self.genv(&["envs", "config", "--eid", eid, "name", "--name", name])?;
        if !attach.is_empty() {
            self.genv(&[&["devices", "attach", "--eid", eid], attach].concat())?;
        }
        Ok(())
    }
}

/// Lets a login shell find genv and a prompt.
fn set_up(server: &SshServer, shell: Shell) -> Result<()> {
    // /etc/profile sets a PATH of its own.
    let path = search_path()?;
    let path = path.display();
    let (file, lines) = match shell {
        Shell::Bash => (".profile", format!("PATH='{path}'; PS1='{PROMPT}'")),
        Shell::Zsh => (".zshrc", format!("PATH='{path}'; PS1='{PROMPT}'")),
        Shell::Fish => (
            ".config/fish/config.fish",
            format!(
                "set -gx PATH {}\nfunction fish_prompt; echo -n '{PROMPT}'; end\nset -g fish_greeting",
                path.to_string().replace(':', " ")
            ),
        ),
    };
    let file = server.home().join(file);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, format!("{lines}\n{}\n", shell.setup()))?;
    Ok(())
}

/// `genv remote` with these words, by somebody who has this ssh and no GPU.
pub(crate) fn remote(client: &SshClient, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(program("genv")?);
    client.on_path(&mut command)?;
    for name in ["GENV_SCENARIO", "GENV_TMPDIR", "GENV_DEVICES"] {
        command.env_remove(name);
    }
    command.arg("remote").args(words);
    Ok(command)
}

/// What it printed and said, and its exit code.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// The same, to its end.
pub(crate) fn answer(client: &SshClient, words: &[&str]) -> Result<Answer> {
    let Output { status, stdout, stderr } = patience::output(&mut remote(client, words)?)?;
    Ok(Answer { stdout: String::from_utf8(stdout)?, stderr: String::from_utf8(stderr)?, code: status.code() })
}

/// What is printed when nothing goes wrong.
pub(crate) fn printed(client: &SshClient, words: &[&str]) -> Result<String> {
    let answer = answer(client, words)?;
    ensure!(answer.code == Some(0) && answer.stderr.is_empty(), "{words:?}: {answer:?}");
    Ok(answer.stdout)
}
