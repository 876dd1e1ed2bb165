//! OpenSSH's client, with a configuration of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::SshServer;
use crate::process::write_script;
use crate::shell::installed;

/// A program `ssh` that knows servers by names, as somebody's configuration tells it of hosts.
pub struct SshClient {
    folder: TempDir,
}

impl SshClient {
    pub fn new(hosts: &[(&str, &SshServer)]) -> Result<Self> {
        let mut configuration = String::new();
        let mut known_hosts = String::new();
        for (name, server) in hosts {
            configuration.push_str(&format!(
                "Host {name}\n  Port {}\n  IdentityFile {}\n",
                server.port(),
                server.identity().display()
            ));
            known_hosts.push_str(&server.known_hosts_line()?);
        }
        configuration.push_str("Host *\n  IdentitiesOnly yes\n  IdentityAgent none\n");
        Self::configured(&configuration, &known_hosts)
    }

    /// One with this configuration, where all hosts are on 127.0.0.1 unless it says otherwise, and with these lines in
    /// its `known_hosts`.
    pub fn configured(configuration: &str, known_hosts: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name);
        let configuration = format!(
            "{configuration}\nHost *\n  HostName 127.0.0.1\n  UserKnownHostsFile {}\n  GlobalKnownHostsFile /dev/null\n  \
             StrictHostKeyChecking yes\n  BatchMode yes\n",
            at("known_hosts").display()
        );
        fs::write(at("known_hosts"), known_hosts)?;
        fs::write(at("config"), configuration)?;
        let ssh = installed("ssh");
        let script = format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", ssh.display(), at("config").display());
        fs::create_dir(at("bin"))?;
        write_script(&at("bin/ssh"), &script)?;
        Ok(Self { folder })
    }

    pub fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    pub fn program(&self) -> PathBuf {
        self.bin().join("ssh")
    }

    pub fn configuration(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    pub fn known_hosts(&self) -> PathBuf {
        self.folder.path().join("known_hosts")
    }

    /// Lets a command find it first on PATH.
    pub fn on_path(&self, command: &mut Command) -> Result<()> {
        let path = command.get_envs().find(|(name, _)| *name == "PATH");
        let path = path.and_then(|(_, value)| value).map(ToOwned::to_owned);
        let path = path.or_else(|| std::env::var_os("PATH")).context("no PATH")?;
        let folders = std::iter::once(self.bin()).chain(std::env::split_paths(&path));
        let path = std::env::join_paths(folders)?;
        command.env("PATH", path);
        Ok(())
    }
}
