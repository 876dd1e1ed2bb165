//! Who is let in, and what is said to who is not.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use genv_remote::FailureKind;
use genv_tests::ssh::SshServer;
use tempfile::tempdir;

use crate::remote_ssh::support::{
    Agent, block_on, client, ensure_failure, failure, identity, is_let_in, new_key, public, server,
};

/// Lets the holder of a key in.
fn authorize(server: &SshServer, key: &Path) -> Result<()> {
    let mut keys = OpenOptions::new().append(true).open(server.authorized_keys())?;
    keys.write_all(public(key)?.as_bytes())?;
    Ok(())
}

#[test]
fn keys_of_each_kind_are_let_in_from_files_and_from_the_agent() -> Result<()> {
    block_on(async {
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
    })
}

#[test]
fn an_encrypted_key_is_used_from_the_agent_and_named_without_it() -> Result<()> {
    block_on(async {
        let server = server(&[])?;
        let folder = tempdir()?;
        let key = new_key(folder.path(), "ed25519", "secret")?;
        authorize(&server, &key)?;
        let said = format!("{} (encrypted, and not in the agent: ssh-add {})", key.display(), key.display());
        ensure_failure(
            &failure(&client(&server, &identity(&key))?, "host").await,
            FailureKind::Authentication,
            &["there is no key to offer", &said],
        )?;
        let agent = Agent::start(&[&key])?;
        let options = format!(
            "IdentityFile {}\n  IdentitiesOnly yes\n  IdentityAgent {}",
            key.display(),
            agent.socket().display()
        );
        is_let_in(&client(&server, &options)?).await?;
        Ok(())
    })
}

#[test]
fn only_the_configured_keys_of_an_agent_are_offered_where_that_is_configured() -> Result<()> {
    block_on(async {
        let server = server(&["MaxAuthTries 2"])?;
        let folder = tempdir()?;
        let wrong: Vec<PathBuf> =
            ["ecdsa", "rsa"].into_iter().map(|kind| new_key(folder.path(), kind, "")).collect::<Result<_>>()?;
        let right = new_key(folder.path(), "ed25519", "")?;
        authorize(&server, &right)?;
        let keys: Vec<&Path> = wrong.iter().chain([&right]).map(PathBuf::as_path).collect();
        let agent = Agent::start(&keys)?;
        let options = format!("IdentityAgent {}\n  IdentityFile none", agent.socket().display());
        ensure_failure(
            &failure(&client(&server, &options)?, "host").await,
            FailureKind::Authentication,
            &["Too many authentication failures", "IdentitiesOnly yes", "of the keys here"],
        )?;
        let options = format!(
            "IdentityAgent {}\n  IdentityFile {}.pub\n  IdentitiesOnly yes",
            agent.socket().display(),
            right.display()
        );
        is_let_in(&client(&server, &options)?).await?;
        Ok(())
    })
}

#[test]
fn who_is_not_let_in_is_told_which_keys_were_offered_and_what_to_do() -> Result<()> {
    block_on(async {
        let folder = tempdir()?;
        let key = new_key(folder.path(), "ed25519", "")?;
        let name = key.display().to_string();
        let options = format!("User nobody-here\n  {}", identity(&key));
        ensure_failure(
            &failure(&client(&server(&[])?, &options)?, "host").await,
            FailureKind::Authentication,
            &["as nobody-here", "none of these keys", &name, "ssh-copy-id host"],
        )?;
        let passwords = server(&["PubkeyAuthentication no", "PasswordAuthentication yes"])?;
        ensure_failure(
            &failure(&client(&passwords, &identity(&key))?, "host").await,
            FailureKind::Authentication,
            &["accepts no keys, only password", "PubkeyAuthentication yes"],
        )?;
        let both = server(&["PasswordAuthentication yes", "AuthenticationMethods publickey,password"])?;
        authorize(&both, &key)?;
        ensure_failure(
            &failure(&client(&both, &identity(&key))?, "host").await,
            FailureKind::Unsupported,
            &["accepts the key, and also requires a method", "password"],
        )?;
        ensure_failure(
            &failure(&client(&both, &identity(Path::new("/nonexistent/key")))?, "host").await,
            FailureKind::Authentication,
            &["there is no key to offer here", "ssh-keygen"],
        )
    })
}

#[test]
fn keys_that_cannot_be_used_say_why() -> Result<()> {
    block_on(async {
        let server = server(&[])?;
        let folder = tempdir()?;
        let open = new_key(folder.path(), "ed25519", "")?;
        fs::set_permissions(&open, Permissions::from_mode(0o644))?;
        let public = folder.path().join("alone.pub");
        fs::write(&public, crate::remote_ssh::support::public(&open)?)?;
        let garbage = folder.path().join("garbage");
        fs::write(&garbage, "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n")?;
        fs::set_permissions(&garbage, Permissions::from_mode(0o600))?;
        for (key, said) in [
            (&open, "other users may read it: chmod 600"),
            (&public, "a public key, and its private key is not in the agent"),
            (&garbage, "no private key that can be read"),
        ] {
            ensure_failure(
                &failure(&client(&server, &identity(key))?, "host").await,
                FailureKind::Authentication,
                &["there is no key to offer here", said],
            )?;
        }
        Ok(())
    })
}

#[test]
fn an_agent_that_is_gone_is_told_and_files_are_used() -> Result<()> {
    block_on(async {
        let server = server(&[])?;
        let gone = "IdentityAgent /nonexistent/agent";
        let options = format!("{gone}\n  IdentityFile {}", server.identity().display());
        is_let_in(&client(&server, &options)?).await?;
        let options = format!("{gone}\n  IdentityFile none");
        ensure_failure(
            &failure(&client(&server, &options)?, "host").await,
            FailureKind::Authentication,
            &["the agent at /nonexistent/agent"],
        )
    })
}

#[test]
fn an_agent_that_is_silent_costs_no_more_than_the_deadline() -> Result<()> {
    block_on(async {
        let server = server(&[])?;
        let folder = tempdir()?;
        let socket = folder.path().join("agent");
        let _silent = std::os::unix::net::UnixListener::bind(&socket)?;
        let options = format!(
            "IdentityAgent {}\n  IdentityFile {}\n  ConnectTimeout 1",
            socket.display(),
            server.identity().display()
        );
        ensure_failure(
            &failure(&client(&server, &options)?, "host").await,
            FailureKind::TimedOut,
            &["gave no answer in 1.0 s", "agent"],
        )
    })
}
