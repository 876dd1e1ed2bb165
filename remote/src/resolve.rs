//! Where a host is and how to get in, as OpenSSH's configuration has it: `ssh -G` evaluates it, `Match` and `Include` too.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::hosts::{HostEntry, parse_port};
use crate::known_hosts::quoted;
use crate::{FailureKind, HostFailure};

mod paths;

use paths::Tokens;

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
pub async fn resolve_with(
    ssh: &OsStr,
    entry: &HostEntry,
    login: Option<&str>,
) -> Result<Target, HostFailure> {
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
                HostFailure::new(
                    failure.kind,
                    format!("on the way, at {}: {}", hop.host, failure.message),
                )
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
    let unresolved = |why: String| {
        HostFailure::new(
            FailureKind::Unresolved,
            format!("cannot find out how to reach it: {why}"),
        )
    };
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
        let said: Vec<&str> = said
            .lines()
            .filter(|line| !line.starts_with("Pseudo-terminal"))
            .collect();
        let said: String = said.join("; ").chars().take(500).collect();
        return Err(unresolved(format!(
            "'ssh -G {}' ended with {}: {said}. Correct the name, or ~/.ssh/config",
            hop.host, output.status
        )));
    }
    read_configuration(hop, &text)
}

/// What the transport leaves to OpenSSH's own client, unless it is unset or has one of these values.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    (
        "proxycommand",
        "ProxyCommand",
        "use ProxyJump instead, or run genv-exporter on the host itself",
    ),
    (
        "knownhostscommand",
        "KnownHostsCommand",
        "write the keys to a known_hosts file",
    ),
    (
        "revokedhostkeys",
        "RevokedHostKeys",
        "mark the keys as @revoked in known_hosts",
    ),
    (
        "pkcs11provider",
        "PKCS11Provider",
        "load the key into ssh-agent with 'ssh-add -s'",
    ),
    (
        "certificatefile",
        "CertificateFile",
        "let the host accept the key itself",
    ),
    (
        "bindaddress",
        "BindAddress",
        "let the machine's routes choose the address",
    ),
    (
        "bindinterface",
        "BindInterface",
        "let the machine's routes choose the interface",
    ),
];

/// The configuration that `ssh -G` prints, and its ProxyJump.
fn read_configuration(hop: &Hop, text: &str) -> Result<(Target, Option<String>), HostFailure> {
    let options: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, value)| (name, value.trim()))
        .collect();
    let all = |wanted: &'static str| {
        options
            .iter()
            .filter(move |(name, _)| *name == wanted)
            .map(|(_, value)| *value)
    };
    // ssh prints what is not set as 'none', if at all.
    let one = |wanted: &'static str| {
        all(wanted)
            .next()
            .filter(|value| !value.is_empty() && *value != "none")
    };
    for (name, spelled, instead) in UNSUPPORTED {
        if let Some(value) = one(name) {
            return Err(unsupported(format!(
                "~/.ssh/config sets {spelled} ({value}) for it, which is not supported: {instead}"
            )));
        }
    }
    if matches!(one("pubkeyauthentication"), Some("false" | "no")) {
        return Err(unsupported(
            "~/.ssh/config sets 'PubkeyAuthentication no' for it, and nobody is here to type a password: allow keys"
                .to_owned(),
        ));
    }
    let odd = |what: &str| {
        HostFailure::new(
            FailureKind::Unresolved,
            format!(
                "cannot find out how to reach it: 'ssh -G {}' tells no {what}. Run it, and correct ~/.ssh/config",
                hop.host
            ),
        )
    };
    let address = one("hostname").ok_or_else(|| odd("Hostname"))?.to_owned();
    let port = one("port")
        .and_then(|port| parse_port(port).ok())
        .ok_or_else(|| odd("Port"))?;
    let user = one("user").ok_or_else(|| odd("User"))?.to_owned();
    let seconds = |name| {
        let seconds = one(name).and_then(|value| value.parse().ok());
        seconds
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs)
    };
    let jump = one("proxyjump")
        .filter(|_| !hop.has_way)
        .map(ToOwned::to_owned);
    let host_key_alias = one("hostkeyalias").map(ToOwned::to_owned);
    let tokens = Tokens::new(
        &hop.host,
        &address,
        port,
        &user,
        host_key_alias.as_deref(),
        jump.as_deref(),
    );
    let known_hosts_files = ["userknownhostsfile", "globalknownhostsfile"]
        .into_iter()
        .filter_map(one)
        .flat_map(paths::split)
        .map(|path| tokens.home_expanded(&path))
        .collect();
    let list = |name| {
        one(name).map_or_else(Vec::new, |names| {
            names.split(',').map(ToOwned::to_owned).collect()
        })
    };
    let target = Target {
        login: hop.login(),
        port,
        family: match one("addressfamily") {
            Some("inet") => AddressFamily::Inet,
            Some("inet6") => AddressFamily::Inet6,
            _ => AddressFamily::Any,
        },
        identity_files: all("identityfile")
            .filter(|path| *path != "none")
            .map(|path| tokens.expanded(path))
            .collect(),
        identity_agent: tokens.agent(all("identityagent").next()),
        identities_only: one("identitiesonly") == Some("yes"),
        known_hosts_files,
        host_key_alias,
        connect_timeout: seconds("connecttimeout"),
        alive_interval: seconds("serveraliveinterval"),
        alive_count: one("serveralivecountmax")
            .and_then(|count| count.parse().ok())
            .unwrap_or(3),
        algorithms: Algorithms {
            key_exchanges: list("kexalgorithms"),
            ciphers: list("ciphers"),
            macs: list("macs"),
            host_keys: list("hostkeyalgorithms"),
        },
        jumps: Vec::new(),
        address,
        user,
    };
    Ok((target, jump))
}

/// The hosts of `[user@]host[:port],…`, as `ssh -G` prints ProxyJump.
fn parse_jumps(way: &str) -> Result<Vec<Hop>, HostFailure> {
    way.split(',')
        .map(|jump| {
            let wrong = || {
                unsupported(format!(
                    "ProxyJump has '{jump}', which is not understood: write user@host:port"
                ))
            };
            let (user, host) = match jump.rsplit_once('@') {
                Some((user, host)) => (Some(user.to_owned()), host),
                None => (None, jump),
            };
            let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let (host, port) = match bracketed {
                Some((address, "")) => (address, None),
                Some((address, rest)) => (address, Some(rest.strip_prefix(':').ok_or_else(wrong)?)),
                None => match host.split_once(':') {
                    Some((host, port)) if !port.contains(':') => (host, Some(port)),
                    _ => (host, None),
                },
            };
            if host.is_empty() {
                return Err(wrong());
            }
            Ok(Hop {
                user,
                host: host.to_owned(),
                port: port.map(parse_port).transpose().map_err(|_| wrong())?,
                has_way: false,
            })
        })
        .collect()
}

fn unsupported(why: String) -> HostFailure {
    HostFailure::new(FailureKind::Unsupported, format!("cannot connect: {why}"))
}

#[cfg(test)]
mod tests;
