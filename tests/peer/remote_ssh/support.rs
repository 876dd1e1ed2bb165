//! A server, a client's configuration for it, and sessions between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use genv_core::model::Snapshot;
use genv_remote::conversation::{Conversation, ServeOptions};
use genv_remote::hosts::HostList;
use genv_remote::protocol::{HostProgram, Reply, Request};
use genv_remote::resolve::{Target, resolve_with};
use genv_remote::{FailureKind, HostFailure, Session, Timeouts};
use genv_tests::patience::{PATIENCE, until};
use genv_tests::process::{Running, write_script};
use genv_tests::shell::installed;
use genv_tests::ssh::{self, SshClient, SshServer};
use tempfile::TempDir;

/// A server whose sessions have the variables of an ordinary login.
pub(crate) fn server(options: &[&str]) -> Result<SshServer> {
    let mut environment = Command::new("true");
    environment.env("PATH", std::env::var("PATH")?);
    SshServer::start(&environment, options)
}

pub(crate) async fn target(client: &SshClient, host: &str) -> Result<Target, HostFailure> {
    let list = HostList::parse_flag(host).unwrap_or_else(|error| panic!("{error}"));
    let entry = list.into_iter().next().expect("a host");
    resolve_with(client.program().as_os_str(), &entry, None).await
}

pub(crate) async fn connect(client: &SshClient, host: &str) -> Result<Session, HostFailure> {
    let target = target(client, host).await?;
    Session::connect(&target, &Timeouts { answer: PATIENCE, ..Timeouts::default() }).await
}

pub(crate) async fn session(options: &[&str]) -> Result<(SshServer, Session)> {
    let server = server(options)?;
    let client = SshClient::new(&[("host", &server)])?;
    let session = connect(&client, "host").await.context("connect")?;
    Ok((server, session))
}

pub(crate) async fn is_let_in(client: &SshClient) -> Result<()> {
    connect(client, "host").await?.close().await;
    Ok(())
}

pub(crate) async fn failure(client: &SshClient, host: &str) -> HostFailure {
    match connect(client, host).await {
        Ok(_) => panic!("{host} let in"),
        Err(failure) => failure,
    }
}

pub(crate) fn ensure_failure(failure: &HostFailure, kind: FailureKind, said: &[&str]) -> Result<()> {
    ensure!(failure.kind == kind, "{:?} is not {kind:?}: {failure}", failure.kind);
    for words in said {
        ensure!(failure.message.contains(words), "no '{words}' in: {failure}");
    }
    Ok(())
}

/// Checks that a client with this configuration does not come in, and why.
pub(crate) async fn refuses(server: &SshServer, options: &str, kind: FailureKind, said: &[&str]) -> Result<()> {
    ensure_failure(&failure(&client(server, options)?, "host").await, kind, said)
}

pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Tasks of this runtime that have not ended.
pub(crate) fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// The snapshot of genv on a host, and whether the host lets it enforce.
pub(crate) async fn ask(session: &Session, options: ServeOptions) -> Result<(Snapshot, bool), HostFailure> {
    let (mut conversation, hello) = Conversation::begin(session, &options).await?;
    assert_eq!(hello.answers_with, HostProgram::Genv);
    conversation.request(&Request::Once).await?;
    match conversation.next_reply().await? {
        Reply::Snapshot { snapshot } => Ok((*snapshot, hello.may_enforce)),
        other => panic!("{other:?}"),
    }
}

/// A new key of a kind, with a passphrase or without: its path.
pub(crate) fn new_key(folder: &Path, kind: &str, passphrase: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{kind}-{}", passphrase.len()));
    ssh::new_key(&path, kind, passphrase)?;
    Ok(path)
}

pub(crate) fn public(key: &Path) -> Result<String> {
    Ok(fs::read_to_string(format!("{}.pub", key.display()))?)
}

/// What a configuration says of a host for which there is this private key alone.
pub(crate) fn identity(key: &Path) -> String {
    format!("IdentityFile {}\n  IdentityAgent none", key.display())
}

/// A configuration of one host, `host`, whose key is known; all else is to be said.
pub(crate) fn client(server: &SshServer, options: &str) -> Result<SshClient> {
    let configuration = format!("Host host\n  Port {}\n  {options}\n", server.port());
    SshClient::configured(&configuration, &server.known_hosts_line()?)
}

/// An agent with these keys, which ends with the value.
pub(crate) struct Agent {
    _child: Running,
    folder: TempDir,
}

impl Agent {
    pub(crate) fn start(keys: &[&Path]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut agent = Command::new(installed("ssh-agent"));
        agent.arg("-D").arg("-a").arg(folder.path().join("agent"));
        let agent = Self { _child: Running::spawn(agent.stdout(Stdio::null()))?, folder };
        until("ssh-agent listens", || Ok(agent.socket().exists()))?;
        for key in keys {
            let mut add = Command::new(installed("ssh-add"));
            add.arg("-q").arg(key).env("SSH_AUTH_SOCK", agent.socket());
            // It asks for the passphrase by a program where there is one.
            add.env("SSH_ASKPASS", agent.askpass()?).env("SSH_ASKPASS_REQUIRE", "force");
            let status = add.stdin(Stdio::null()).status()?;
            ensure!(status.success(), "ssh-add ended with {status}");
        }
        Ok(agent)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    fn askpass(&self) -> Result<PathBuf> {
        let path = self.folder.path().join("askpass");
        write_script(&path, "#!/bin/sh\necho secret\n")?;
        Ok(path)
    }
}
