//! The flags of programs that create containers, parsed to find the end of the flags.

use std::ffi::OsString;

use crate::has_word;

/// The flags of a program or a subcommand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    /// Flags without a value: lists of names, separated by blanks.
    pub(super) switches: &'static [&'static str],
    pub(super) switch_letters: &'static str,
    /// Flags with a value, in the same form.
    pub(super) values: &'static [&'static str],
    pub(super) value_letters: &'static str,
}

/// Switches of `run` and `create` of docker and podman.
pub(super) const SHARED_SWITCHES: &str = "\
    detach disable-content-trust help init interactive no-healthcheck oom-kill-disable privileged publish-all quiet \
    read-only rm sig-proxy tty";

/// Flags with a value of `run` and `create` of docker and podman.
pub(super) const SHARED_VALUES: &str = "\
    add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns cidfile \
    cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems detach-keys device \
    device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops dns dns-opt dns-option \
    dns-search entrypoint env env-file expose gpus group-add health-cmd health-interval health-retries \
    health-start-period health-timeout hostname ip ip6 ipc kernel-memory label label-file log-driver log-opt \
    mac-address memory memory-reservation memory-swap memory-swappiness mount name net network network-alias \
    oom-score-adj pid pids-limit platform publish pull restart security-opt shm-size stop-signal stop-timeout sysctl \
    tmpfs ulimit user userns uts volume volumes-from workdir";

/// The kinds of flags that the shims read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagKind {
    Gpus,
    Device,
    Env,
    Runtime,
}

impl FlagKind {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "gpus" => Self::Gpus,
            "device" => Self::Device,
            "env" | "e" => Self::Env,
            "runtime" => Self::Runtime,
            _ => return None,
        })
    }
}

/// A flag of one of these kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) kind: FlagKind,
    /// The argument with the value.
    pub(super) position: usize,
    /// The text before the value in that argument; empty if the flag is the argument before it.
    pub(super) prefix: String,
    /// The value; absent if it is not UTF-8.
    pub(super) value: Option<String>,
}

/// A command line that creates a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerCommand {
    /// The position of its first flag.
    pub(super) flags: usize,
    /// The flags before the image that the shims read.
    pub(super) found: Vec<Flag>,
    /// An unknown flag: the next argument may be its value or the image.
    pub(super) unknown: Option<String>,
}

/// The request of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContainerRequest {
    Container(ContainerCommand),
    /// The containers of a compose file.
    Compose,
}

/// Flags of `compose` itself.
const COMPOSE: Flags = Flags {
    switches: &["all-resources compatibility dry-run help no-ansi verbose version"],
    switch_letters: "hv",
    values: &["ansi env-file file parallel profile progress project-directory project-name workdir"],
    value_letters: "fp",
};

fn has(lists: &[&str], name: &str) -> bool {
    lists.iter().any(|list| has_word(list, name))
}

/// Parses a command line. `None`: it creates no container.
pub(super) fn command(arguments: &[OsString], global: &Flags, container: &Flags) -> Option<ContainerRequest> {
    let mut command = skip(arguments, 0, global, |_, _, _| {}).ok()?;
    match arguments.get(command)?.to_str()? {
        "compose" => {
            let subcommand = skip(arguments, command + 1, &COMPOSE, |_, _, _| {}).ok()?;
            let makes_containers = ["up", "run", "create", "scale", "watch"]
                .iter()
                .any(|name| arguments.get(subcommand).is_some_and(|it| it == name));
            return makes_containers.then_some(ContainerRequest::Compose);
        }
        "container" => command += 1,
        _ => {}
    }
    let name = arguments.get(command)?;
    if name != "run" && name != "create" {
        return None;
    }
    let mut found = Vec::new();
    let end = skip(arguments, command + 1, container, |name, position, prefix| {
        if let Some(kind) = FlagKind::of(name) {
            let value = arguments[position].to_str();
            found.push(Flag {
                kind,
                position,
                prefix: prefix.to_owned(),
                value: value.map(|value| value[prefix.len()..].to_owned()),
            });
        }
    });
    Some(ContainerRequest::Container(ContainerCommand { flags: command + 1, found, unknown: end.err() }))
}

/// The position behind the flags that begin at `position`; an unknown flag is an error. `see` gets each
/// flag with a value: its name, the argument that holds the value, and what is in front of it there.
fn skip(
    arguments: &[OsString],
    mut position: usize,
    flags: &Flags,
    mut see: impl FnMut(&str, usize, &str),
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
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                match value {
                    Some(value) => see(name, position, &text[..text.len() - value.len()]),
                    None if has(flags.switches, name) => {}
                    None if has(flags.values, name) => {
                        if position + 1 < arguments.len() {
                            see(name, position + 1, "");
                        }
                    }
                    None => return Err(unknown()),
                }
                value.is_none() && has(flags.values, name)
            }
            None => {
                let mut letters = text[1..].chars();
                loop {
                    match letters.next() {
                        None => break false,
                        // A switch may have a value, in the same argument only.
                        Some('=') => break false,
                        Some(letter) if flags.switch_letters.contains(letter) => {}
                        Some(letter) if flags.value_letters.contains(letter) => {
                            let rest = letters.as_str();
                            let value = rest.strip_prefix('=').unwrap_or(rest);
                            let name = letter.to_string();
                            if !rest.is_empty() {
                                see(&name, position, &text[..text.len() - value.len()]);
                            } else if position + 1 < arguments.len() {
                                see(&name, position + 1, "");
                            }
                            break rest.is_empty();
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
