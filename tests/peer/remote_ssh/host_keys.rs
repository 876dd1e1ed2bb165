//! Whose key is trusted.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use genv_remote::FailureKind;
use genv_tests::shell::installed;
use genv_tests::ssh::{SshClient, SshServer};
use tempfile::tempdir;

use crate::remote_ssh::support::{client, ensure_failure, failure, identity, is_let_in, new_key, public, server};

/// A client that knows a server's key only by these lines.
fn knowing(server: &SshServer, lines: &str) -> Result<SshClient> {
    let client = client(server, &identity(&server.identity()))?;
    fs::write(client.known_hosts(), lines)?;
    Ok(client)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {output:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_key_is_refused_and_the_advice_lets_it_in() -> Result<()> {
    let server = server(&[])?;
    let client = knowing(&server, "")?;
    let known_hosts = client.known_hosts();
    let refused = failure(&client, "host").await;
    let looked_for = format!("[127.0.0.1]:{} is looked for", server.port());
    let file = known_hosts.display().to_string();
    ensure_failure(&refused, FailureKind::HostKey, &["ED25519 key SHA256:", &file, &looked_for, "ssh host true"])?;
    // As who says yes.
    let mut ssh = Command::new(client.program());
    run(ssh.args(["-o", "StrictHostKeyChecking=accept-new", "host", "true"]))?;
    is_let_in(&client).await?;
    // Hashed, it is found all the same.
    run(Command::new(installed("ssh-keygen")).arg("-q").arg("-H").arg("-f").arg(&known_hosts))?;
    ensure!(fs::read_to_string(&known_hosts)?.starts_with("|1|"));
    is_let_in(&client).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_key_is_refused_and_the_advice_removes_the_old_one() -> Result<()> {
    let server = server(&[])?;
    let folder = tempdir()?;
    let other = public(&new_key(folder.path(), "ed25519", "")?)?;
    let name = format!("[127.0.0.1]:{}", server.port());
    let client = knowing(&server, &format!("# ours\n{name} {other}"))?;
    let file = client.known_hosts();
    let refused = failure(&client, "host").await;
    let at = format!("is not the one at {}:2", file.display());
    let remove = format!("ssh-keygen -f {} -R '{name}'", file.display());
    ensure_failure(&refused, FailureKind::HostKey, &[&at, &remove])?;
    run(Command::new("sh").arg("-c").arg(&remove))?;
    ensure_failure(&failure(&client, "host").await, FailureKind::HostKey, &["is not in"])?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_keys_a_server_shows_the_one_that_is_known_and_without_such_a_key_it_is_refused() -> Result<()> {
    let folder = tempdir()?;
    let ecdsa = new_key(folder.path(), "ecdsa", "")?;
    let rsa = new_key(folder.path(), "rsa", "")?;
    let both = server(&[&format!("HostKey {}", rsa.display()), &format!("HostKey {}", ecdsa.display())])?;
    let name = |server: &SshServer| format!("[127.0.0.1]:{}", server.port());
    for key in [&rsa, &ecdsa, &both.host_key()] {
        is_let_in(&knowing(&both, &format!("{} {}", name(&both), public(key)?))?).await?;
    }
    let without = server(&[])?;
    let client = knowing(&without, &format!("{} {}", name(&without), public(&rsa)?))?;
    ensure_failure(
        &failure(&client, "host").await,
        FailureKind::HostKey,
        &["no longer has a key of the kind that is known (RSA at", "accept another with: ssh host true"],
    )
}
