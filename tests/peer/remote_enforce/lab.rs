//! Machines behind sshd, each with pids, state, scenario and an enforcer's directory of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use genv_tests::enforcer::{Enforcer, Setup, is_alive, victim};
use genv_tests::process::{copy_program, program, write_script};
use genv_tests::root::require_root;
use genv_tests::ssh::{SshClient, SshServer};
use serde_json::Value;
use tempfile::TempDir;

/// A process that only sleeps.
pub(crate) const SLEEP: &str = "sleep 1000000";

/// One machine.
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    server: SshServer,
    folder: TempDir,
    /// The pids here of its processes, of which the first has pid 2 there.
    processes: Vec<u32>,
}

impl Machine {
    /// A machine on which somebody runs these commands of a shell; `host` is what its scenario says of it.
    pub(crate) fn start(name: &'static str, commands: &[&str], host: &str) -> Result<Self> {
        Self::start_with(name, commands, host, &program("genv")?, &[])
    }

    /// One on which one process sleeps, and a script of `sh` stands before the real `genv-enforcer`, which it has as `$real`.
    pub(crate) fn start_before_enforcer(name: &'static str, host: &str, script: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let genv = folder.path().join("genv-program/genv");
        fs::create_dir(folder.path().join("genv-program"))?;
        copy_program("genv", &genv)?;
        let real = program("genv-enforcer")?;
        let script = format!("#!/bin/sh\nreal={}\n{script}\n", real.display());
        write_script(&genv.with_file_name("genv-enforcer"), &script)?;
        let session = session(&folder, host, &genv)?;
        Self::start_session(name, &[SLEEP], &session, folder)
    }

    /// The same, where `genv` is this program, with these variables.
    pub(crate) fn start_with(
        name: &'static str,
        commands: &[&str],
        host: &str,
        genv: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut session = session(&folder, host, genv)?;
        session.envs(variables.iter().copied());
        Self::start_session(name, commands, &session, folder)
    }

    /// One on which somebody runs these, and whose logins have the variables of this command.
    pub(crate) fn start_session(
        name: &'static str,
        commands: &[&str],
        session: &Command,
        folder: TempDir,
    ) -> Result<Self> {
        require_root();
        let uid = victim();
        let somebody = format!("setpriv --reuid={uid} --regid={uid} --clear-groups env -i A=1");
        let script = commands.iter().map(|command| format!("{somebody} {command} &\n"));
        let server = SshServer::start_apart(session, &[], &script.collect::<String>())?;
        let pids = (2..).take(commands.len()).map(|pid| server.pid_of(pid));
        Ok(Self { name, processes: pids.collect::<Result<_>>()?, server, folder })
    }

    /// Whether the process that has this pid there is alive.
    pub(crate) fn lives(&self, pid: u32) -> bool {
        is_alive(self.processes[pid as usize - 2])
    }

    /// A file beside the enforcer's directory there, called like it with another ending.
    pub(crate) fn note(&self, ending: &str) -> PathBuf {
        self.directory().with_extension(ending)
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
        Ok(of_result(self.audit()?, result))
    }

    pub(crate) fn audit(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.directory().join("audit.jsonl")).unwrap_or_default();
        let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
        lines.collect()
    }

    pub(crate) const fn server(&self) -> &SshServer {
        &self.server
    }
}

/// The variables of logins, where `genv` is this program; `host` is what the scenario says.
fn session(folder: &TempDir, host: &str, genv: &Path) -> Result<Command> {
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
        .env("TZ", "Asia/Tokyo");
    Ok(session)
}

/// The lines of an audit with this result.
fn of_result(lines: Vec<Value>, result: &str) -> Vec<Value> {
    lines.into_iter().filter(|line| line["result"] == result).collect()
}

/// An enforcer of these machines, and the client by which it reaches them.
pub(crate) struct Lab {
    pub(crate) enforcer: Enforcer,
    client: SshClient,
}

impl Lab {
    /// Starts one with these rules, which are all of its configuration besides mode and breaker.
    pub(crate) fn start(machines: &[&Machine], rules: &str) -> Result<Self> {
        Self::start_without(machines, None, rules)
    }

    /// The same with one more machine, which is gone.
    pub(crate) fn start_without(machines: &[&Machine], gone: Option<Machine>, rules: &str) -> Result<Self> {
        let machines: Vec<&Machine> = machines.iter().copied().chain(&gone).collect();
        let servers = machines.iter().map(|it| (it.name, it.server()));
        let servers: Vec<(&str, &SshServer)> = servers.collect();
        let client = SshClient::new(&servers)?;
        let config = format!("version: 1\nmode: enforce\nbreaker: {{share_of_users: 1}}\nrules:\n{rules}\n");
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
        Ok(Self { enforcer: setup.start()?, client })
    }

    /// What the audit here has of this result.
    pub(crate) fn audited(&self, result: &str) -> Result<Vec<Value>> {
        Ok(of_result(self.enforcer.audit()?, result))
    }

    /// Kills the enforcer and, after `meanwhile`, starts it again.
    pub(crate) fn restart_after(self, meanwhile: impl FnOnce() -> Result<()>) -> Result<Self> {
        let setup = self.enforcer.kill()?;
        meanwhile()?;
        Ok(Self { enforcer: setup.start()?, client: self.client })
    }

    /// What came of each question to a host, in their order: of each the audit tells once how it went.
    pub(crate) fn answers(&self) -> Result<Vec<String>> {
        let lines = self.enforcer.audit()?;
        let asked = lines.iter().filter(|line| line["result"] == "asked");
        let answers = asked.map(|asked| {
            let of_it = lines.iter().filter(|line| line["id"] == asked["id"]);
            let results = of_it.filter_map(|line| line["result"].as_str());
            let results: Vec<&str> = results.filter(|it| *it != "asked").collect();
            results.join(" and ")
        });
        Ok(answers.collect())
    }
}
