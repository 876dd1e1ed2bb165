//! Hosts that people log in to: OpenSSH's own server and client, on 127.0.0.1.

mod client;
mod server;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

pub use client::SshClient;
pub use server::SshServer;

use crate::shell::installed;

/// Makes a key of a kind, with a passphrase or without: the private one, and beside it the public one, which ends in `.pub`.
pub fn new_key(path: &Path, kind: &str, passphrase: &str) -> Result<()> {
    let mut keygen = Command::new(installed("ssh-keygen"));
    keygen.args(["-q", "-t", kind, "-N", passphrase, "-C", "somebody's", "-f"]);
    let status = keygen.arg(path).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "ssh-keygen ended with {status}");
    Ok(())
}
