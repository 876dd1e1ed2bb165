//! Where a host is and how to get in, as OpenSSH's configuration has it: `ssh -G` evaluates it, `Match` and `Include` too.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::hosts::HostEntry;
use crate::script::quoted;
use crate::{FailureKind, HostFailure};

mod configuration;
mod paths;

use configuration::{parse_jumps, read_configuration, unsupported};

/// `ssh -G` answers within this time; what `Match exec` runs is in it.
const LONGEST_EVALUATION: Duration = Duration::from_secs(10);

/// So many `ssh -G` run at once.
static EVALUATIONS: Semaphore = Semaphore::const_new(8);

/// More hosts on the way than this are a loop.
const MOST_JUMPS: usize = 8;

/// All that is needed to reach a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// What a person types after `ssh` to reach it, `-p 2222 alice@gpu01`: for messages, safe in a shell.
    pub login: String,
    /// Its name in DNS, or its address.
    pub address: String,
    /// Where its server listens.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// Which versions of IP.
    pub family: AddressFamily,
    /// Private keys, which may be missing.
    pub identity_files: Vec<PathBuf>,
    /// Where the agent listens; none is asked where this is none.
    pub identity_agent: Option<PathBuf>,
    /// Whether only keys of `identity_files` are offered.
    pub identities_only: bool,
    /// Those of the user first, then those of the machine.
    pub known_hosts_files: Vec<PathBuf>,
    /// The name that they know it by, if it is not its address.
    pub host_key_alias: Option<String>,
    /// How long each step of connecting may take, where it is configured.
    pub connect_timeout: Option<Duration>,
    /// Silence after which the host is asked whether it is there, where it is configured.
    pub alive_interval: Option<Duration>,
    /// So many questions without an answer end the session.
    pub alive_count: usize,
    /// Which algorithms may be used.
    pub algorithms: Algorithms,
    /// Hosts on the way, the first of which is reached from here.
    pub jumps: Vec<Target>,
}

/// Algorithms by their names in SSH, the most wanted first; those of russh where a list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Algorithms {
    /// KexAlgorithms.
    pub key_exchanges: Vec<String>,
    /// Ciphers.
    pub ciphers: Vec<String>,
    /// MACs.
    pub macs: Vec<String>,
    /// HostKeyAlgorithms.
    pub host_keys: Vec<String>,
}

/// Which addresses of a name are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// All.
    #[default]
    Any,
    /// Those of version 4.
    Inet,
    /// Those of version 6.
    Inet6,
}

/// Asks `ssh` how a host is reached, and each host on the way. `login` is who logs in where the entry does not say.
///
/// # Errors
/// [`FailureKind::Unresolved`] where `ssh` refuses the name or its configuration, or is missing;
/// [`FailureKind::Unsupported`] where the configuration asks for what this transport cannot do.
pub async fn resolve(entry: &HostEntry, login: Option<&str>) -> Result<Target, HostFailure> {
    resolve_with(OsStr::new("ssh"), entry, login).await
}

/// As [`resolve`], by another program than the first `ssh` on PATH.
///
/// # Errors
/// As there.
pub async fn resolve_with(ssh: &OsStr, entry: &HostEntry, login: Option<&str>) -> Result<Target, HostFailure> {
    let hop = Hop {
        user: entry.user.as_deref().or(login).map(ToOwned::to_owned),
        host: entry.name.clone(),
        port: entry.port,
        has_way: false,
    };
    let (mut target, mut next) = evaluate(ssh, &hop).await?;
    // From the host backwards: the first host on each way is reached as the configuration says of it.
    let mut jumps = Vec::new();
    while let Some(way) = next.take() {
        let hops = parse_jumps(&way)?;
        if jumps.len() + hops.len() > MOST_JUMPS {
            return Err(unsupported(format!(
                "ProxyJump leads through more than {MOST_JUMPS} hosts, perhaps through itself ({way})"
            )));
        }
        let mut resolved = Vec::new();
        for mut hop in hops {
            hop.has_way = !resolved.is_empty();
            let first = !hop.has_way;
            let (target, way) = evaluate(ssh, &hop).await.map_err(|failure| {
                HostFailure::new(failure.kind, format!("on the way, at {}: {}", hop.host, failure.message))
            })?;
            if first {
                next = way;
            }
            resolved.push(target);
        }
        resolved.append(&mut jumps);
        jumps = resolved;
    }
    target.jumps = jumps;
    Ok(target)
}

/// What `ssh` is given.
struct Hop {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// Whether it comes after another one on a way, whatever the configuration says of its own.
    has_way: bool,
}

impl Hop {
    /// As a person would type it.
    fn login(&self) -> String {
        let port = self.port.map(|port| format!("-p {port} "));
        let user = self.user.as_ref().map(|user| format!("{user}@"));
        let host = format!("{}{}", user.unwrap_or_default(), self.host);
        format!("{}{}", port.unwrap_or_default(), quoted(&host))
    }
}

async fn evaluate(program: &OsStr, hop: &Hop) -> Result<(Target, Option<String>), HostFailure> {
    // It lives as long as the program.
    let _permit = EVALUATIONS.acquire().await;
    let mut ssh = Command::new(program);
    ssh.arg("-G");
    if let Some(user) = &hop.user {
        ssh.arg("-l").arg(user);
    }
    if let Some(port) = hop.port {
        ssh.arg("-p").arg(port.to_string());
    }
    if hop.has_way {
        // Any name: it keeps ssh from reading ProxyJump and ProxyCommand, as its own '-J' does.
        ssh.args(["-o", "ProxyJump=before.invalid"]);
    }
    ssh.arg("--").arg(&hop.host);
    ssh.stdin(Stdio::null()).kill_on_drop(true);
    let unresolved =
        |why: String| HostFailure::new(FailureKind::Unresolved, format!("cannot find out how to reach it: {why}"));
    let output = match tokio::time::timeout(LONGEST_EVALUATION, ssh.output()).await {
        Err(_) => {
            return Err(unresolved(format!(
                "'ssh -G {}' gave no answer in {} s. Look for a 'Match exec' in ~/.ssh/config that waits",
                hop.host,
                LONGEST_EVALUATION.as_secs()
            )));
        }
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(unresolved(
                "there is no program 'ssh' on PATH, which reads ~/.ssh/config. Install the package openssh-client"
                    .to_owned(),
            ));
        }
        Ok(Err(error)) => return Err(unresolved(format!("'ssh' cannot be started: {error}"))),
        Ok(Ok(output)) => output,
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().filter(|line| !line.starts_with("Pseudo-terminal")).collect();
        let said: String = said.join("; ").chars().take(500).collect();
        return Err(unresolved(format!(
            "'ssh -G {}' ended with {}: {said}. Correct the name, or ~/.ssh/config",
            hop.host, output.status
        )));
    }
    read_configuration(hop, &text)
}

#[cfg(test)]
mod tests;
