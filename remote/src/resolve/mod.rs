//! The address, the user and the options for a host, by OpenSSH's configuration. `ssh -G` evaluates the configuration, with
//! `Match` and `Include`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::hosts::HostEntry;
use crate::script::quoted;
use crate::{FailureKind, HostFailure};

mod cache;
mod configuration;
mod paths;

use cache::Evaluation;
use configuration::{parse_jumps, read_configuration, unsupported};

/// Time limit of `ssh -G`, with the commands of `Match exec`.
const LONGEST_EVALUATION: Duration = Duration::from_secs(10);

/// Limits the number of `ssh -G` that run at once.
static EVALUATIONS: Semaphore = Semaphore::const_new(8);

/// A larger number of jump hosts is taken for a loop.
const MOST_JUMPS: usize = 8;

/// The address and the options for a connection to a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The arguments of `ssh` for this host, such as `-p 2222 alice@gpu01`, quoted for a shell. For messages.
    pub login: String,
    /// The name in DNS, or the address.
    pub address: String,
    /// The port of the SSH server.
    pub port: u16,
    /// The user to log in as.
    pub user: String,
    /// The versions of IP to use.
    pub family: AddressFamily,
    /// Files of private keys; they may be missing.
    pub identity_files: Vec<PathBuf>,
    /// The socket of the agent; absent: use no agent.
    pub identity_agent: Option<PathBuf>,
    /// Whether to offer only the keys of `identity_files`.
    pub identities_only: bool,
    /// The user's files, then the machine's files.
    pub known_hosts_files: Vec<PathBuf>,
    /// The host's name in these files, if it differs from the address.
    pub host_key_alias: Option<String>,
    /// The configured time limit for each step of the connection.
    pub connect_timeout: Option<Duration>,
    /// The configured silence after which a keep-alive message is sent.
    pub alive_interval: Option<Duration>,
    /// This number of keep-alive messages without an answer ends the session.
    pub alive_count: usize,
    /// The allowed algorithms.
    pub algorithms: Algorithms,
    /// The jump hosts, in the order of the connection.
    pub jumps: Vec<Target>,
}

/// Names of algorithms, the preferred ones first. An empty list stands for the algorithms of russh.
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

/// The addresses of a name to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// All addresses.
    #[default]
    Any,
    /// Addresses of IPv4.
    Inet,
    /// Addresses of IPv6.
    Inet6,
}

/// Resolves a host and its jump hosts by `ssh -G`. `login`: the user to log in as, if the entry has none.
///
/// # Errors
/// [`FailureKind::Unresolved`]: `ssh` is missing, or refuses the name or the configuration.
/// [`FailureKind::Unsupported`]: the configuration has an unsupported option.
pub async fn resolve(entry: &HostEntry, login: Option<&str>) -> Result<Target, HostFailure> {
    resolve_with(OsStr::new("ssh"), entry, login).await
}

/// As [`resolve`], with this program in place of the first `ssh` on PATH.
///
/// # Errors
/// As [`resolve`].
pub async fn resolve_with(ssh: &OsStr, entry: &HostEntry, login: Option<&str>) -> Result<Target, HostFailure> {
    let hop = Hop {
        user: entry.user.as_deref().or(login).map(ToOwned::to_owned),
        host: entry.name.clone(),
        port: entry.port,
        has_predecessor: false,
    };
    let (mut target, mut next) = evaluate(ssh, &hop).await?;
    // The first host of each ProxyJump can have a ProxyJump of its own. Its hosts precede.
    let mut jumps = Vec::new();
    while let Some(proxy_jump) = next.take() {
        let hops = parse_jumps(&proxy_jump)?;
        if jumps.len() + hops.len() > MOST_JUMPS {
            return Err(unsupported(format!(
                "ProxyJump leads through more than {MOST_JUMPS} hosts, perhaps in a loop ({proxy_jump})"
            )));
        }
        let mut resolved = Vec::new();
        for mut hop in hops {
            hop.has_predecessor = !resolved.is_empty();
            let first = !hop.has_predecessor;
            let (target, proxy_jump) = evaluate(ssh, &hop).await.map_err(|failure| {
                HostFailure::new(failure.kind, format!("at the jump host {}: {}", hop.host, failure.message))
            })?;
            if first {
                next = proxy_jump;
            }
            resolved.push(target);
        }
        resolved.append(&mut jumps);
        jumps = resolved;
    }
    target.jumps = jumps;
    Ok(target)
}

/// A host in the arguments of `ssh`.
struct Hop {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// Whether another jump host precedes. The host's own ProxyJump does not count then.
    has_predecessor: bool,
}

impl Hop {
    /// The arguments as a person would type them.
    fn login(&self) -> String {
        let port = self.port.map(|port| format!("-p {port} "));
        let user = self.user.as_ref().map(|user| format!("{user}@"));
        let host = format!("{}{}", user.unwrap_or_default(), self.host);
        format!("{}{}", port.unwrap_or_default(), quoted(&host))
    }
}

async fn evaluate(program: &OsStr, hop: &Hop) -> Result<(Target, Option<String>), HostFailure> {
    // The permit is held until `ssh` has ended.
    let _permit = EVALUATIONS.acquire().await;
    let mut arguments = vec![OsString::from("-G")];
    if let Some(user) = &hop.user {
        arguments.extend([OsString::from("-l"), user.into()]);
    }
    if let Some(port) = hop.port {
        arguments.extend([OsString::from("-p"), port.to_string().into()]);
    }
    if hop.has_predecessor {
        // With any value, ssh does not read ProxyJump and ProxyCommand of the configuration. Its own option '-J' does the same.
        arguments.extend([OsString::from("-o"), "ProxyJump=before.invalid".into()]);
    }
    let is_shared = cache::is_shared(program, &hop.host).await;
    if is_shared {
        // It names the files that it reads.
        arguments.push("-v".into());
    }
    let mut ssh = Command::new(program);
    ssh.args(&arguments).arg("--").arg(&hop.host).stdin(Stdio::null()).kill_on_drop(true);
    let began = (Instant::now(), SystemTime::now());
    let evaluation = Evaluation { program: program.to_owned(), arguments, host: hop.host.clone(), began };
    let evaluation = is_shared.then_some(evaluation);
    if let Some(text) = evaluation.as_ref().and_then(cache::find) {
        return read_configuration(hop, &text);
    }
    let unresolved = |why: String| HostFailure::new(FailureKind::Unresolved, format!("cannot find its address: {why}"));
    let output = match tokio::time::timeout(LONGEST_EVALUATION, ssh.output()).await {
        Err(_) => {
            return Err(unresolved(format!(
                "'ssh -G {}' did not end in {} s. Look for a 'Match exec' in ~/.ssh/config that waits",
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let is_noise =
            |line: &str| ["Pseudo-terminal", "OpenSSH_", "debug"].iter().any(|noise| line.starts_with(noise));
        let lines: Vec<&str> = stderr.lines().filter(|line| !is_noise(line)).collect();
        let message: String = lines.join("; ").chars().take(500).collect();
        return Err(unresolved(format!(
            "'ssh -G {}' ended with {}: {message}. Correct the name, or ~/.ssh/config",
            hop.host, output.status
        )));
    }
    if let Some(evaluation) = evaluation {
        let (text, log) = (text.clone().into_owned(), stderr.into_owned());
        // The connection does not wait for the files of the configuration.
        spawn_blocking(move || cache::keep(evaluation, &text, &log));
    }
    read_configuration(hop, &text)
}

#[cfg(test)]
mod tests;
