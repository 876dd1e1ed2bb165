//! The flags of docker, as far as it takes to know where they end.

use std::ffi::OsString;

/// Flags of `docker` itself that stand alone; all others in front of the subcommand take a value.
const GLOBAL_SWITCHES: [&str; 5] = ["debug", "tls", "tlsverify", "version", "help"];
const GLOBAL_SWITCH_LETTERS: &str = "Dv";
const GLOBAL_VALUES: [&str; 7] = [
    "config",
    "context",
    "host",
    "log-level",
    "tlscacert",
    "tlscert",
    "tlskey",
];
const GLOBAL_VALUE_LETTERS: &str = "cHl";

/// Flags of `docker run` and `docker create` that stand alone.
const SWITCHES: [&str; 15] = [
    "detach",
    "disable-content-trust",
    "help",
    "init",
    "interactive",
    "no-healthcheck",
    "oom-kill-disable",
    "privileged",
    "publish-all",
    "quiet",
    "read-only",
    "rm",
    "sig-proxy",
    "tty",
    "use-api-socket",
];
const SWITCH_LETTERS: &str = "diPqt";

/// Flags of `docker run` and `docker create` that take a value.
const VALUES: [&str; 92] = [
    "add-host",
    "annotation",
    "attach",
    "blkio-weight",
    "blkio-weight-device",
    "cap-add",
    "cap-drop",
    "cgroup-parent",
    "cgroupns",
    "cidfile",
    "cpu-count",
    "cpu-percent",
    "cpu-period",
    "cpu-quota",
    "cpu-rt-period",
    "cpu-rt-runtime",
    "cpu-shares",
    "cpus",
    "cpuset-cpus",
    "cpuset-mems",
    "detach-keys",
    "device",
    "device-cgroup-rule",
    "device-read-bps",
    "device-read-iops",
    "device-write-bps",
    "device-write-iops",
    "dns",
    "dns-opt",
    "dns-option",
    "dns-search",
    "domainname",
    "entrypoint",
    "env",
    "env-file",
    "expose",
    "gpus",
    "group-add",
    "health-cmd",
    "health-interval",
    "health-retries",
    "health-start-interval",
    "health-start-period",
    "health-timeout",
    "hostname",
    "io-maxbandwidth",
    "io-maxiops",
    "ip",
    "ip6",
    "ipc",
    "isolation",
    "kernel-memory",
    "label",
    "label-file",
    "link",
    "link-local-ip",
    "log-driver",
    "log-opt",
    "mac-address",
    "memory",
    "memory-reservation",
    "memory-swap",
    "memory-swappiness",
    "mount",
    "name",
    "net",
    "net-alias",
    "network",
    "network-alias",
    "oom-score-adj",
    "pid",
    "pids-limit",
    "platform",
    "publish",
    "pull",
    "restart",
    "runtime",
    "security-opt",
    "shm-size",
    "stop-signal",
    "stop-timeout",
    "storage-opt",
    "sysctl",
    "tmpfs",
    "ulimit",
    "user",
    "userns",
    "uts",
    "volume",
    "volume-driver",
    "volumes-from",
    "workdir",
];
const VALUE_LETTERS: &str = "acehlmpuvw";

/// A `--gpus` on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpus {
    /// The argument with the value.
    pub(super) position: usize,
    /// What is in front of the value in that argument.
    pub(super) prefix: &'static str,
    /// The value; nothing if it is no text.
    pub(super) value: Option<String>,
}

/// A command line that makes a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Container {
    /// Where its flags begin.
    pub(super) flags: usize,
    /// Every `--gpus` in front of the image.
    pub(super) gpus: Vec<Gpus>,
    /// A flag that is not known: whether the next argument is its value or the image cannot be told.
    pub(super) unknown: Option<String>,
}

/// Finds what a command line says of a container; nothing of one that makes none.
pub(super) fn container(arguments: &[OsString]) -> Option<Container> {
    let global = Flags {
        switches: &GLOBAL_SWITCHES,
        switch_letters: GLOBAL_SWITCH_LETTERS,
        values: &GLOBAL_VALUES,
        value_letters: GLOBAL_VALUE_LETTERS,
    };
    let mut command = skip(arguments, 0, &global, |_, _, _| {}).ok()?;
    if arguments.get(command)? == "container" {
        command += 1;
    }
    let name = arguments.get(command)?;
    if name != "run" && name != "create" {
        return None;
    }
    let mut found = Container {
        flags: command + 1,
        ..Container::default()
    };
    let flags = Flags {
        switches: &SWITCHES,
        switch_letters: SWITCH_LETTERS,
        values: &VALUES,
        value_letters: VALUE_LETTERS,
    };
    let end = skip(arguments, found.flags, &flags, |name, position, prefix| {
        if name == "gpus" {
            let value = arguments[position].to_str();
            found.gpus.push(Gpus {
                position,
                prefix,
                value: value.map(|value| value[prefix.len()..].to_owned()),
            });
        }
    });
    found.unknown = end.err();
    Some(found)
}

struct Flags<'a> {
    switches: &'a [&'a str],
    switch_letters: &'a str,
    values: &'a [&'a str],
    value_letters: &'a str,
}

/// The position behind the flags that begin at `position`; an unknown flag is an error. `see` gets each
/// flag with a value: its name, the argument that holds the value, and what is in front of it there.
fn skip(
    arguments: &[OsString],
    mut position: usize,
    flags: &Flags<'_>,
    mut see: impl FnMut(&str, usize, &'static str),
) -> Result<usize, String> {
    while let Some(argument) = arguments.get(position) {
        let bytes = argument.as_encoded_bytes();
        if !bytes.starts_with(b"-") || bytes == b"-" {
            return Ok(position);
        }
        if bytes == b"--" {
            return Ok(position + 1);
        }
        let text = argument.to_string_lossy();
        let unknown = || text.escape_debug().to_string();
        let takes_next = match text.strip_prefix("--") {
            Some(long) => {
                let (name, value) = long
                    .split_once('=')
                    .map_or((long, None), |(name, value)| (name, Some(value)));
                match value {
                    Some(_) if name == "gpus" => see(name, position, "--gpus="),
                    Some(_) => {}
                    None if flags.switches.contains(&name) => {}
                    None if flags.values.contains(&name) => {
                        if position + 1 < arguments.len() {
                            see(name, position + 1, "");
                        }
                    }
                    None => return Err(unknown()),
                }
                value.is_none() && flags.values.contains(&name)
            }
            None => {
                let mut letters = text[1..].chars();
                loop {
                    match letters.next() {
                        None => break false,
                        // A switch may be given a value, which nothing follows.
                        Some('=') => break false,
                        Some(letter) if flags.switch_letters.contains(letter) => {}
                        Some(letter) if flags.value_letters.contains(letter) => {
                            break letters.as_str().is_empty();
                        }
                        Some(_) => return Err(unknown()),
                    }
                }
            }
        };
        position += 1 + usize::from(takes_next);
    }
    Ok(position)
}

#[cfg(test)]
mod tests;
