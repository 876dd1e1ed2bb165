//! Parses the output of `ssh -G`.

use std::time::Duration;

use super::paths::{self, Tokens};
use super::{AddressFamily, Algorithms, Hop, Target};
use crate::hosts::parse_port;
use crate::{FailureKind, HostFailure};

/// SshOptions that only OpenSSH's own client supports: the name in the output, the name in ssh_config, and an alternative.
const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("proxycommand", "ProxyCommand", "use ProxyJump instead, or run genv-exporter on the host itself"),
    ("knownhostscommand", "KnownHostsCommand", "write the keys to a known_hosts file"),
    ("revokedhostkeys", "RevokedHostKeys", "mark the keys as @revoked in known_hosts"),
    ("pkcs11provider", "PKCS11Provider", "load the key into ssh-agent with 'ssh-add -s'"),
    ("certificatefile", "CertificateFile", "let the host accept the key itself"),
    ("bindaddress", "BindAddress", "let the machine's routes choose the address"),
    ("bindinterface", "BindInterface", "let the machine's routes choose the interface"),
];

/// The output of `ssh -G`: an option's name in lower case and its value on each line.
struct SshOptions<'a>(Vec<(&'a str, &'a str)>);

impl<'a> SshOptions<'a> {
    fn parse(text: &'a str) -> Self {
        let options = text.lines().filter_map(|line| line.split_once(' '));
        Self(options.map(|(name, value)| (name, value.trim())).collect())
    }

    /// All values of an option.
    fn all(&self, wanted: &'static str) -> impl Iterator<Item = &'a str> {
        let options = self.0.iter().filter(move |(name, _)| *name == wanted);
        options.map(|(_, value)| *value)
    }

    /// The first value of an option. ssh prints an unset option as 'none' or omits it.
    fn one(&self, wanted: &'static str) -> Option<&'a str> {
        let first = self.all(wanted).next();
        first.filter(|value| !value.is_empty() && *value != "none")
    }
}

/// Checks that the configuration has only supported options.
fn check_supported(hop: &Hop, options: &SshOptions<'_>) -> Result<(), HostFailure> {
    for (name, spelled, instead) in UNSUPPORTED {
        if let Some(value) = options.one(name) {
            return Err(unsupported(format!(
                "~/.ssh/config sets {spelled} ({value}) for it, which is not supported: {instead}. To log in by \
                                 hand run: ssh {}",
                hop.login()
            )));
        }
    }
    if matches!(options.one("pubkeyauthentication"), Some("false" | "no")) {
        return Err(unsupported(
            "~/.ssh/config sets 'PubkeyAuthentication no' for it, and no person can type a password: allow keys"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Parses the output of `ssh -G`. Returns the target, and the value of ProxyJump.
pub(super) fn read_configuration(hop: &Hop, text: &str) -> Result<(Target, Option<String>), HostFailure> {
    let options = SshOptions::parse(text);
    let one = |wanted| options.one(wanted);
    check_supported(hop, &options)?;
    let missing = |option: &str| {
        HostFailure::new(
            FailureKind::Unresolved,
            format!(
                "cannot find its address: the output of 'ssh -G {}' has no {option}. Run it, and correct ~/.ssh/config",
                hop.host
            ),
        )
    };
    let address = one("hostname").ok_or_else(|| missing("Hostname"))?.to_owned();
    let port = one("port").and_then(|port| parse_port(port).ok()).ok_or_else(|| missing("Port"))?;
    let user = one("user").ok_or_else(|| missing("User"))?.to_owned();
    let seconds = |name| {
        let seconds = one(name).and_then(|value| value.parse().ok());
        seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    };
    let jump = one("proxyjump").filter(|_| !hop.has_predecessor).map(ToOwned::to_owned);
    let host_key_alias = one("hostkeyalias").map(ToOwned::to_owned);
    let tokens = Tokens::new(&hop.host, &address, port, &user, host_key_alias.as_deref(), jump.as_deref());
    let known_hosts_files = ["userknownhostsfile", "globalknownhostsfile"]
        .into_iter()
        .filter_map(one)
        .flat_map(paths::split)
        .map(|path| tokens.home_expanded(&path))
        .collect();
    let list = |name| one(name).map_or_else(Vec::new, |names| names.split(',').map(ToOwned::to_owned).collect());
    let target = Target {
        login: hop.login(),
        port,
        family: match one("addressfamily") {
            Some("inet") => AddressFamily::Inet,
            Some("inet6") => AddressFamily::Inet6,
            _ => AddressFamily::Any,
        },
        identity_files: options
            .all("identityfile")
            .filter(|path| *path != "none")
            .map(|path| tokens.expanded(path))
            .collect(),
        identity_agent: tokens.agent(options.all("identityagent").next()),
        identities_only: one("identitiesonly") == Some("yes"),
        known_hosts_files,
        host_key_alias,
        connect_timeout: seconds("connecttimeout"),
        alive_interval: seconds("serveraliveinterval"),
        alive_count: one("serveralivecountmax").and_then(|count| count.parse().ok()).unwrap_or(3),
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

/// Parses the value of ProxyJump in the output of `ssh -G`: `[user@]host[:port],…`.
pub(super) fn parse_jumps(proxy_jump: &str) -> Result<Vec<Hop>, HostFailure> {
    proxy_jump
        .split(',')
        .map(|jump| {
            let wrong = || unsupported(format!("ProxyJump has '{jump}', which is invalid: write user@host:port"));
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
                has_predecessor: false,
            })
        })
        .collect()
}

pub(super) fn unsupported(why: String) -> HostFailure {
    HostFailure::new(FailureKind::Unsupported, format!("cannot connect: {why}"))
}
