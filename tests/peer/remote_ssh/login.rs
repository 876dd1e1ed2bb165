//! Who is let in, and what is said to who is not.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Result;
use genv_remote::FailureKind::{Authentication, TimedOut, Unsupported};
use genv_tests::ssh::SshServer;
use tempfile::tempdir;

use crate::remote_ssh::support::{Agent, client, identity, is_let_in, new_key, public, refuses, server};

/// Lets the holder of a key in.
fn authorize(server: &SshServer, key: &Path) -> Result<()> {
    let mut keys = OpenOptions::new().append(true).open(server.authorized_keys())?;
    keys.write_all(public(key)?.as_bytes())?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_each_kind_are_let_in_from_files_and_from_the_agent() -> Result<()> {
    let server = server(&[])?;
    let folder = tempdir()?;
    for kind in ["ed25519", "ecdsa", "rsa"] {
        let key = new_key(folder.path(), kind, "")?;
        authorize(&server, &key)?;
        is_let_in(&client(&server, &identity(&key))?).await?;
        let agent = Agent::start(&[&key])?;
        let options = format!("IdentityFile none\n  IdentityAgent {}", agent.socket().display());
        is_let_in(&client(&server, &options)?).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_key_is_used_from_the_agent_and_named_without_it() -> Result<()> {
    let server = server(&[])?;
    let folder = tempdir()?;
    let key = new_key(folder.path(), "ed25519", "secret")?;
    authorize(&server, &key)?;
    let file = key.display();
    let said = format!("{file} (encrypted, and not in the agent: ssh-add {file})");
    refuses(&server, &identity(&key), Authentication, &["there is no key to offer", &said]).await?;
    let agent = Agent::start(&[&key])?;
    let agent = agent.socket();
    let options = format!("IdentityFile {file}\n  IdentitiesOnly yes\n  IdentityAgent {}", agent.display());
    is_let_in(&client(&server, &options)?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_configured_keys_of_an_agent_are_offered_where_that_is_configured() -> Result<()> {
    let server = server(&["MaxAuthTries 2"])?;
    let folder = tempdir()?;
    let [first, second, right] = ["ecdsa", "rsa", "ed25519"].map(|kind| new_key(folder.path(), kind, ""));
    let (first, second, right) = (first?, second?, right?);
    authorize(&server, &right)?;
    let agent = Agent::start(&[&first, &second, &right])?;
    let socket = agent.socket();
    let options = format!("IdentityAgent {}\n  IdentityFile none", socket.display());
    let said = ["Too many authentication failures", "IdentitiesOnly yes", "of the keys here"];
    refuses(&server, &options, Authentication, &said).await?;
    let (socket, right) = (socket.display(), right.display());
    let options = format!("IdentityAgent {socket}\n  IdentityFile {right}.pub\n  IdentitiesOnly yes");
    is_let_in(&client(&server, &options)?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_let_in_is_told_which_keys_were_offered_and_what_to_do() -> Result<()> {
    let folder = tempdir()?;
    let key = new_key(folder.path(), "ed25519", "")?;
    let (name, offered) = (key.display().to_string(), identity(&key));
    let stranger = format!("User nobody-here\n  {offered}");
    let said = ["as nobody-here", "none of these keys", &name, "ssh-copy-id host"];
    refuses(&server(&[])?, &stranger, Authentication, &said).await?;
    let passwords = server(&["PubkeyAuthentication no", "PasswordAuthentication yes"])?;
    let said = ["accepts no keys, only password", "PubkeyAuthentication yes"];
    refuses(&passwords, &offered, Authentication, &said).await?;
    let both = server(&["PasswordAuthentication yes", "AuthenticationMethods publickey,password"])?;
    authorize(&both, &key)?;
    let said = ["accepts the key, and also requires a method", "password"];
    refuses(&both, &offered, Unsupported, &said).await?;
    let none = identity(Path::new("/nonexistent/key"));
    refuses(&both, &none, Authentication, &["there is no key to offer here", "ssh-keygen"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_cannot_be_used_say_why() -> Result<()> {
    let server = server(&[])?;
    let folder = tempdir()?;
    let open = new_key(folder.path(), "ed25519", "")?;
    fs::set_permissions(&open, Permissions::from_mode(0o644))?;
    let alone = folder.path().join("alone.pub");
    fs::write(&alone, public(&open)?)?;
    let garbage = folder.path().join("garbage");
    fs::write(&garbage, "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n")?;
    fs::set_permissions(&garbage, Permissions::from_mode(0o600))?;
    for (key, said) in [
        (&open, "other users may read it: chmod 600"),
        (&alone, "a public key, and its private key is not in the agent"),
        (&garbage, "no private key that can be read"),
    ] {
        let said = ["there is no key to offer here", said];
        refuses(&server, &identity(key), Authentication, &said).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_gone_or_silent_is_told_in_time_and_files_are_used_without_it() -> Result<()> {
    let server = server(&[])?;
    let file = format!("IdentityFile {}", server.identity().display());
    let gone = "IdentityAgent /nonexistent/agent";
    is_let_in(&client(&server, &format!("{gone}\n  {file}"))?).await?;
    let none = format!("{gone}\n  IdentityFile none");
    refuses(&server, &none, Authentication, &["the agent at /nonexistent/agent"]).await?;
    let folder = tempdir()?;
    let socket = folder.path().join("agent");
    let _silent = std::os::unix::net::UnixListener::bind(&socket)?;
    let silent = format!("IdentityAgent {}\n  {file}\n  ConnectTimeout 1", socket.display());
    refuses(&server, &silent, TimedOut, &["gave no answer in 1.0 s", "agent"]).await
}
