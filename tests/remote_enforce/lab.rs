//! Machines behind sshd, each with pids, state, scenario and an enforcer's directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use genv_tests::enforcer::{Enforcer, Setup, is_alive, victim};
use genv_tests::process::program;
use genv_tests::root::require_root;
use genv_tests::ssh::{SshClient, SshServer};
use serde_json::Value;
use tempfile::TempDir;

/// One machine.
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    server: SshServer,
    folder: TempDir,
    /// The pids here of its processes, of which the first has pid 2 there.
    processes: Vec<u32>,
}

impl Machine {
    /// A machine on which so many processes of somebody sleep; `hosts` is what its scenario says of it.
    pub(crate) fn start(name: &'static str, processes: u32, host: &str) -> Result<Self> {
        Self::start_with(name, processes, host, &program("genv")?, &[])
    }

    /// The same, where `genv` is this program, with these variables.
    pub(crate) fn start_with(
        name: &'static str,
        processes: u32,
        host: &str,
        genv: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let scenario = folder.path().join("scenario.yaml");
        fs::write(&scenario, format!("version: 1\nhosts:\n- {host}\n"))?;
        let enforcer = program("genv-enforcer")?;
        let folder_of = |path: &Path| path.parent().map(|it| it.display().to_string());
        let folders = [genv, &enforcer].map(|path| folder_of(path).unwrap_or_default());
        let mut session = Command::new("true");
        session
            .env("PATH", format!("{}:/usr/bin:/bin", folders.join(":")))
            .env("GENV_SCENARIO", &scenario)
            .env("GENV_TMPDIR", folder.path().join("genv"))
            .env("STATE_DIRECTORY", folder.path().join("enforcer"))
            .env("TZ", "Asia/Tokyo")
            .envs(variables.iter().copied());
        Self::start_session(name, processes, &session, folder)
    }

    /// The same, whose logins have the variables of this command.
    pub(crate) fn start_session(
        name: &'static str,
        processes: u32,
        session: &Command,
        folder: TempDir,
    ) -> Result<Self> {
        require_root();
        let uid = victim();
        let sleeper = format!(
            "setpriv --reuid={uid} --regid={uid} --clear-groups env -i A=1 sleep 1000000 &\n"
        );
        let script = sleeper.repeat(processes as usize);
        let server = SshServer::start_apart(session, &[], &script)?;
        let pids = (2..2 + processes).map(|pid| server.pid_of(pid));
        Ok(Self {
            name,
            processes: pids.collect::<Result<_>>()?,
            server,
            folder,
        })
    }

    /// Whether the process that has this pid there is alive.
    pub(crate) fn lives(&self, pid: u32) -> bool {
        is_alive(self.processes[pid as usize - 2])
    }

    /// genv's state directory.
    pub(crate) fn genv_directory(&self) -> PathBuf {
        self.folder.path().join("genv")
    }

    /// Its enforcer's directory.
    pub(crate) fn directory(&self) -> PathBuf {
        self.folder.path().join("enforcer")
    }

    /// What its own audit has of this result.
    pub(crate) fn audited(&self, result: &str) -> Result<Vec<Value>> {
        of_result(audit(&self.directory())?, result)
    }

    pub(crate) const fn server(&self) -> &SshServer {
        &self.server
    }
}

/// The lines of an audit with this result.
pub(crate) fn of_result(lines: Vec<Value>, result: &str) -> Result<Vec<Value>> {
    Ok(lines
        .into_iter()
        .filter(|line| line["result"] == result)
        .collect())
}

fn audit(directory: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(directory.join("audit.jsonl")).unwrap_or_default();
    let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    lines.collect()
}

/// An enforcer of these machines, and the client by which it reaches them.
pub(crate) struct Lab {
    pub(crate) enforcer: Enforcer,
    _client: SshClient,
}

impl Lab {
    /// Starts one with these rules, which are all of its configuration besides mode and breaker.
    pub(crate) fn start(machines: &[&Machine], rules: &str) -> Result<Self> {
        Self::of(machines, None, rules)
    }

    /// The same with one more machine, which is gone.
    pub(crate) fn start_without(machines: &[&Machine], gone: Machine, rules: &str) -> Result<Self> {
        Self::of(machines, Some(gone), rules)
    }

    fn of(machines: &[&Machine], gone: Option<Machine>, rules: &str) -> Result<Self> {
        let machines: Vec<&Machine> = machines.iter().copied().chain(&gone).collect();
        let servers = machines.iter().map(|it| (it.name, it.server()));
        let servers: Vec<(&str, &SshServer)> = servers.collect();
        let client = SshClient::new(&servers)?;
        let config =
            format!("version: 1\nmode: enforce\nbreaker: {{share_of_users: 1}}\nrules:\n{rules}\n");
        let mut path = Command::new("true");
        client.on_path(&mut path)?;
        let path = path.get_envs().find_map(|(_, value)| value);
        let path = path.and_then(|it| it.to_str()).context("no PATH")?;
        let names: Vec<&str> = machines.iter().map(|machine| machine.name).collect();
        let setup = Setup::new("version: 1\nhosts: []\n", &config)?
            .env("PATH", path)
            .flag(&format!("--host={}", names.join(",")));
        drop(machines);
        drop(gone);
        Ok(Self {
            enforcer: setup.start()?,
            _client: client,
        })
    }

    /// What the audit here has of this result.
    pub(crate) fn audited(&self, result: &str) -> Result<Vec<Value>> {
        of_result(self.enforcer.audit()?, result)
    }
}
